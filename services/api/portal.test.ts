import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createPool } from '../../lib/store/pool.ts';
import { type Answer, startTestApi, type TestApi } from '../testing/api.ts';
import { type Belongings, givenBelongings, requestOf } from '../testing/api-belongings.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';
import { givenDelivery } from '../testing/given-deliveries.ts';
import { routes } from './routes.ts';

let database: TestDatabase;
let pool: pg.Pool;
let api: TestApi;
let tenantId: string;
/** Two customers of one tenant: the token is for the first one's endpoint. */
let own: Belongings;
let other: Belongings;
let token: string;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
  api = await startTestApi(database.url);
  tenantId = (await api.call('POST', '/v1/tenants', { body: { name: 'a tenant' } })).json.id;
  own = await givenBelongings(api, pool, tenantId);
  other = await givenBelongings(api, pool, tenantId);
  token = (await givenToken({ endpoint_ids: [own.endpoints] })).json.token;
});
afterAll(async () => {
  await api.stop();
  await pool.end();
  await database.drop();
});

const givenToken = (body: object): Promise<Answer> =>
  api.call('POST', '/v1/portal-tokens', { headers: { 'relay-tenant-id': tenantId }, body });

const ask = (method: string, path: string, more: object = {}): Promise<Answer> =>
  api.call(method, path, { key: token, ...more });

const open = routes.filter(({ access }) => access === 'read' || access === 'replay');
const reaching = (...kinds: string[]) => open.filter(({ reach }) => kinds.includes(reach ?? 'none'));

