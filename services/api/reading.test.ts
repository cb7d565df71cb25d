import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { z } from 'zod';
import { createPool } from '../../lib/store/pool.ts';
import { type Answer, startTestApi, type TestApi } from '../testing/api.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { givenClaim, givenDead, givenSucceeded } from '../testing/given-deliveries.ts';
import { DeadLetterShape, DeliveryShape, EventDetailShape, EventShape, pageOf } from './routes/shapes.ts';
import { StatsShape } from './routes/stats.ts';

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

interface Tenant {
  get: (path: string) => Promise<Answer>;
  post: (type: string, raw?: string | Buffer, headers?: Record<string, string>) => Promise<Answer['json']>;
  endpointId: string;
}

/** A tenant of its own with an endpoint for orders. */
async function givenTenant(): Promise<Tenant> {
  const { json } = await api.call('POST', '/v1/tenants', { body: { name: 'a tenant' } });
  const headers = { 'relay-tenant-id': json.id };
  const body = { url: 'https://sink.example.com/in', event_types: ['order.*'] };
  const endpoint = await api.call('POST', '/v1/endpoints', { headers, body });
  return {
    get: (path) => api.call('GET', path, { headers }),
    post: async (type, raw = '{}', more = {}) => {
      const options = { raw, headers: { ...headers, 'relay-event-type': type, ...more } };
      return (await api.call('POST', '/v1/events', options)).json;
    },
    endpointId: endpoint.json.id,
  };
}

function expectShape(shape: z.ZodType, answer: Answer): void {
  expect([answer.status, shape.safeParse(answer.json).error?.issues ?? []]).toEqual([200, []]);
}

const refusal = ({ status, json }: Answer) => ({
  status,
  code: json.code,
  fields: json.errors?.map((error: { field: string }) => error.field),
});
const refused = (...fields: string[]) => ({ status: 400, code: 'invalid_request', fields });

/** The ids of every page of a list. */
async function all(tenant: Tenant, path: string): Promise<string[]> {
  const ids: string[] = [];
  for (let cursor = ''; ; ) {
    const { status, json } = await tenant.get(path + cursor);
    expect(status).toBe(200);
    expect(json.count).toBe(json.items.length);
    ids.push(...json.items.map((item: { id?: string; delivery_id: string }) => item.id ?? item.delivery_id));
    if (json.next_cursor === null) return ids;
    cursor = `&cursor=${json.next_cursor}`;
  }
}

describe('GET /v1/events', () => {
  it('pages through the events of the tenant, narrowed by type, time and match', async () => {
    const tenant = await givenTenant();
    const types = ['order.a', 'user.b', 'order.c', 'order.a'];
    const ids: string[] = [];
    for (const type of types) ids.push((await tenant.post(type)).event_id);
    const of = (...places: number[]) => places.map((place) => ids[place]).toReversed();
    expectShape(pageOf(EventShape), await tenant.get('/v1/events'));
    expect(await all(tenant, '/v1/events?limit=1')).toEqual(of(0, 1, 2, 3));
    expect(await all(tenant, '/v1/events?limit=2&type=order.*')).toEqual(of(0, 2, 3));
    expect(await all(tenant, '/v1/events?limit=1&type=order.a')).toEqual(of(0, 3));
    expect(await all(tenant, '/v1/events?unmatched=true')).toEqual(of(1));
    expect(await all(tenant, '/v1/events?unmatched=false')).toEqual(of(0, 1, 2, 3));
    const [tomorrow, yesterday] = [86_400_000, -86_400_000].map((ms) =>
      new Date(Date.now() + ms).toISOString(),
    );
    expect(await all(tenant, `/v1/events?from=${yesterday}&to=${tomorrow}`)).toHaveLength(4);
    expect(await all(tenant, `/v1/events?to=${yesterday}`)).toEqual([]);
    expect(await all(await givenTenant(), '/v1/events?limit=1')).toEqual([]);
  });

  it.each([
    ['type=a%20b', 'type'],
    ['type=*.a', 'type'],
    ['type=~~a', 'type'],
    ['unmatched=yes', 'unmatched'],
    ['from=yesterday', 'from'],
    ['to=2026-02-30T00:00:00Z', 'to'],
    ['limit=many', 'limit'],
    ['cursor=AAAA', 'cursor'],
    ['colour=red', 'colour'],
  ])('refuses ?%s', async (query, field) => {
    expect(refusal(await api.call('GET', `/v1/events?${query}`))).toEqual(refused(field));
  });
});

