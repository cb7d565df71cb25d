import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { pause } from '../../lib/runtime/pause.ts';
import { createPool } from '../../lib/store/pool.ts';
import { mostInASecond } from '../testing/arrivals.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';
import { type Fleet, startFleet } from '../testing/fleet.ts';
import { createTestRedis } from '../testing/redis.ts';
import { type ScriptedSink, startScriptedSink } from '../testing/scripted-sink.ts';

let database: TestDatabase;
let pool: pg.Pool;
let fleet: Fleet;
let sink: ScriptedSink;

beforeAll(async () => {
  [database, sink] = await Promise.all([createTestDatabase(), startScriptedSink()]);
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
  fleet = await startFleet({ databaseUrl: database.url, redisUrl: createTestRedis().url });
  await Promise.all([
    fleet.start('api'),
    fleet.start('dispatcher'),
    fleet.start('dispatcher'),
    fleet.start('reconciler'),
  ]);
});
afterAll(async () => {
  await fleet.stop();
  await Promise.all([sink.close(), pool.end()]);
  await database.drop();
});

/** How much later than promised a busy machine may be with anything. */
const LATE_MS = 1_500;

interface Pace {
  rate_per_second: number;
  burst: number;
}

async function endpointAt(path: string, settings: Partial<Pace> & Record<string, unknown> = {}) {
  const type = `t.${path.slice(1)}`;
  const { id } = await fleet.endpoint('', { url: sink.url + path, event_types: [type], ...settings });
  return { id, path, type };
}

async function postTo({ type }: { type: string }, count: number): Promise<string[]> {
  // One after the other, so that the order of acceptance is known.
  const { deliveryIds, statuses } = await fleet.post(count, { type, connections: 1 });
  expect(statuses).toEqual({ 202: count });
  return deliveryIds;
}

async function change(id: string, action: string, body?: object) {
  const { status, json, text } = await fleet.call(
    'POST',
    `/v1/endpoints/${id}/${action}`,
    body ? { body } : {},
  );
  expect([status, text]).toEqual([200, expect.any(String)]);
  return json;
}

const shown = async (id: string) => (await fleet.call('GET', `/v1/endpoints/${id}`)).json;
const explain = async (id: string) => (await fleet.call('GET', `/v1/deliveries/${id}/explain`)).json;

interface Owed {
  id: string;
  version: string;
  waiting: string | null;
  due: number;
  attempts: number;
  deferrals: number;
}

/** What is owed to an endpoint, with the version of each row. */
async function owed(endpointId: string): Promise<Owed[]> {
  const { rows } = await pool.query<Owed>(
    `select delivery_id as id, xmin::text as version, waiting, date_part('epoch', due_at) * 1000 as due, attempts, deferrals
     from relay.queue where endpoint_id = $1 order by delivery_id`,
    [endpointId],
  );
  return rows;
}

/** Waits until so many deliveries of the endpoint wait in this way, and returns them. */
const allWaiting = (endpointId: string, kind: 'slot' | 'parked', count: number) =>
  eventually(async () => {
    const rows = await owed(endpointId);
    expect(rows.map((row) => row.waiting)).toEqual(Array(count).fill(kind));
    return rows;
  }, 15_000);

/** Waits until each delivery was answered, and returns when they arrived, in that order. */
const arrivals = (path: string, count: number, withinMs = 20_000) =>
  eventually(() => {
    const requests = sink.requests(path);
    expect(requests.length).toBeGreaterThanOrEqual(count);
    return requests.map(({ atMs, headers }) => ({ atMs, id: headers['relay-delivery-id']! }));
  }, withinMs);

/**
 * What waited came one by one: as a whole no faster than the rate, and no second holds more than a stall of 400 ms, here or in a dispatcher, would
 * have moved into it.
 */
function expectPaced(times: readonly number[], { rate_per_second, burst }: Pace): void {
  const spanMs = times.at(-1)! - times[0]!;
  expect(spanMs).toBeGreaterThan(((times.length - 1 - burst) / rate_per_second) * 1_000 - 400);
  expect(mostInASecond(times)).toBeLessThanOrEqual(1.4 * rate_per_second + burst);
}

/** The classes of each delivery's attempts, in order. */
async function classes(ids: readonly string[]): Promise<string[]> {
  const { rows } = await pool.query<{ classes: string }>(
    `select string_agg(class || coalesce(' ' || reason, ''), ', ' order by seq) as classes
     from relay.delivery_attempts where delivery_id = any($1::uuid[]) group by delivery_id`,
    [ids],
  );
  return rows.map((row) => row.classes);
}

const inSeconds = (seconds: number) => new Date(Date.now() + seconds * 1_000).toUTCString();

