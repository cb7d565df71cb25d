import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createPool } from '../../lib/store/pool.ts';
import { ADMIN_KEY, startTestApi, type TestApi } from '../testing/api.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';
import { givenDead, givenDelivery } from '../testing/given-deliveries.ts';
import type { Route } from './http/route.ts';
import { routes } from './routes.ts';

let database: TestDatabase;
let pool: pg.Pool;
let api: TestApi;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
  api = await startTestApi(database.url);
});
afterAll(async () => {
  await api.stop();
  await pool.end();
  await database.drop();
});

async function givenTenant(): Promise<string> {
  return (await api.call('POST', '/v1/tenants', { body: { name: 'a tenant' } })).json.id;
}

async function givenKey(body: object): Promise<{ id: string; key: string }> {
  const made = await api.call('POST', '/v1/keys', { body });
  expect(made.status).toBe(201);
  return made.json;
}

/** One of everything that a tenant may own. */
async function givenBelongings(tenantId: string) {
  const headers = { 'relay-tenant-id': tenantId };
  const endpoint = await api.call('POST', '/v1/endpoints', {
    headers,
    body: { url: 'https://sink.example.com/in' },
  });
  const endpointId: string = endpoint.json.id;
  const { eventId, deliveryId } = await givenDelivery(pool, { endpointId, tenantId });
  await givenDead(pool, deliveryId);
  const key = await givenKey({ tenant_id: tenantId, scopes: ['read'] });
  return { endpointId, eventId, deliveryId, keyId: key.id };
}

type Belongings = Awaited<ReturnType<typeof givenBelongings>>;

/** A well-formed call of a route, which fails only if the caller may not make it. */
function callOf(route: Route, ids: Belongings & { tenantId: string }) {
  const id = route.path.startsWith('/v1/endpoints')
    ? ids.endpointId
    : route.path.startsWith('/v1/events')
      ? ids.eventId
      : route.path.startsWith('/v1/deliveries')
        ? ids.deliveryId
        : route.path.startsWith('/v1/keys')
          ? ids.keyId
          : ids.tenantId;
  const bodies: Record<string, object> = {
    createTenant: { name: 'made' },
    createKey: { scopes: ['read'] },
    createEndpoint: { url: 'https://sink.example.com/in' },
    changeEndpoint: { description: 'changed' },
    postBatch: [{ type: 'x', payload: {} }],
    postMessage: {
      kind: 'webhook',
      idempotencyKey: randomUUID(),
      endpointId: ids.endpointId,
      event: 'x',
      body: '{}',
    },
  };
  const body = bodies[route.name];
  return {
    method: route.method.toUpperCase(),
    path: route.path.replace('{id}', id),
    options: {
      ...(body ? { body } : {}),
      ...(route.name === 'postEvent' ? { raw: '{"type":"x"}' } : {}),
    },
  };
}

const guarded = routes.filter((route) => route.access !== 'open');
// What deletes goes last, so that each route finds what it is asked about.
const inOrder = [...guarded].sort((a, b) => Number(a.method === 'delete') - Number(b.method === 'delete'));

