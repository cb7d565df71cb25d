import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { PORTAL_SCOPES, SCOPES, type Scope } from '../../lib/domain/vocabulary.ts';
import { createPool } from '../../lib/store/pool.ts';
import { ADMIN_KEY, startTestApi, type TestApi } from '../testing/api.ts';
import { type Belongings, givenBelongings, givenNothing, requestOf } from '../testing/api-belongings.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';
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

async function givenToken(tenantId: string, body: object = {}): Promise<{ id: string; token: string }> {
  const headers = { 'relay-tenant-id': tenantId };
  const made = await api.call('POST', '/v1/portal-tokens', { headers, body });
  expect(made.status).toBe(201);
  return made.json;
}

async function givenOwner(): Promise<{ tenantId: string; ids: Belongings }> {
  const tenantId = await givenTenant();
  return { tenantId, ids: await givenBelongings(api, pool, tenantId) };
}

const guarded = routes.filter((route) => route.access !== 'open');
// What ends a thing goes last, so that each route finds what it is asked about; and what ends a part of it goes before.
const rank = ({ method, path, name }: Route) =>
  method === 'delete' ? (path.endsWith('{id}') ? 3 : 2) : name === 'rotateKey' ? 1 : 0;
const inOrder = [...guarded].sort((a, b) => rank(a) - rank(b));

type Verdict = 'lets in' | 'keeps out';

/** What each route made of one bearer: let in, whatever came of it then, or kept out with the 403 that tells nothing else. */
async function verdicts(
  bearer: string,
  ids: Belongings,
  headers: Record<string, string> = {},
): Promise<Record<string, Verdict>> {
  const found: Record<string, Verdict> = {};
  for (const route of inOrder) {
    const { method, path, options } = requestOf(route, ids);
    const { status, json } = await api.call(method, path, { ...options, key: bearer, headers });
    if (status === 403) expect([route.name, json.code]).toEqual([route.name, 'forbidden']);
    // 409: let in, but this one is past it, such as a delivery that an earlier route has sent again.
    else
      expect([route.name, status < 300 || status === 409 ? 'let in' : json]).toEqual([route.name, 'let in']);
    found[route.name] = status === 403 ? 'keeps out' : 'lets in';
  }
  return found;
}

const expected = (judge: (route: Route) => boolean): Record<string, Verdict> =>
  Object.fromEntries(guarded.map((route) => [route.name, judge(route) ? 'lets in' : 'keeps out']));

const covers = (scopes: readonly Scope[], access: Route['access']) =>
  scopes.includes(access as Scope) || (access === 'replay' && scopes.includes('manage'));

describe('every route', () => {
  it('answers 401 to whoever has no key that works, before it reads the body', async () => {
    const gone = await givenTenant();
    const orphans = [
      (await givenKey({ tenant_id: gone, scopes: [...SCOPES] })).key,
      (await givenToken(gone)).token,
    ];
    await api.call('DELETE', `/v1/tenants/${gone}`);
    const revoked = [
      await givenKey({ admin: true, scopes: [...SCOPES] }),
      await givenKey({ scopes: [...SCOPES] }),
    ];
    const expired = await givenKey({ scopes: [...SCOPES] });
    const owner = await givenTenant();
    const endedTokens = [await givenToken(owner), await givenToken(owner)];
    for (const { id } of revoked) await api.call('DELETE', `/v1/keys/${id}`);
    await pool.query('update relay.api_keys set expires_at = now() where id = $1', [expired.id]);
    await pool.query('update relay.portal_tokens set revoked_at = now() where id = $1', [endedTokens[0]!.id]);
    await pool.query('update relay.portal_tokens set expires_at = now() where id = $1', [endedTokens[1]!.id]);
    const unusable = [
      null,
      `relay_${'x'.repeat(43)}`,
      `rlp_${'x'.repeat(43)}`,
      'short',
      `${ADMIN_KEY}x`,
      ...orphans,
      ...revoked.map(({ key }) => key),
      expired.key,
      ...endedTokens.map(({ token }) => token),
    ];
    for (const route of guarded) {
      const { method, path, options } = requestOf(route, givenNothing());
      for (const key of unusable) {
        const answer = await api.call(method, path, { ...options, key });
        expect([route.name, answer.status, answer.json.code]).toEqual([route.name, 401, 'unauthorized']);
        expect(answer.headers.get('www-authenticate')).toBe('Bearer');
      }
      const headers = { authorization: 'Basic eA==' };
      expect((await api.call(method, path, { ...options, key: null, headers })).status).toBe(401);
    }
  });

  it.each(SCOPES)(
    'lets in a tenant’s key with the scope %s exactly where that is asked for',
    async (scope) => {
      const { tenantId, ids } = await givenOwner();
      const { key } = await givenKey({ tenant_id: tenantId, scopes: [scope] });
      expect(await verdicts(key, ids)).toEqual(expected(({ access }) => covers([scope], access)));
    },
  );

  it.each(SCOPES)(
    'lets in an admin key with the scope %s by the same rule, for any tenant',
    async (scope) => {
      const { tenantId, ids } = await givenOwner();
      const { key } = await givenKey({ admin: true, scopes: [scope] });
      expect(await verdicts(key, ids, { 'relay-tenant-id': tenantId })).toEqual(
        expected(({ access }) => (access === 'admin' ? scope === 'manage' : covers([scope], access))),
      );
    },
  );

  it.each([[[...PORTAL_SCOPES]], [['read']], [['replay']]] as const)(
    'lets in a portal token with the scopes %j for reading and replaying only',
    async (scopes) => {
      const { tenantId, ids } = await givenOwner();
      const { token } = await givenToken(tenantId, { scopes });
      expect(await verdicts(token, ids)).toEqual(expected(({ access }) => covers([...scopes], access)));
    },
  );

  it('is open only where it tells nothing of anybody', () => {
    const open = routes.filter((route) => route.access === 'open').map((route) => route.path);
    expect(open.filter((path) => !/^\/(docs|openapi\.json)/.test(path))).toEqual([
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
