import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createPool } from '../../lib/store/pool.ts';
import { MAX_OPEN_REPLAYS } from '../../lib/store/replay-jobs.ts';
import { replayStep } from '../../lib/store/replay-step.ts';
import { startTestApi, type TestApi } from '../testing/api.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { givenHistory } from '../testing/given-history.ts';

let database: TestDatabase;
let pool: pg.Pool;
let api: TestApi;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'sweep', max: 2, applicationName: 'test' });
  api = await startTestApi(database.url);
});
afterAll(async () => {
  await api.stop();
  await pool.end();
  await database.drop();
});

/** A tenant with two endpoints and, to each, 10 dead deliveries and 10 that succeeded. */
async function givenTenant() {
  const tenantId: string = (await api.call('POST', '/v1/tenants', { body: { name: 'a tenant' } })).json.id;
  const headers = { 'relay-tenant-id': tenantId };
  const endpointIds: string[] = [];
  for (const path of ['in', 'out']) {
    const body = { url: `https://sink.example.com/${path}` };
    endpointIds.push((await api.call('POST', '/v1/endpoints', { headers, body })).json.id);
  }
  const statuses = ['dead', 'succeeded', 'succeeded', 'dead'] as const;
  await givenHistory(pool, {
    tenantId,
    endpointIds,
    events: 20,
    statuses,
    types: ['order.paid', 'user.made'],
  });
  const call = (method: string, path: string, body?: object) =>
    api.call(method, path, { headers, ...(body ? { body } : {}) });
  return { tenantId, endpointIds, call, create: (body: object) => call('POST', '/v1/replays', body) };
}

async function workOff(id: string): Promise<void> {
  while ((await replayStep(pool, id, { take: 7, look: 100 }))?.finished === false);
}