describe('an endpoint that answers with Retry-After (O-08)', { timeout: 60_000 }, () => {
  it.each([429, 503])(
    'and a date, with %i, is left alone until then by everybody, and then gets them one by one',
    async (status) => {
      const pace = { rate_per_second: 20, burst: 2 };
      const endpoint = await endpointAt(`/date-${status}`, pace);
      const date = inSeconds(7);
      sink.script(endpoint.path, { status, headers: { 'retry-after': date } }, { status: 200 });
      const [first] = await postTo(endpoint, 1);
      await eventually(async () => {
        const { paused, paused_reason, paused_until } = await shown(endpoint.id);
        expect([paused, paused_reason]).toEqual([true, 'retry_after']);
        expect(Date.parse(paused_until)).toBeGreaterThanOrEqual(Date.parse(date));
      });
      const siblings = await postTo(endpoint, 60);
      const waiting = await allWaiting(endpoint.id, 'slot', 61);
      expect(new Set(waiting.map(({ due }) => due)).size).toBe(61);
      for (const { due } of waiting) expect(due).toBeGreaterThan(Date.parse(date));
      for (const id of [first!, siblings[30]!]) {
        const { next_attempt_at } = (await fleet.call('GET', `/v1/deliveries/${id}`)).json.delivery;
        expect(Date.parse(next_attempt_at)).toBeGreaterThan(Date.parse(date));
      }

      const times = (await arrivals(endpoint.path, 62)).slice(1).map(({ atMs }) => atMs);
      expect(times.length).toBe(61);
      expect(times[0]).toBeGreaterThanOrEqual(Date.parse(date));
      expect(times[0]).toBeLessThan(Date.parse(date) + LATE_MS);
      expectPaced(times, pace);
      expect(await eventually(() => spentOf(siblings))).toEqual(Array(60).fill('deferred paused, success'));
      expect(await classes([first!])).toEqual(['retryable, success']);
    },
  );

  /** The attempts of deliveries, once all have ended. */
  async function spentOf(ids: readonly string[]): Promise<string[]> {
    const { rows } = await pool.query(
      `select from relay.deliveries where id = any($1::uuid[]) and status = 'succeeded' and attempts = 1`,
      [ids],
    );
    expect(rows.length).toBe(ids.length);
    return classes(ids);
  }

  it.each([
    ['a date an hour ago', inSeconds(-3_600)],
    ['a word', 'soon'],
    ['nothing', ''],
    ['two that disagree', ['5', '600']],
    ['no header', undefined],
  ])('and %s backs off as usual, at a real moment, and holds up no other', async (name, value) => {
    const endpoint = await endpointAt(`/${name.replaceAll(' ', '-')}`, {
      retry_policy: { max_attempts: 5, base_ms: 60_000, factor: 1, cap_ms: 60_000 },
    });
    const headers = value === undefined ? {} : { 'retry-after': value };
    sink.script(endpoint.path, { status: 429, headers }, { status: 200 });
    const [failed] = await postTo(endpoint, 1);
    const at = await eventually(async () => {
      const { json } = await fleet.call('GET', `/v1/deliveries/${failed}`);
      expect(json.attempts).toMatchObject([{ outcome_class: 'retryable', http_status: 429 }]);
      const [sent, next] = [json.attempts[0].at, json.delivery.next_attempt_at].map(Date.parse);
      expect(next).toBeGreaterThan(sent!);
      expect(next).toBeLessThanOrEqual(sent! + 60_001);
      return sent!;
    });
    const [sibling] = await postTo(endpoint, 1);
    const arrived = await arrivals(endpoint.path, 2);
    expect(arrived.map(({ id }) => id)).toContain(sibling);
    expect(arrived.find(({ id }) => id === sibling)!.atMs - at).toBeLessThan(LATE_MS);
    expect((await shown(endpoint.id)).paused).toBe(false);
  });
});