describe('GET /v1/deliveries', () => {
  it('pages through the deliveries of the tenant, narrowed by everything that it names', async () => {
    const tenant = await givenTenant();
    const ids: string[] = [];
    for (const type of ['order.a', 'order.b', 'order.a', 'order.a'])
      ids.push(...(await tenant.post(type)).delivery_ids);
    await givenSucceeded(pool, ids[0]!);
    await givenDead(pool, ids[1]!, 'gone');
    await givenClaim(pool, ids[2]!);
    const of = (...places: number[]) => places.map((place) => ids[place]).toReversed();
    for (const path of [
      '/v1/deliveries?limit=1',
      `/v1/deliveries?limit=1&endpoint_id=${tenant.endpointId}`,
      `/v1/endpoints/${tenant.endpointId}/deliveries?limit=1`,
    ]) {
      expectShape(pageOf(DeliveryShape), await tenant.get(path));
      expect(await all(tenant, path)).toEqual(of(0, 1, 2, 3));
      expect(await all(tenant, `${path}&status=inflight`)).toEqual(of(2));
      expect(await all(tenant, `${path}&reason=gone`)).toEqual(of(1));
      expect(await all(tenant, `${path}&event_type=order.a`)).toEqual(of(0, 2, 3));
      expect(await all(tenant, `${path}&event_type=order.a&status=pending`)).toEqual(of(3));
      expect(await all(tenant, `${path}&to=2026-01-01T00:00:00Z`)).toEqual([]);
    }
    expect(await all(await givenTenant(), '/v1/deliveries?limit=1')).toEqual([]);
  });

  it('knows no endpoint of another tenant', async () => {
    const [owner, stranger] = [await givenTenant(), await givenTenant()];
    for (const path of [
      `/v1/deliveries?endpoint_id=${owner.endpointId}`,
      `/v1/endpoints/${owner.endpointId}/deliveries`,
      `/v1/endpoints/${owner.endpointId}/stats`,
    ]) {
      expect(refusal(await stranger.get(path))).toMatchObject({ status: 404, code: 'endpoint_not_found' });
    }
  });
});

describe('a cursor of a filtered list', () => {
  it('belongs to its list, its filters and its tenant', async () => {
    const tenant = await givenTenant();
    for (let n = 0; n < 3; n++) {
      const [deliveryId] = (await tenant.post('order.a')).delivery_ids;
      await givenDead(pool, deliveryId);
    }
    const other = await givenTenant();
    for (const list of [
      '/v1/events?limit=1&type=order.*',
      '/v1/deliveries?limit=1&event_type=order.*',
      `/v1/endpoints/${tenant.endpointId}/deliveries?limit=1&event_type=order.*`,
      '/v1/dlq?limit=1&event_type=order.a',
    ]) {
      const { next_cursor: cursor } = (await tenant.get(list)).json;
      expect(cursor).toMatch(/^[\w-]+$/);
      expect((await tenant.get(`${list.replace('limit=1', 'limit=9')}&cursor=${cursor}`)).json.count).toBe(2);
      const filterless = list.replace(/&(event_)?type=[^&]*/, '');
      for (const path of [filterless, '/v1/events?', '/v1/deliveries?', '/v1/dlq?']) {
        expect(refusal(await tenant.get(`${path}&cursor=${cursor}`))).toEqual(refused('cursor'));
      }
      if (!list.includes(tenant.endpointId)) {
        expect(refusal(await other.get(`${list}&cursor=${cursor}`))).toEqual(refused('cursor'));
      }
      const changed = cursor.slice(0, -1) + (cursor.endsWith('A') ? 'B' : 'A');
      expect(refusal(await tenant.get(`${list}&cursor=${changed}`))).toEqual(refused('cursor'));
    }
    expectShape(pageOf(DeadLetterShape), await tenant.get('/v1/dlq'));
  });
});