describe('making a replay job', () => {
  it('is answered with a job that replays everything which passes the filter', async () => {
    const { call, create } = await givenTenant();
    const { status, json: made } = await create({ filter: {} });
    expect(status).toBe(202);
    expect(made).toMatchObject({
      state: 'running',
      dry_run: false,
      filter: { status: 'dead', endpoint_id: null, event_type: null, reason: null, from: null, to: null },
      rate_per_second: 100,
      expected: 20,
      selected: 0,
      replayed: 0,
      waiting: 0,
      finished_at: null,
    });
    await workOff(made.id);
    const { json: done } = await call('GET', `/v1/replays/${made.id}`);
    expect(done).toMatchObject({ state: 'finished', expected: 20, selected: 20, replayed: 20, error: null });
    expect(done.finished_at).not.toBeNull();
    expect((await call('GET', '/v1/dlq')).json.count).toBe(0);
  });

  it('takes every filter, and a pace of its own', async () => {
    const { endpointIds, create } = await givenTenant();
    const filter = {
      status: 'dead',
      endpoint_id: endpointIds[0],
      event_type: 'order.*',
      reason: 'gone',
      from: '2020-01-01T00:00:00.000Z',
      to: '2100-01-01T00:00:00.000Z',
    };
    const { status, json } = await create({ filter, rate_per_second: 0.5 });
    expect(status).toBe(202);
    expect(json).toMatchObject({ filter, rate_per_second: 0.5, expected: 10 });
    await workOff(json.id);
    const succeeded = await create({ filter: { status: 'succeeded', event_type: 'user.made' } });
    expect(succeeded.json).toMatchObject({ expected: 10, filter: { status: 'succeeded' } });
  });

  it('only counts when it is a dry run: exactly, and without a trace', async () => {
    const { endpointIds, call, create } = await givenTenant();
    const counts: [object, number][] = [
      [{}, 20],
      [{ status: 'succeeded' }, 20],
      [{ endpoint_id: endpointIds[1] }, 10],
      [{ reason: 'expired' }, 0],
      [{ to: '2020-01-01T00:00:00Z' }, 0],
      [{ from: '0000-01-01T00:00:00+23:59', to: '9999-12-31T23:59:59-23:59' }, 20],
      [{ status: 'succeeded', from: '0000-01-01T00:00:00+23:59', to: '9999-12-31T23:59:59-23:59' }, 20],
    ];
    for (const [filter, count] of counts) {
      const { status, json } = await create({ filter, dry_run: true });
      expect([filter, status, json]).toEqual([filter, 200, { dry_run: true, count }]);
    }
    expect((await call('GET', '/v1/replays')).json.count).toBe(0);
    expect((await call('GET', '/v1/dlq')).json.count).toBe(20);
  });

  it.each<[string, unknown, string]>([
    ['no filter', {}, 'filter'],
    ['a filter that is no object', { filter: 'all' }, 'filter'],
    ['a filter beside the filter', { filter: {}, endpoint_id: randomUUID() }, 'endpoint_id'],
    ['an unknown filter', { filter: { colour: 'red' } }, 'filter.colour'],
    ['a status that has not ended', { filter: { status: 'pending' } }, 'filter.status'],
    ['an unknown reason', { filter: { reason: 'bored' } }, 'filter.reason'],
    ['a reason for what succeeded', { filter: { status: 'succeeded', reason: 'gone' } }, 'filter.reason'],
    ['a bad pattern', { filter: { event_type: 'a.*.b' } }, 'filter.event_type'],
    ['an endpoint that is no uuid', { filter: { endpoint_id: 'x' } }, 'filter.endpoint_id'],
    ['a moment without a zone', { filter: { from: '2026-01-01T00:00:00' } }, 'filter.from'],
    [
      'a range that ends before it begins',
      { filter: { from: '2026-01-02T00:00:00Z', to: '2026-01-01T00:00:00Z' } },
      'filter.to',
    ],
    ['a pace of nothing', { filter: {}, rate_per_second: 0 }, 'rate_per_second'],
    ['too high a pace', { filter: {}, rate_per_second: 10_001 }, 'rate_per_second'],
    ['a dry run in words', { filter: {}, dry_run: 'yes' }, 'dry_run'],
  ])('is refused with %s', async (_, body, field) => {
    const { status, json } = await api.call('POST', '/v1/replays', { body });
    expect([status, json.code]).toEqual([400, 'invalid_request']);
    expect(json.errors.map((error: { field: string }) => error.field)).toContain(field);
  });

  it('is refused for an endpoint that the tenant does not have', async () => {
    const [{ create }, other] = [await givenTenant(), await givenTenant()];
    for (const endpoint_id of [other.endpointIds[0], randomUUID()]) {
      for (const dry_run of [false, true]) {
        const { status, json } = await create({ filter: { endpoint_id }, dry_run });
        expect([status, json.code]).toEqual([404, 'endpoint_not_found']);
      }
    }
  });

  it('is refused while the tenant has too many that are not over', async () => {
    const { call, create } = await givenTenant();
    const ids: string[] = [];
    for (let n = 0; n < MAX_OPEN_REPLAYS; n += 1) ids.push((await create({ filter: {} })).json.id);
    const { status, json } = await create({ filter: {} });
    expect([status, json.code]).toEqual([409, 'too_many_replays']);
    await call('POST', `/v1/replays/${ids[3]}/cancel`);
    expect((await create({ filter: {} })).status).toBe(202);
  });
});

