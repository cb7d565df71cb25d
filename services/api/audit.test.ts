import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { SCOPES } from '../../lib/domain/vocabulary.ts';
import { createPool } from '../../lib/store/pool.ts';
import { startTestApi, type TestApi } from '../testing/api.ts';
import { givenBelongings, givenNothing, requestOf } from '../testing/api-belongings.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { dumpOf } from '../testing/dump.ts';
import { isAudited, resourceOf } from './http/audit.ts';
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

interface Entry {
  tenant_id: string | null;
  actor: string;
  actor_id: string | null;
  action: string;
  resource: string;
  resource_id: string | null;
  changes: Record<string, unknown>;
}

/** What the log says of one request. */
async function entriesOf(requestId: string): Promise<Entry[]> {
  const { rows } = await pool.query<Entry>(
    'select tenant_id, actor, actor_id, action, resource, resource_id, changes from relay.audit_log where request_id = $1',
    [requestId],
  );
  return rows;
}

async function givenTenant(): Promise<string> {
  return (await api.call('POST', '/v1/tenants', { body: { name: 'a tenant' } })).json.id;
}

async function givenKey(body: object): Promise<{ id: string; key: string }> {
  return (await api.call('POST', '/v1/keys', { body: { scopes: [...SCOPES], ...body } })).json;
}

const endsLast = ({ method, path, name }: Route) =>
  method === 'delete' ? (path.endsWith('{id}') ? 3 : 2) : name === 'rotateKey' ? 1 : 0;
const guarded = routes.filter(({ access }) => access !== 'open').sort((a, b) => endsLast(a) - endsLast(b));

describe('every route that changes something', () => {
  it('is in the audit log when it did, with who, what and by which request, and no other route is', async () => {
    const tenantId = await givenTenant();
    const ids = await givenBelongings(api, pool, tenantId);
    const { id: keyId, key } = await givenKey({ admin: true });
    const done: string[] = [];
    for (const route of guarded) {
      const { method, path, options } = requestOf(route, ids);
      const requestId = randomUUID();
      const headers = { 'relay-tenant-id': tenantId, 'x-request-id': requestId };
      const { status } = await api.call(method, path, { ...options, key, headers });
      const entries = await entriesOf(requestId);
      const wanted = isAudited(route) && status < 300 ? 1 : 0;
      expect([route.name, entries.length]).toEqual([route.name, wanted]);
      if (wanted === 0) continue;
      done.push(route.name);
      expect(entries[0]).toMatchObject({ actor: 'key', actor_id: keyId, action: route.name });
      expect([route.name, entries[0]!.resource]).toEqual([route.name, resourceOf(route.path)]);
      if (route.params)
        expect([route.name, path.includes(entries[0]!.resource_id!)]).toEqual([route.name, true]);
    }
    // A delivery can be sent again once, and what is dead cannot be cancelled: nearly all the others did what they are for.
    expect(done.length).toBeGreaterThan(0.8 * guarded.filter(isAudited).length);
  });

  it('is not in it when it was refused', async () => {
    const nothing = givenNothing();
    for (const route of guarded.filter((one) => isAudited(one) && one.params)) {
      const { method, path, options } = requestOf(route, nothing);
      const requestId = randomUUID();
      const { status } = await api.call(method, path, { ...options, headers: { 'x-request-id': requestId } });
      expect([route.name, status, (await entriesOf(requestId)).length]).toEqual([route.name, 404, 0]);
    }
  });

  it('is about a kind of thing that has a word of its own', () => {
    const words = new Set(guarded.filter(isAudited).map(({ path }) => resourceOf(path)));
    for (const word of words) expect(word).toMatch(/^[a-z_]+[^s_]$/);
  });
});

describe('a change and its entry', () => {
  it('are there together or not at all', async () => {
    const tenantId = await givenTenant();
    const ids = await givenBelongings(api, pool, tenantId);
    await pool.query(
      `create function relay.test_refuse() returns trigger language plpgsql as $$ begin raise exception 'no entry'; end $$;
       create trigger test_refuse before insert on relay.audit_log for each row execute function relay.test_refuse()`,
    );
    try {
      const before = await dumpOf(pool, randomUUID());
      for (const route of guarded.filter((one) => isAudited(one) && !one.commitsItself)) {
        const { method, path, options } = requestOf(route, ids);
        const { status } = await api.call(method, path, {
          ...options,
          headers: { 'relay-tenant-id': tenantId },
        });
        expect([route.name, status]).toEqual([route.name, status === 409 ? 409 : 500]);
      }
      expect(await dumpOf(pool, randomUUID())).toEqual(before);
    } finally {
      await pool.query('drop trigger test_refuse on relay.audit_log; drop function relay.test_refuse()');
    }
  });
});

