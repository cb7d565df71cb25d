import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createPool } from '../../lib/store/pool.ts';
import { startTestApi, type TestApi } from '../testing/api.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';

let database: TestDatabase;
let pool: pg.Pool;
let api: TestApi;
/** A key of the default tenant, and one of another. */
let keys: { own: string; other: string };

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
  api = await startTestApi(database.url);
  const tenant = await api.call('POST', '/v1/tenants', { body: { name: 'other' } });
  const scopes = ['manage', 'read', 'events:write'];
  const own = await api.call('POST', '/v1/keys', { body: { scopes } });
  const other = await api.call('POST', '/v1/keys', { body: { scopes, tenant_id: tenant.json.id } });
  keys = { own: own.json.key, other: other.json.key };
});
afterAll(async () => {
  await api.stop();
  await pool.end();
  await database.drop();
});

const URL_ = 'https://sink.example.com/in';

async function givenEndpoint(settings: Record<string, unknown> = {}, key?: string) {
  const made = await api.call('POST', '/v1/endpoints', {
    body: { url: URL_, ...settings },
    ...(key ? { key } : {}),
  });
  expect([made.status, made.text]).toEqual([201, expect.anything()]);
  return made.json;
}

async function patch(id: string, body: Record<string, unknown>, key?: string) {
  return api.call('PATCH', `/v1/endpoints/${id}`, { body, ...(key ? { key } : {}) });
}

async function subscriptions(id: string): Promise<string[]> {
  const { rows } = await pool.query<{ pattern: string }>(
    'select pattern from relay.subscriptions where endpoint_id = $1 order by pattern',
    [id],
  );
  return rows.map((row) => row.pattern);
}

/** The types of the events that endpoints have deliveries of. */
async function receivedBy(id: string): Promise<string[]> {
  const { json } = await api.call('GET', `/v1/endpoints/${id}/deliveries`);
  return json.items.map((one: { event_type: string }) => one.event_type);
}

describe('an endpoint', () => {
  it('hears of nothing operational unless it says so', async () => {
    const endpoint = await givenEndpoint();
    expect([endpoint.operational_events, endpoint.operational_scope]).toEqual([[], 'tenant']);
    expect(await subscriptions(endpoint.id)).toEqual(['*']);
  });

  it('hears of what it says, beside its events or instead of them', async () => {
    const both = await givenEndpoint({
      event_types: ['order.*'],
      operational_events: ['endpoint.*', 'endpoint.opened'],
    });
    expect(await subscriptions(both.id)).toEqual(['order.*', '~endpoint.*']);
    const only = await givenEndpoint({ event_types: null, operational_events: ['*'] });
    expect([only.event_types, await subscriptions(only.id)]).toEqual([null, ['~*']]);
    const silent = await givenEndpoint({ event_types: null });
    expect(await subscriptions(silent.id)).toEqual([]);
  });

  it('can change its mind, and goes on as it was after it was disabled', async () => {
    const { id } = await givenEndpoint({ event_types: ['order.*'] });
    const changed = await patch(id, { operational_events: ['delivery.dead'] });
    expect(changed.json).toMatchObject({ event_types: ['order.*'], operational_events: ['delivery.dead'] });
    expect(await subscriptions(id)).toEqual(['order.*', '~delivery.dead']);
    await api.call('POST', `/v1/endpoints/${id}/disable`);
    expect(await subscriptions(id)).toEqual([]);
    await patch(id, { event_types: null });
    expect(await subscriptions(id)).toEqual([]);
    await api.call('POST', `/v1/endpoints/${id}/enable`);
    expect(await subscriptions(id)).toEqual(['~delivery.dead']);
    await patch(id, { operational_events: [], event_types: [] });
    expect(await subscriptions(id)).toEqual(['*']);
  });

  it.each([
    ['a type that there is not', { operational_events: ['endpoint.sold'] }, 'operational_events.0'],
    ['a prefix of nothing', { operational_events: ['*', 'order.*'] }, 'operational_events.1'],
    ['the mark itself', { operational_events: ['~*'] }, 'operational_events.0'],
    ['a number', { operational_events: [1] }, 'operational_events.0'],
    ['text', { operational_events: '*' }, 'operational_events'],
    ['null', { operational_events: null }, 'operational_events'],
    ['too many', { operational_events: Array.from({ length: 21 }, () => '*') }, 'operational_events'],
    ['a scope that there is not', { operational_scope: 'world' }, 'operational_scope'],
    ['an operational type among its events', { event_types: ['~endpoint.opened'] }, 'event_types.0'],
    ['nothing at all, spelled out', { event_types: ['~'] }, 'event_types.0'],
  ])('is refused with %s', async (_what, settings, field) => {
    const made = await api.call('POST', '/v1/endpoints', { body: { url: URL_, ...settings } });
    expect([made.status, made.json.errors[0].field]).toEqual([400, field]);
    const { id } = await givenEndpoint();
    const changed = await patch(id, settings);
    expect([changed.status, changed.json.errors[0].field]).toEqual([400, field]);
  });
});