describe("an operator's pause", { timeout: 60_000 }, () => {
  it('without an end parks what comes, touches it no more, and lets it go in its order at the rate', async () => {
    const pace = { rate_per_second: 50, burst: 1 };
    const endpoint = await endpointAt('/parked', pace);
    sink.script(endpoint.path, { status: 200 });
    await change(endpoint.id, 'pause');
    const ids = await postTo(endpoint, 300);
    const parked = await allWaiting(endpoint.id, 'parked', 300);
    for (const row of parked) {
      expect(row).toMatchObject({ due: Number.POSITIVE_INFINITY, attempts: 0, deferrals: 1 });
    }
    expect(await classes(ids)).toEqual(Array(300).fill('deferred paused'));
    expect((await fleet.call('GET', `/v1/deliveries/${ids[7]}`)).json.delivery.next_attempt_at).toBeNull();
    expect(await explain(ids[7]!)).toMatchObject({
      status: 'pending',
      gate: { reason: 'paused' },
      waiting: 'parked',
      next_attempt_at: null,
      attempts: 0,
    });
    await pause(3_000);
    expect(await owed(endpoint.id)).toEqual(parked);
    expect(sink.requests(endpoint.path).length).toBe(0);

    const resumedAt = Date.now();
    await change(endpoint.id, 'resume');
    const arrived = await arrivals(endpoint.path, 300);
    expect(arrived[0]!.atMs - resumedAt).toBeLessThan(2_000);
    const times = arrived.map(({ atMs }) => atMs);
    expectPaced(times, pace);
    expect(times.at(-1)! - resumedAt).toBeLessThan((300 / 50 / 0.9) * 1_000 + LATE_MS);
    // Two dispatchers and a sweep five times a second: neighbours may change places.
    const displaced = arrived.map(({ id }, place) => Math.abs(ids.indexOf(id) - place));
    expect(Math.max(...displaced)).toBeLessThan(25);
  });

  it('with an end gives each a moment after it, and an earlier end brings them forward', async () => {
    const pace = { rate_per_second: 20, burst: 1 };
    const endpoint = await endpointAt('/ends', pace);
    sink.script(endpoint.path, { status: 200 });
    const later = await change(endpoint.id, 'pause', { for_seconds: 60 });
    const ids = await postTo(endpoint, 20);
    const waiting = await allWaiting(endpoint.id, 'slot', 20);
    expect(new Set(waiting.map(({ due }) => due)).size).toBe(20);
    for (const { due } of waiting) expect(due).toBeGreaterThan(Date.parse(later.paused_until));

    const sooner = await change(endpoint.id, 'pause', { for_seconds: 3 });
    const endMs = Date.parse(sooner.paused_until);
    const arrived = await arrivals(endpoint.path, 20);
    expect(arrived[0]!.atMs).toBeGreaterThanOrEqual(endMs);
    expect(arrived[19]!.atMs).toBeLessThan(endMs + 1_000 + LATE_MS);
    expectPaced(
      arrived.map(({ atMs }) => atMs),
      pace,
    );
    expect(await eventually(() => classesOnceEnded(ids))).toEqual(Array(20).fill('deferred paused, success'));
  });

  async function classesOnceEnded(ids: readonly string[]): Promise<string[]> {
    const { rows } = await pool.query('select from relay.queue where delivery_id = any($1::uuid[])', [ids]);
    expect(rows.length).toBe(0);
    return classes(ids);
  }

  it('lets an open request finish and records it, and parks its retry and what comes meanwhile', async () => {
    const endpoint = await endpointAt('/open', {
      retry_policy: { max_attempts: 5, base_ms: 100, factor: 1, cap_ms: 1_000 },
    });
    sink.script(
      endpoint.path,
      { status: 500, afterMs: 1_500 },
      { status: 200, afterMs: 1_500 },
      { status: 200 },
    );
    const ids = await postTo(endpoint, 2);
    await arrivals(endpoint.path, 2);
    await change(endpoint.id, 'pause');
    ids.push(...(await postTo(endpoint, 1)));
    await allWaiting(endpoint.id, 'parked', 2);
    expect((await classes(ids)).sort()).toEqual(['deferred paused', 'retryable, deferred paused', 'success']);
    expect(sink.requests(endpoint.path).length).toBe(2);
    await change(endpoint.id, 'resume');
    await arrivals(endpoint.path, 4);
  });
});

describe('why a delivery has not arrived', { timeout: 40_000 }, () => {
  it('is said of one that waits for the rate, of one held by the breaker, and of one that arrived', async () => {
    const slow = await endpointAt('/slow', { rate_per_second: 1, burst: 1 });
    sink.script(slow.path, { status: 200 });
    const ids = await postTo(slow, 12);
    await arrivals(slow.path, 1);
    const last = await eventually(async () => {
      const explained = await explain(ids[11]!);
      expect(explained).toMatchObject({ gate: { reason: 'rate_limit' }, waiting: 'slot', attempts: 0 });
      return explained;
    });
    expect(Date.parse(last.next_attempt_at)).toBeGreaterThan(Date.now());
    expect(await eventually(() => explainedAs(ids[0]!, 'succeeded'))).toMatchObject({
      gate: null,
      next_attempt_at: null,
      attempts: 1,
      last_outcome: { http_status: 200 },
    });

    const failing = await endpointAt('/failing');
    sink.script(failing.path, { status: 500 });
    await postTo(failing, 5);
    await eventually(async () => expect((await shown(failing.id)).breaker.state).toBe('open'));
    const [held] = await postTo(failing, 1);
    const explained = await eventually(async () => {
      const found = await explain(held!);
      expect(found).toMatchObject({ gate: { reason: 'breaker_open' }, waiting: 'slot', attempts: 0 });
      return found;
    });
    expect(Date.parse(explained.next_attempt_at)).toBeGreaterThan(
      Date.parse(explained.endpoint.breaker.until),
    );
  });

  async function explainedAs(id: string, status: string) {
    const explained = await explain(id);
    expect(explained.status).toBe(status);
    return explained;
  }
});