describe('replay jobs', () => {
  it('are listed newest first, page by page', async () => {
    const { call, create } = await givenTenant();
    const ids: string[] = [];
    for (let n = 0; n < 5; n += 1) ids.unshift((await create({ filter: {} })).json.id);
    const seen: string[] = [];
    let cursor: string | null = null;
    do {
      const { json } = await call('GET', `/v1/replays?limit=2${cursor ? `&cursor=${cursor}` : ''}`);
      seen.push(...json.items.map((item: { id: string }) => item.id));
      cursor = json.next_cursor;
    } while (cursor);
    expect(seen).toEqual(ids);
    expect((await call('GET', '/v1/replays?cursor=x')).status).toBe(400);
  });

  it('can be paused, resumed and cancelled, each as often as one likes', async () => {
    const { call, create } = await givenTenant();
    const { id } = (await create({ filter: {} })).json;
    const turn = async (how: string) => {
      const { status, json } = await call('POST', `/v1/replays/${id}/${how}`);
      return [status, json.state ?? json.code];
    };
    await replayStep(pool, id, { take: 5, look: 100 });
    for (let n = 0; n < 2; n += 1) expect(await turn('pause')).toEqual([200, 'paused']);
    expect(await replayStep(pool, id, { take: 5, look: 100 })).toBeNull();
    for (let n = 0; n < 2; n += 1) expect(await turn('resume')).toEqual([200, 'running']);
    await replayStep(pool, id, { take: 5, look: 100 });
    for (let n = 0; n < 2; n += 1) expect(await turn('cancel')).toEqual([200, 'cancelled']);
    expect(await replayStep(pool, id, { take: 5, look: 100 })).toBeNull();
    for (const how of ['pause', 'resume']) expect(await turn(how)).toEqual([409, 'replay_over']);
    expect((await call('GET', `/v1/replays/${id}`)).json).toMatchObject({ selected: 10, replayed: 10 });

    const finished = (await create({ filter: {} })).json.id;
    await workOff(finished);
    for (const how of ['pause', 'resume', 'cancel']) {
      const { status, json } = await call('POST', `/v1/replays/${finished}/${how}`);
      expect([status, json.code]).toEqual([409, 'replay_over']);
    }
  });

  it('are nobody else’s to see or to switch', async () => {
    const [owner, stranger] = [await givenTenant(), await givenTenant()];
    const { id } = (await owner.create({ filter: {} })).json;
    for (const unknown of [id, randomUUID()]) {
      for (const [method, path] of [
        ['GET', ''],
        ['POST', '/pause'],
        ['POST', '/resume'],
        ['POST', '/cancel'],
      ] as const) {
        const { status, json } = await stranger.call(method, `/v1/replays/${unknown}${path}`);
        expect([status, json.code]).toEqual([404, 'replay_not_found']);
      }
    }
    expect((await stranger.call('GET', '/v1/replays')).json.count).toBe(0);
    expect((await owner.call('GET', `/v1/replays/${id}`)).json.state).toBe('running');
  });
});

describe('a portal token that is for one endpoint', () => {
  it('makes, sees and switches the replay jobs of that endpoint', async () => {
    const { endpointIds, call, create } = await givenTenant();
    const [own, other] = endpointIds;
    const token = await call('POST', '/v1/portal-tokens', { endpoint_ids: [own] });
    expect(token.status).toBe(201);
    const ask = (method: string, path: string, body?: object) =>
      api.call(method, path, { key: token.json.token, ...(body ? { body } : {}) });
    const outside = (await create({ filter: { endpoint_id: other } })).json.id;
    const everybody = (await create({ filter: {} })).json.id;

    expect((await ask('POST', '/v1/replays', { filter: {} })).status).toBe(403);
    expect((await ask('POST', '/v1/replays', { filter: { endpoint_id: other } })).status).toBe(404);
    const made = await ask('POST', '/v1/replays', { filter: { endpoint_id: own } });
    expect([made.status, made.json.expected]).toEqual([202, 10]);
    const listed = await ask('GET', '/v1/replays');
    expect(listed.json.items.map((item: { id: string }) => item.id)).toEqual([made.json.id]);
    for (const id of [outside, everybody]) {
      expect((await ask('GET', `/v1/replays/${id}`)).status).toBe(404);
      expect((await ask('POST', `/v1/replays/${id}/cancel`)).status).toBe(404);
      expect((await call('GET', `/v1/replays/${id}`)).json.state).toBe('running');
    }
    expect((await ask('POST', `/v1/replays/${made.json.id}/cancel`)).json.state).toBe('cancelled');
  });
});