describe('an operational event', () => {
  it('can be posted by nobody', async () => {
    for (const headers of [{ 'relay-event-type': '~endpoint.disabled' }, {}]) {
      const posted = await api.call('POST', '/v1/events', { raw: '{"type":"~endpoint.disabled"}', headers });
      expect([posted.status, posted.json.code]).toEqual([400, 'invalid_request']);
    }
    const batch = await api.call('POST', '/v1/events/batch', {
      body: [{ type: '~endpoint.disabled', payload: {} }],
    });
    expect(batch.json.results).toMatchObject([{ status: 400 }]);
    await expect(pool.query(`select relay.enqueue('~endpoint.disabled', '{}'::text)`)).rejects.toThrow(
      /event type/,
    );
  });

  it('reaches who subscribes, not who takes every event; and is listed and explained like any other', async () => {
    const hearer = await givenEndpoint({ event_types: null, operational_events: ['endpoint.disabled'] });
    const everything = await givenEndpoint({ event_types: ['*'] });
    const other = await givenEndpoint({ operational_events: ['*'] }, keys.other);
    const { id } = await givenEndpoint();
    await api.call('POST', `/v1/endpoints/${id}/disable`);
    expect(await receivedBy(hearer.id)).toEqual(['~endpoint.disabled']);
    expect(await receivedBy(everything.id)).toEqual([]);
    const { rows } = await pool.query('select from relay.deliveries where endpoint_id = $1', [other.id]);
    expect(rows).toEqual([]);

    const deliveries = await api.call('GET', `/v1/endpoints/${hearer.id}/deliveries`);
    const eventId = deliveries.json.items[0].event_id;
    const explained = await api.call('GET', `/v1/events/${eventId}/explain`);
    expect(explained.json).toMatchObject({ event_type: '~endpoint.disabled' });
    const matches = Object.fromEntries(
      explained.json.items.map((one: { endpoint_id: string }) => [one.endpoint_id, one]),
    );
    expect(matches[hearer.id]).toMatchObject({ matched: true, event_types: null });
    expect(matches[everything.id]).toMatchObject({ matched: false, reason: 'type' });
  });
});

describe('an endpoint that hears of all tenants', () => {
  const ALL = { operational_scope: 'all_tenants', operational_events: ['*'], event_types: null };

  it('is made by an admin only, and then told of everybody', async () => {
    const refused = await api.call('POST', '/v1/endpoints', { body: { url: URL_, ...ALL }, key: keys.own });
    expect([refused.status, refused.json.code]).toEqual([403, 'forbidden']);
    const operator = await givenEndpoint(ALL);
    expect(await subscriptions(operator.id)).toEqual(['~~*']);
    const theirs = await givenEndpoint({}, keys.other);
    await api.call('POST', `/v1/endpoints/${theirs.id}/disable`, { key: keys.other });
    expect(await receivedBy(operator.id)).toEqual(['~endpoint.disabled']);
  });

  it('is neither changed nor made of another by a key of its tenant: whoever can move it reads what all tenants do', async () => {
    const operator = await givenEndpoint(ALL);
    const refused = [
      await patch(operator.id, { url: 'https://elsewhere.example.com/' }, keys.own),
      await patch(operator.id, { operational_scope: 'tenant' }, keys.own),
      await api.call('POST', `/v1/endpoints/${operator.id}/rotate-secret`, { key: keys.own }),
      await patch((await givenEndpoint({}, keys.own)).id, { operational_scope: 'all_tenants' }, keys.own),
    ];
    expect(refused.map(({ status, json }) => [status, json.code])).toEqual(
      refused.map(() => [403, 'forbidden']),
    );
    const moved = await patch(operator.id, { operational_scope: 'tenant' });
    expect([moved.status, await subscriptions(operator.id)]).toEqual([200, ['~*']]);
  });
});