describe('GET /v1/events/{id}', () => {
  it('tells the size of the payload and how the deliveries stand', async () => {
    const tenant = await givenTenant();
    const { event_id: id, delivery_ids: ids } = await tenant.post('order.a', '{"größe": 1}');
    await givenSucceeded(pool, ids[0]);
    const answer = await tenant.get(`/v1/events/${id}`);
    expectShape(EventDetailShape, answer);
    expect(answer.json).toMatchObject({
      event: { id, type: 'order.a', payload_bytes: 14, matched: 1 },
      counts: { pending: 0, inflight: 0, succeeded: 1, dead: 0, capped: false },
      deliveries: [{ id: ids[0] }],
    });
    const { event_id: nobody } = await tenant.post('user.b');
    expect((await tenant.get(`/v1/events/${nobody}`)).json).toMatchObject({
      event: { matched: 0 },
      counts: { pending: 0, succeeded: 0 },
      deliveries: [],
    });
  });
});

describe('GET /v1/events/{id}/payload', () => {
  it('answers the bytes as they were posted, with their type, as a file that no browser runs', async () => {
    const tenant = await givenTenant();
    const bytes = Buffer.from([0, 255, 10, 13, 0xc3, 0x28, 60, 115]);
    const { event_id: id } = await tenant.post('order.a', bytes, { 'content-type': 'text/html; charset=x' });
    const response = await fetch(new URL(`/v1/events/${id}/payload`, api.url), {
      headers: {
        authorization: `Bearer ${api.config.adminKey}`,
        'relay-tenant-id': (await tenant.get(`/v1/endpoints/${tenant.endpointId}`)).json.tenant_id,
      },
    });
    expect(Buffer.from(await response.arrayBuffer())).toEqual(bytes);
    expect(Object.fromEntries(response.headers)).toMatchObject({
      'content-type': 'text/html; charset=x',
      'content-length': '8',
      'content-disposition': `attachment; filename="${id}"`,
      'x-content-type-options': 'nosniff',
      'content-security-policy': "default-src 'none'; sandbox",
    });
  });

  it('answers an empty one, and is 404 for another tenant', async () => {
    const [owner, stranger] = [await givenTenant(), await givenTenant()];
    const { event_id: id } = await owner.post('order.a', '');
    expect(await owner.get(`/v1/events/${id}/payload`)).toMatchObject({ status: 200, text: '' });
    for (const path of [`/v1/events/${id}`, `/v1/events/${id}/payload`]) {
      expect(refusal(await stranger.get(path))).toMatchObject({ status: 404, code: 'event_not_found' });
    }
  });
});

describe('statistics', () => {
  it('answer for an endpoint and for the tenant, over a window', async () => {
    const tenant = await givenTenant();
    const [first] = (await tenant.post('order.a')).delivery_ids;
    const [second] = (await tenant.post('order.a')).delivery_ids;
    await tenant.post('order.a');
    await givenSucceeded(pool, first);
    await givenDead(pool, second);
    for (const path of [`/v1/endpoints/${tenant.endpointId}/stats`, '/v1/stats']) {
      for (const [query, window] of [
        ['', '24h'],
        ['?window=1h', '1h'],
        ['?window=7d', '7d'],
      ]) {
        const answer = await tenant.get(path + query);
        expectShape(StatsShape, answer);
        expect(answer.json).toMatchObject({
          window,
          deliveries: { pending: 1, inflight: 0, succeeded: 1, dead: 1 },
          success_rate: 0.5,
          attempts: { success: 1, permanent: 1 },
          duration_ms: { p50: 12, p95: 12 },
          truncated: false,
        });
      }
      expect(refusal(await tenant.get(`${path}?window=1y`))).toEqual(refused('window'));
    }
    expect((await (await givenTenant()).get('/v1/stats')).json.success_rate).toBeNull();
  });
});

describe('a search that takes too long', () => {
  it('is answered 503 with a code of its own, while other routes answer', async () => {
    const tenant = await givenTenant();
    const holder = await pool.connect();
    await holder.query('begin');
    await holder.query('lock table relay.deliveries in access exclusive mode');
    const startedAt = performance.now();
    const [searched, other] = await Promise.all([tenant.get('/v1/deliveries'), tenant.get('/v1/endpoints')]);
    await holder.query('rollback');
    holder.release();
    expect(other.status).toBe(200);
    expect(refusal(searched)).toMatchObject({ status: 503, code: 'search_timeout' });
    expect(searched.headers.get('retry-after')).toBe('5');
    expect(performance.now() - startedAt).toBeLessThan(10_000);
  }, 20_000);
});
