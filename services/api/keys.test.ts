import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createPool } from '../../lib/store/pool.ts';
import { type Answer, startTestApi, type TestApi } from '../testing/api.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';

let database: TestDatabase;
let pool: pg.Pool;
let api: TestApi;
let tenantId: string;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
  api = await startTestApi(database.url);
  tenantId = (await api.call('POST', '/v1/tenants', { body: { name: 'a tenant' } })).json.id;
});
afterAll(async () => {
  await api.stop();
  await pool.end();
  await database.drop();
});

const givenKey = async (body: object = {}) =>
  (await api.call('POST', '/v1/keys', { body: { tenant_id: tenantId, scopes: ['manage', 'read'], ...body } }))
    .json;

const works = async (key: string): Promise<boolean> =>
  (await api.call('GET', '/v1/endpoints', { key })).status === 200;

describe('rotating a key', () => {
  it('shows the new one once, and both work until the old one ends', async () => {
    const old = await givenKey({ name: 'ingest' });
    const made = await api.call('POST', `/v1/keys/${old.id}/rotate`, {
      key: old.key,
      body: { overlap_seconds: 60 },
    });
    expect(made.status).toBe(201);
    expect(made.json).toMatchObject({
      tenant_id: tenantId,
      name: 'ingest',
      scopes: ['manage', 'read'],
      expires_at: null,
      previous_id: old.id,
      key: expect.stringMatching(/^relay_/),
    });
    expect(Date.parse(made.json.previous_expires_at) - Date.now()).toBeLessThan(61_000);
    expect([await works(old.key), await works(made.json.key)]).toEqual([true, true]);
    expect((await api.call('GET', `/v1/keys/${old.id}`)).json.replaced_by).toBe(made.json.id);
    const again = await api.call('POST', `/v1/keys/${old.id}/rotate`);
    expect([again.status, again.json.code]).toEqual([409, 'key_replaced']);
    expect(again.json.detail).toContain(made.json.id);
  });

  it('without an overlap ends the old one within 5 s', async () => {
    const old = await givenKey();
    expect(await works(old.key)).toBe(true);
    await api.call('POST', `/v1/keys/${old.id}/rotate`, { body: { overlap_seconds: 0 } });
    await eventually(async () => expect(await works(old.key)).toBe(false), 6_000);
    expect((await api.call('POST', `/v1/keys/${old.id}/rotate`)).json.code).toBe('key_replaced');
  });

  it.each([
    { overlap_seconds: 604_801 },
    { overlap_seconds: -1 },
    { overlap_seconds: 0.5 },
    { expires_at: 'x' },
    { expires_at: '2020-01-01T00:00:00Z' },
    { scopes: ['read'] },
  ])('refuses %j', async (body) => {
    const { id } = await givenKey();
    expect((await api.call('POST', `/v1/keys/${id}/rotate`, { body })).json.code).toBe('invalid_request');
  });
});

describe('changing a key', () => {
  it('renames it and moves its end, and leaves the key as it is', async () => {
    const { id, key } = await givenKey();
    const end = new Date(Date.now() + 3_600_000).toISOString();
    const changed = await api.call('PATCH', `/v1/keys/${id}`, { body: { name: 'renamed', expires_at: end } });
    expect(changed.json).toMatchObject({ id, name: 'renamed', expires_at: end });
    expect(changed.text).not.toContain(key.slice(12));
    expect(await works(key)).toBe(true);
  });

  it('does not bring one back that has ended', async () => {
    const { id } = await givenKey();
    await api.call('DELETE', `/v1/keys/${id}`);
    for (const [method, path, body] of [
      ['PATCH', '', { expires_at: null }],
      ['POST', '/rotate', {}],
    ] as const) {
      const answer = await api.call(method, `/v1/keys/${id}${path}`, { body });
      expect([answer.status, answer.json.code]).toEqual([409, 'key_ended']);
    }
  });

  it('does not let its bearer lift a limit: that is an admin’s, and it is handed on', async () => {
    const { id, key } = await givenKey({ requests_per_second: 1_000 });
    const forbidden: Answer[] = [
      await api.call('PATCH', `/v1/keys/${id}`, { key, body: { requests_per_second: null } }),
      await api.call('POST', '/v1/keys', { key, body: { scopes: ['read'], requests_per_second: 9_999 } }),
    ];
    expect(forbidden.map(({ status }) => status)).toEqual([403, 403]);
    const made = await api.call('POST', '/v1/keys', { key, body: { scopes: ['read'] } });
    const heir = await api.call('POST', `/v1/keys/${id}/rotate`, { key });
    expect([made.json.requests_per_second, heir.json.requests_per_second]).toEqual([1_000, 1_000]);
  });
});