describe('an entry', () => {
  it('holds what was asked for, without any secret', async () => {
    const headers = { 'x-request-id': randomUUID() };
    const made = await api.call('POST', '/v1/endpoints', {
      headers,
      body: {
        url: 'https://sink.example.com/in',
        secret: 'brought-along-secret',
        headers: { 'x-tenant': 'header-secret' },
        event_types: ['order.*'],
      },
    });
    const [entry] = await entriesOf(headers['x-request-id']);
    expect(entry).toMatchObject({
      tenant_id: '00000000-0000-0000-0000-000000000001',
      actor: 'admin',
      actor_id: null,
      resource: 'endpoint',
      resource_id: made.json.id,
      changes: {
        url: 'https://sink.example.com/in',
        secret: '[redacted]',
        headers: { 'x-tenant': '[redacted]' },
        event_types: ['order.*'],
      },
    });
    const key = await givenKey({});
    const rotated = await api.call('POST', `/v1/keys/${key.id}/rotate`);
    const token = await api.call('POST', '/v1/portal-tokens');
    const secret = await api.call('POST', `/v1/endpoints/${made.json.id}/rotate-secret`);
    const { rows } = await pool.query('select a::text as row from relay.audit_log a');
    const log = rows.map(({ row }) => row).join('\n');
    const secrets = ['brought-along-secret', 'header-secret', key.key, rotated.json.key, token.json.token];
    for (const hidden of [...secrets, made.json.secret, secret.json.secret])
      expect(log).not.toContain(hidden);
  });

  it('says of a portal token that it was one, and stands in the log of the tenant that is concerned', async () => {
    const tenantId = await givenTenant();
    const ids = await givenBelongings(api, pool, tenantId);
    const token = await api.call('POST', '/v1/portal-tokens', { headers: { 'relay-tenant-id': tenantId } });
    await api.call('POST', `/v1/deliveries/${ids.deliveries}/replay`, { key: token.json.token });
    // By an admin that acts for the default tenant, on a key of another one and on that tenant itself.
    await api.call('DELETE', `/v1/keys/${ids.keys}`);
    await api.call('DELETE', `/v1/tenants/${tenantId}`);
    const { rows } = await pool.query(
      'select action, actor, actor_id from relay.audit_log where tenant_id = $1 order by at desc limit 3',
      [tenantId],
    );
    expect(rows).toEqual([
      { action: 'deleteTenant', actor: 'admin', actor_id: null },
      { action: 'revokeKey', actor: 'admin', actor_id: null },
      { action: 'replayDelivery', actor: 'portal', actor_id: token.json.id },
    ]);
  });

  it('of an admin key is in no tenant’s log', async () => {
    const { id } = await givenKey({ admin: true });
    const { json } = await api.call('GET', `/v1/audit?all=true&resource_id=${id}`);
    expect(json.items).toMatchObject([{ tenant_id: null, action: 'createKey', resource: 'key' }]);
    expect((await api.call('GET', `/v1/audit?resource_id=${id}`)).json.count).toBe(0);
  });
});

describe('the audit log', () => {
  it('is paged and narrowed, for one’s own tenant only', async () => {
    const tenantId = await givenTenant();
    const { key, id: keyId } = await givenKey({ tenant_id: tenantId });
    for (let n = 0; n < 5; n += 1)
      await api.call('POST', '/v1/portal-tokens', { key, body: { name: `${n}` } });
    const names: unknown[] = [];
    let cursor: string | null = '';
    let pages = 0;
    while (cursor !== null) {
      const more: string = cursor === '' ? '' : `&cursor=${cursor}`;
      const { json } = await api.call(
        'GET',
        `/v1/audit?action=createPortalToken&actor=${keyId}&limit=2${more}`,
        { key },
      );
      names.push(...json.items.map((entry: Entry) => entry.changes.name));
      cursor = json.next_cursor;
      pages += 1;
    }
    expect([names, pages]).toEqual([['4', '3', '2', '1', '0'], 3]);
    const of = async (query: string) => (await api.call('GET', `/v1/audit?${query}`, { key })).json.count;
    expect(await of('actor=admin')).toBe(2);
    expect(await of(`from=${new Date(Date.now() + 60_000).toISOString()}`)).toBe(0);
    expect((await api.call('GET', '/v1/audit?all=true', { key })).status).toBe(403);
  });

  it.each(['actor=somebody', 'resource_id=x', 'from=yesterday', 'cursor=xxxx', 'action=', 'nonsense=1'])(
    'refuses %s',
    async (query) => {
      expect((await api.call('GET', `/v1/audit?${query}`)).json.code).toBe('invalid_request');
    },
  );
});