describe('every route', () => {
  it('answers 401 without a key and with one that nobody made, before it reads the body', async () => {
    const ids = { ...(await givenBelongings(await givenTenant())), tenantId: randomUUID() };
    for (const route of guarded) {
      const { method, path, options } = callOf(route, ids);
      for (const key of [null, `relay_${'x'.repeat(43)}`, 'short', `${ADMIN_KEY}x`]) {
        const answer = await api.call(method, path, { ...options, key });
        expect([route.name, answer.status, answer.json.code]).toEqual([route.name, 401, 'unauthorized']);
        expect(answer.headers.get('www-authenticate')).toBe('Bearer');
      }
      const basic = await api.call(method, path, {
        ...options,
        key: null,
        headers: { authorization: 'Basic eA==' },
      });
      expect(basic.status).toBe(401);
    }
  });

  it('lets in exactly the keys that hold its scope', async () => {
    for (const scope of ['events:write', 'read', 'manage'] as const) {
      const tenantId = await givenTenant();
      const ids = { ...(await givenBelongings(tenantId)), tenantId };
      const { key } = await givenKey({ tenant_id: tenantId, scopes: [scope] });
      for (const route of inOrder) {
        const { method, path, options } = callOf(route, ids);
        const { status, json } = await api.call(method, path, { ...options, key });
        if (route.access === scope) expect([route.name, status < 300]).toEqual([route.name, true]);
        else expect([route.name, status, json.code]).toEqual([route.name, 403, 'forbidden']);
      }
    }
  });

  it('lets an admin key in by the same scopes, for any tenant', async () => {
    const tenantId = await givenTenant();
    const ids = { ...(await givenBelongings(tenantId)), tenantId };
    const reader = await givenKey({ admin: true, scopes: ['read'] });
    const admin = await givenKey({ admin: true, scopes: ['read', 'manage', 'events:write'] });
    const headers = { 'relay-tenant-id': tenantId };
    for (const route of inOrder) {
      const { method, path, options } = callOf(route, ids);
      const answer = await api.call(method, path, { ...options, key: reader.key, headers });
      expect([route.name, answer.status < 300]).toEqual([route.name, route.access === 'read']);
    }
    for (const route of inOrder) {
      const { method, path, options } = callOf(route, ids);
      const answer = await api.call(method, path, { ...options, key: admin.key, headers });
      expect([route.name, answer.status < 300]).toEqual([route.name, true]);
    }
  });

  it('shows and changes nothing of another tenant’s', async () => {
    const owner = await givenTenant();
    const ids = { ...(await givenBelongings(owner)), tenantId: owner };
    const stranger = await givenTenant();
    const scopes = ['read', 'manage', 'events:write'];
    const { key } = await givenKey({ tenant_id: stranger, scopes });
    for (const route of inOrder.filter((one) => one.access !== 'admin')) {
      const { method, path, options } = callOf(route, ids);
      const foreign = await api.call(method, path, {
        ...options,
        key,
        headers: { 'relay-tenant-id': owner },
      });
      expect([route.name, foreign.status, foreign.json.code]).toEqual([route.name, 403, 'forbidden']);
      const own = await api.call(method, path, { ...options, key });
      const namesTheirs = route.params !== undefined || route.name === 'postMessage';
      if (namesTheirs) expect([route.name, own.status]).toEqual([route.name, 404]);
      else expect([route.name, own.status < 300]).toEqual([route.name, true]);
    }
    const lists = ['/v1/endpoints', '/v1/dlq', '/v1/keys'];
    const seen = await Promise.all(lists.map((path) => api.call('GET', path, { key })));
    expect(JSON.stringify(seen.map((answer) => answer.json))).not.toContain(owner);
    const headers = { 'relay-tenant-id': owner };
    const still = await api.call('GET', `/v1/endpoints/${ids.endpointId}`, { headers });
    expect(still.json).toMatchObject({ enabled: true, version: 1 });
    expect((await api.call('GET', '/v1/dlq', { headers })).json.count).toBe(1);
  });

  it('is open only where it tells nothing of anybody', () => {
    expect(routes.filter((route) => route.access === 'open').map((route) => route.path)).toEqual([
      '/healthz',
      '/readyz',
      '/metrics',
    ]);
  });
});

describe('the tenant of a request', () => {
  it('is the default one for an admin that names none, and 404 for one that does not exist', async () => {
    const endpoint = await api.call('POST', '/v1/endpoints', {
      body: { url: 'https://sink.example.com/in' },
    });
    expect(endpoint.json.tenant_id).toBe('00000000-0000-0000-0000-000000000001');
    for (const [method, path] of [
      ['GET', '/v1/endpoints'],
      ['POST', '/v1/events'],
    ] as const) {
      const headers = { 'relay-tenant-id': randomUUID() };
      const raw = method === 'POST' ? { raw: '{"type":"x"}' } : {};
      const answer = await api.call(method, path, { headers, ...raw });
      expect([answer.status, answer.json.code]).toEqual([404, 'tenant_not_found']);
    }
  });

  it('may be named by a key of its own', async () => {
    const tenantId = await givenTenant();
    const { key } = await givenKey({ tenant_id: tenantId, scopes: ['read'] });
    const headers = { 'relay-tenant-id': tenantId.toUpperCase() };
    expect((await api.call('GET', '/v1/endpoints', { key, headers })).status).toBe(200);
  });
});