describe('the list of keys', () => {
  it('holds those past their end, and on request those that are revoked', async () => {
    const [expired, revoked] = [await givenKey(), await givenKey()];
    await pool.query('update relay.api_keys set expires_at = now() where id = $1', [expired.id]);
    await api.call('DELETE', `/v1/keys/${revoked.id}`);
    const headers = { 'relay-tenant-id': tenantId };
    const [plain, whole] = [
      await api.call('GET', '/v1/keys', { headers }),
      await api.call('GET', '/v1/keys?revoked=true', { headers }),
    ];
    expect([plain.text.includes(expired.id), plain.text.includes(revoked.id)]).toEqual([true, false]);
    const shown = whole.json.items.find(({ id }: { id: string }) => id === revoked.id);
    expect(shown.revoked_at).not.toBeNull();
  });
});

describe('a limit of requests', () => {
  async function statuses(count: number, key: string, path = '/v1/endpoints'): Promise<Answer[]> {
    const ask = () =>
      path === '/v1/events'
        ? api.call('POST', path, { key, raw: '{"type":"order.paid"}' })
        : api.call('GET', path, { key });
    return Promise.all(Array.from({ length: count }, ask));
  }

  it.each(['/v1/endpoints', '/v1/events'])(
    'answers 429 with retry-after on %s, and lets in what is in time',
    async (path) => {
      const { key } = await givenKey({ scopes: ['read', 'events:write'], requests_per_second: 0.5 });
      const answers = await statuses(5, key, path);
      const refused = answers.filter(({ status }) => status === 429);
      expect(refused.length).toBe(4);
      for (const { json, headers } of refused) {
        expect(json.code).toBe('rate_limited');
        expect(Number(headers.get('retry-after'))).toBe(2);
      }
      await eventually(
        async () => expect((await statuses(1, key, path))[0]!.status).toBeLessThan(300),
        5_000,
      );
    },
  );

  it('counts what is forbidden too', async () => {
    const { key } = await givenKey({ scopes: ['read'], requests_per_second: 0.01 });
    const answers = await statuses(2, key, '/v1/events');
    expect(answers.map(({ status }) => status).sort()).toEqual([403, 429]);
  });

  it('is by configuration for every key and token that has none of its own, and not for RELAY_ADMIN_KEY', async () => {
    const limited = await startTestApi(database.url, { RELAY_KEY_RATE_PER_SECOND: '2' });
    try {
      const [plain, special] = [await givenKey(), await givenKey({ requests_per_second: 100 })];
      const { token } = (await api.call('POST', '/v1/portal-tokens')).json;
      const passed = async (key?: string) => {
        const ask = () => limited.call('GET', '/v1/endpoints', key === undefined ? {} : { key });
        const answers = await Promise.all(Array.from({ length: 20 }, ask));
        return answers.filter(({ status }) => status === 200).length;
      };
      // Two APIs may live: each has its share.
      expect(await passed(plain.key)).toBeLessThan(5);
      expect(await passed(token)).toBeLessThan(5);
      expect(await passed(special.key)).toBe(20);
      expect(await passed()).toBe(20);
    } finally {
      await limited.stop();
    }
  });
});