describe('a portal token for some endpoints', () => {
  it('reaches one’s own endpoint, its deliveries and their events', async () => {
    for (const route of reaching('endpoint', 'delivery', 'event')) {
      const { method, path, options } = requestOf(route, own);
      const { status, json } = await ask(method, path, options);
      expect([route.name, status < 300 || status === 409 ? 'there' : json]).toEqual([route.name, 'there']);
    }
  });

  it('finds nothing of another endpoint of the same tenant, in the words for what does not exist', async () => {
    for (const route of reaching('endpoint', 'delivery', 'event')) {
      const { method, path, options } = requestOf(route, other);
      const there = await ask(method, path, options);
      const nowhere = await ask(method, path.replace(/[0-9a-f-]{36}/, randomUUID()), options);
      expect([route.name, there.status, there.json.code]).toEqual([route.name, 404, nowhere.json.code]);
      expect([route.name, there.json.detail]).toEqual([route.name, nowhere.json.detail]);
    }
  });

  it('lists and sends again what is of one endpoint, when it names one of its own', async () => {
    for (const route of reaching('filter')) {
      const { method, path } = requestOf(route, own);
      const answers = await Promise.all([
        ask(method, path),
        ask(method, `${path}?endpoint_id=${other.endpoints}`),
        ask(method, `${path}?endpoint_id=${randomUUID()}`),
        ask(method, `${path}?endpoint_id=${own.endpoints}`),
      ]);
      expect([route.name, ...answers.map(({ status }) => status).slice(0, 3)]).toEqual([
        route.name,
        403,
        404,
        404,
      ]);
      expect([route.name, answers[3]!.status < 300]).toEqual([route.name, true]);
      expect(answers[3]!.text).not.toContain(other.deliveries);
    }
    const body = { endpoint_id: other.endpoints };
    const query = `/v1/dlq/replay?endpoint_id=${own.endpoints}`;
    expect((await ask('POST', query, { body })).status).toBe(404);
  });

  it('lists only its own where a list needs no filter', async () => {
    for (const route of reaching('own').filter(({ method, params }) => method === 'get' && !params)) {
      const { path } = requestOf(route, own);
      const { status, text } = await ask('GET', path);
      expect([route.name, status, text.includes(other.endpoints)]).toEqual([route.name, 200, false]);
    }
    const listed = await ask('GET', '/v1/endpoints');
    expect(listed.json.items.map(({ id }: { id: string }) => id)).toEqual([own.endpoints]);
    expect(listed.text).not.toMatch(/secret"|whsec_/);
  });

  it('knows, pauses, resumes and cancels the replay jobs of its own, and makes no others', async () => {
    for (const route of reaching('own').filter(({ params }) => params)) {
      const [mine, foreign] = [requestOf(route, own), requestOf(route, other)];
      const { status, json } = await ask(mine.method, mine.path, mine.options);
      expect([route.name, status < 300 || status === 409 ? 'there' : json]).toEqual([route.name, 'there']);
      expect([route.name, (await ask(foreign.method, foreign.path, foreign.options)).status]).toEqual([
        route.name,
        404,
      ]);
    }
    const make = async (endpoint_id?: string) =>
      (await ask('POST', '/v1/replays', { body: { filter: { status: 'dead', endpoint_id } } })).status;
    expect([await make(), await make(other.endpoints), await make(own.endpoints)]).toEqual([403, 404, 202]);
  });

  it('sees of an event that went to both only what went to its own', async () => {
    const { eventId } = await givenDelivery(pool, { endpointId: own.endpoints, tenantId });
    await pool.query(
      `insert into relay.deliveries (id, event_id, endpoint_id, tenant_id, status)
       select overlay(id::text placing '0002' from 33)::uuid, event_id, $2, tenant_id, 'pending'
       from relay.deliveries where event_id = $1`,
      [eventId, other.endpoints],
    );
    const { status, text } = await ask('GET', `/v1/events/${eventId}`);
    expect([status, text.includes(own.endpoints), text.includes(other.endpoints)]).toEqual([
      200,
      true,
      false,
    ]);
    expect((await ask('GET', `/v1/events/${eventId}/payload`)).status).toBe(200);
  });

  it('is kept out of what is about more than its endpoints', async () => {
    for (const route of reaching('none')) {
      const { method, path, options } = requestOf(route, own);
      const { status, json } = await ask(method, path, options);
      expect([route.name, status, json.code]).toEqual([route.name, 403, 'forbidden']);
    }
  });
});

describe('a portal token', () => {
  it('is distinguishable, shown once, and stored as its hash', async () => {
    const made = await givenToken({ name: 'for the settings page' });
    expect(made.json).toMatchObject({
      tenant_id: tenantId,
      name: 'for the settings page',
      scopes: ['read', 'replay'],
      endpoint_ids: null,
      token: expect.stringMatching(/^rlp_[A-Za-z0-9_-]{43}$/),
    });
    const { rows } = await pool.query('select t::text as row from relay.portal_tokens t where id = $1', [
      made.json.id,
    ]);
    expect(rows[0].row).not.toContain(made.json.token.slice(12));
    const listed = await api.call('GET', '/v1/portal-tokens', { headers: { 'relay-tenant-id': tenantId } });
    expect(listed.text).toContain(made.json.id);
    expect(listed.text).not.toContain(made.json.token.slice(12));
  });

  it('lives for an hour unless it is told otherwise, and a day at most', async () => {
    const lives = async (body: object) => {
      const { json } = await givenToken(body);
      return Math.round((Date.parse(json.expires_at) - Date.parse(json.created_at)) / 1000);
    };
    expect([await lives({}), await lives({ expires_in_seconds: 86_400 })]).toEqual([3_600, 86_400]);
    for (const seconds of [59, 86_401, 60.5, null]) {
      expect((await givenToken({ expires_in_seconds: seconds })).status).toBe(400);
    }
  });

  it('cannot be given what a key can', async () => {
    for (const body of [
      { scopes: ['manage'] },
      { scopes: ['read', 'events:write'] },
      { scopes: [] },
      { tenant_id: tenantId },
      { admin: true },
      { endpoint_ids: [] },
    ]) {
      expect([body, (await givenToken(body)).status]).toEqual([body, 400]);
    }
    const long = { endpoint_ids: Array.from({ length: 101 }, () => randomUUID()) };
    expect((await givenToken(long)).status).toBe(400);
    expect((await givenToken({ endpoint_ids: [own.endpoints, randomUUID()] })).json.code).toBe(
      'endpoint_not_found',
    );
  });

  it('stops working within 5 s of its revocation, can be revoked once, and is listed no longer', async () => {
    const headers = { 'relay-tenant-id': tenantId };
    const { id, token: mine } = (await givenToken({})).json;
    const status = async () => (await api.call('GET', '/v1/endpoints', { key: mine })).status;
    expect(await status()).toBe(200);
    expect((await api.call('DELETE', `/v1/portal-tokens/${id}`, { headers })).status).toBe(204);
    expect((await api.call('DELETE', `/v1/portal-tokens/${id}`, { headers })).json.code).toBe(
      'portal_token_not_found',
    );
    expect((await api.call('GET', '/v1/portal-tokens', { headers })).text).not.toContain(id);
    await eventually(async () => expect(await status()).toBe(401), 6_000);
  });

  it('is swept up a week after its end, when others are made', async () => {
    const old = (await givenToken({})).json.id;
    const recent = (await givenToken({})).json.id;
    const end = (id: string, days: number) =>
      pool.query(
        `update relay.portal_tokens set created_at = now() - $2 * interval '1 day', expires_at = now() - $2 * interval '1 day'
         where id = $1`,
        [id, days],
      );
    await end(old, 8);
    await end(recent, 6);
    await givenToken({});
    const { rows } = await pool.query('select id from relay.portal_tokens where id = any($1)', [
      [old, recent],
    ]);
    expect(rows.map((row) => row.id)).toEqual([recent]);
  });
});