describe('an API key', () => {
  it('stops working within 5 s of its revocation, and of the deletion of its tenant', async () => {
    const tenantId = await givenTenant();
    const revoked = await givenKey({ tenant_id: tenantId, scopes: ['read'] });
    const orphan = await givenKey({ tenant_id: tenantId, scopes: ['read'] });
    const status = async (key: string) => (await api.call('GET', '/v1/endpoints', { key })).status;
    expect([await status(revoked.key), await status(orphan.key)]).toEqual([200, 200]);
    const startedAt = performance.now();
    expect((await api.call('DELETE', `/v1/keys/${revoked.id}`)).status).toBe(204);
    expect((await api.call('DELETE', `/v1/tenants/${tenantId}`)).status).toBe(204);
    await eventually(async () => {
      expect([await status(revoked.key), await status(orphan.key)]).toEqual([401, 401]);
    }, 6_000);
    expect(performance.now() - startedAt).toBeLessThan(6_000);
  });

  it('stops working at its end, although it was in use', async () => {
    const ends = new Date(Date.now() + 1_500).toISOString();
    const { key } = await givenKey({ scopes: ['read'], expires_at: ends });
    const status = async () => (await api.call('GET', '/v1/endpoints', { key })).status;
    expect(await status()).toBe(200);
    await eventually(async () => expect(await status()).toBe(401), 3_000);
  });

  it('notes when it was used', async () => {
    const { key, id } = await givenKey({ scopes: ['read'] });
    const other = await startTestApi(database.url);
    await other.call('GET', '/v1/endpoints', { key });
    await other.stop();
    const { rows } = await pool.query('select last_used_at from relay.api_keys where id = $1', [id]);
    expect(rows[0].last_used_at).toBeInstanceOf(Date);
  });

  it('of a tenant makes keys for no other tenant, and no admin keys', async () => {
    const { key } = await givenKey({ tenant_id: await givenTenant(), scopes: ['manage'] });
    for (const body of [
      { scopes: ['read'], admin: true },
      { scopes: ['read'], tenant_id: await givenTenant() },
    ]) {
      expect((await api.call('POST', '/v1/keys', { key, body })).status).toBe(403);
    }
    expect((await api.call('GET', '/v1/keys?all=true', { key })).status).toBe(403);
    expect((await api.call('GET', '/v1/keys?all=true')).status).toBe(200);
  });
});

describe('authentication', () => {
  it('refuses to start when nobody could be let in', async () => {
    const empty = await createTestDatabase();
    try {
      await expect(startTestApi(empty.url, { RELAY_ADMIN_KEY: '' })).rejects.toThrow(
        /RELAY_ADMIN_KEY.*RELAY_AUTH=off/,
      );
      const first = await startTestApi(empty.url);
      const admin = await first.call('POST', '/v1/keys', {
        body: { admin: true, scopes: ['manage', 'read'] },
      });
      await first.stop();
      const second = await startTestApi(empty.url, { RELAY_ADMIN_KEY: '' });
      expect((await second.call('GET', '/v1/tenants', { key: admin.json.key })).status).toBe(200);
      expect((await second.call('GET', '/v1/tenants')).status).toBe(401);
      await second.stop();
    } finally {
      await empty.drop();
    }
  });

  it('can be turned off by saying so', async () => {
    const open = await startTestApi(database.url, { RELAY_AUTH: 'off', RELAY_ADMIN_KEY: '' });
    expect((await open.call('GET', '/v1/tenants', { key: null })).status).toBe(200);
    expect((await open.call('POST', '/v1/events', { key: null, raw: '{"type":"x"}' })).status).toBe(202);
    await open.stop();
  });
});
