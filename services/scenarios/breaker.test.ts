import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createPool } from '../../lib/store/pool.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';
import { type Fleet, startFleet } from '../testing/fleet.ts';
import { healthRow } from '../testing/given-health.ts';
import { createTestRedis } from '../testing/redis.ts';
import { busiestSecond, type SwitchedSink, startSwitchedSink } from '../testing/switched-sink.ts';

/** Every cooldown is as long as the first, so that two of them fit into a test. */
const COOLDOWN_SECS = 3;
const ENV = {
  RELAY_REQUEST_TIMEOUT_SECS: '3',
  RELAY_CONNECT_TIMEOUT_SECS: '3',
  RELAY_READ_TIMEOUT_SECS: '3',
  RELAY_LEASE_TTL_SECS: '10',
  RELAY_BREAKER_COOLDOWN_SECS: String(COOLDOWN_SECS),
  RELAY_BREAKER_MAX_COOLDOWN_SECS: String(COOLDOWN_SECS),
};
/** What failed is not sent again while a test runs. */
const NO_RETRY = { retry_policy: { max_attempts: 5, base_ms: 600_000, factor: 1, cap_ms: 600_000 } };

let database: TestDatabase;
let pool: pg.Pool;
let sink: SwitchedSink;
let fleet: Fleet;

beforeAll(async () => {
  [database, sink] = await Promise.all([createTestDatabase(), startSwitchedSink()]);
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
  fleet = await startFleet({ databaseUrl: database.url, redisUrl: createTestRedis().url, env: ENV });
  const dispatchers = Array.from({ length: 4 }, () => fleet.start('dispatcher'));
  await Promise.all([fleet.start('api'), fleet.start('reconciler'), ...dispatchers]);
});
afterAll(async () => {
  await fleet.stop();
  await sink.close();
  await pool.end();
  await database.drop();
});

async function endpointAt(path: string, settings: Record<string, unknown> = {}) {
  const type = `t.${path.slice(1)}`;
  const { id } = await fleet.endpoint('', { url: sink.url + path, event_types: [type], ...settings });
  return { id, type, path };
}

type At = Awaited<ReturnType<typeof endpointAt>>;

/** Opens the endpoint's breaker with five deliveries that are not sent again. */
async function openBreaker({ id, type, path }: At): Promise<void> {
  sink.set(path, { status: 500 });
  await fleet.post(5, { type });
  await eventually(async () => expect(await healthRow(pool, id)).toMatchObject({ state: 'open', trips: 1 }));
  expect(sink.arrivals(path).length).toBe(5);
  // Their own retries are jittered: one of them may come at any moment, and would be counted with what is looked at.
  await eventually(async () => {
    const { rowCount } = await pool.query(
      `update relay.queue set due_at = now() + interval '1 day', look_at = now() + interval '1 day'
       where endpoint_id = $1 and attempts = 1 and lease_expires_at is null`,
      [id],
    );
    expect(rowCount).toBe(5);
  });
}

interface Owed {
  rows: number;
  sends: number;
  attempts: number;
}

async function owed(ids: readonly string[]): Promise<Owed> {
  const { rows } = await pool.query<Owed>(
    `select count(*)::integer as rows, coalesce(sum(sends), 0)::integer as sends, coalesce(sum(attempts), 0)::integer as attempts
     from relay.queue where delivery_id = any($1::uuid[])`,
    [ids],
  );
  return rows[0]!;
}

const nothingOwed = (ids: readonly string[], withinMs: number) =>
  eventually(async () => expect(await owed(ids)).toMatchObject({ rows: 0 }), withinMs);

describe('the end of a cooldown that 500 deliveries wait for (O-07)', { timeout: 90_000 }, () => {
  it('lets one request of the whole fleet through while the endpoint hangs, then drains within rate and cap', async () => {
    const rate = { rate_per_second: 50, burst: 20 };
    const at = await endpointAt('/hanging', { ...rate, max_in_flight: 8, ...NO_RETRY });
    const oneProbeEach: [requests: number, cooldowns: number][] = [];
    await openBreaker(at);
    sink.set(at.path, 'hold');
    // What probes is due again soon, and then waits with the others.
    const retry_policy = { max_attempts: 20, base_ms: 1_000, factor: 1, cap_ms: 1_000 };
    const patched = await fleet.call('PATCH', `/v1/endpoints/${at.id}`, { body: { retry_policy } });
    expect(patched.status).toBe(200);
    const { deliveryIds } = await fleet.post(500, { connections: 16, type: at.type });
    expect(deliveryIds.length).toBe(500);
    // A probe ends when its request times out; the breaker is open again from then on.
    const { trips } = await healthRow(pool, at.id);
    await eventually(async () => {
      const before = await healthRow(pool, at.id);
      const arrived = sink.arrivals(at.path).length;
      const { state, trips: reached } = await healthRow(pool, at.id);
      if (before.state === 'open' && state === 'open' && reached === before.trips)
        oneProbeEach.push([arrived - 5, reached - 1]);
      expect([state, reached]).toEqual(['open', trips + 2]);
    }, 25_000);
    const probes = trips + 1;
    for (const [requests, cooldowns] of oneProbeEach) expect(requests).toBe(cooldowns);
    expect(sink.arrivals(at.path).length).toBe(5 + probes);
    expect(sink.mostOpen(at.path)).toBe(1);
    // Each request was one attempt of its own delivery, and nobody else was charged for having waited.
    await eventually(async () =>
      expect(await owed(deliveryIds)).toEqual({ rows: 500, sends: probes, attempts: probes }),
    );

    sink.set(at.path, { status: 200, afterMs: 50 });
    await eventually(async () => expect((await healthRow(pool, at.id)).state).toBe('closed'), 10_000);
    const closedAt = performance.now();
    await nothingOwed(deliveryIds, 30_000);
    // At the endpoint's rate these are ten seconds; half as long again is for a busy machine.
    const drainedMs = performance.now() - closedAt;
    expect(drainedMs).toBeLessThan(15_000);
    expect(busiestSecond(sink.arrivals(at.path))).toBeLessThanOrEqual(70);
    expect(sink.mostOpen(at.path)).toBeLessThanOrEqual(8);
    expect(sink.arrivals(at.path).length).toBe(5 + probes + 500);
    const { rows } = await pool.query(
      'select status, count(*)::integer as n, sum(sends)::integer as sends from relay.deliveries where id = any($1::uuid[]) group by 1',
      [deliveryIds],
    );
    expect(rows).toEqual([{ status: 'succeeded', n: 500, sends: 500 + probes }]);
  });
});

describe('the breaker of an endpoint that answers', { timeout: 30_000 }, () => {
  it.each([404, 429])('stays closed however many %i it answers', async (status) => {
    const at = await endpointAt(`/says-${status}`, NO_RETRY);
    sink.set(at.path, { status });
    await fleet.post(40, { type: at.type });
    await eventually(() => expect(sink.arrivals(at.path).length).toBe(40));
    expect(await healthRow(pool, at.id)).toMatchObject({ state: 'closed', failures: 0, trips: 0 });
    sink.set(at.path, { status: 200 });
    const { deliveryIds } = await fleet.post(1, { type: at.type });
    await nothingOwed(deliveryIds, 2_000);
  });

  it('is not written by 500 successes', async () => {
    // A Node server takes one new connection a turn: hundreds at once would wait for seconds and be failures of the test's own.
    const at = await endpointAt('/healthy', { max_in_flight: 32 });
    const before = await healthRow(pool, at.id);
    const { deliveryIds } = await fleet.post(500, { type: at.type });
    await nothingOwed(deliveryIds, 15_000);
    expect((await healthRow(pool, at.id)).written).toBe(before.written);
  });

  it('counts failures in a row: a success in between begins the count anew', async () => {
    const at = await endpointAt('/mixed', NO_RETRY);
    const say = async (status: number, failures: number) => {
      sink.set(at.path, { status });
      await fleet.post(1, { type: at.type });
      await eventually(async () => expect(await healthRow(pool, at.id)).toMatchObject({ failures }));
    };
    for (const failures of [1, 2, 3, 4]) await say(500, failures);
    await say(200, 0);
    for (const failures of [1, 2, 3, 4]) await say(503, failures);
    await say(404, 0);
    for (const failures of [1, 2, 3, 4]) await say(500, failures);
    expect(await healthRow(pool, at.id)).toMatchObject({ state: 'closed', trips: 0 });
    await say(500, 5);
    expect(await healthRow(pool, at.id)).toMatchObject({ state: 'open', trips: 1 });
  });
});

describe('a fleet whose breaker is switched off', { timeout: 40_000 }, () => {
  it('sends whatever the answers, also where a breaker was left open', async () => {
    const own = await createTestDatabase();
    const ownPool = createPool({ url: own.url, purpose: 'general', max: 1, applicationName: 'test' });
    const env = { ...ENV, RELAY_BREAKER: 'off' };
    const plain = await startFleet({ databaseUrl: own.url, redisUrl: createTestRedis().url, env });
    try {
      await Promise.all([plain.start('api'), plain.start('dispatcher'), plain.start('reconciler')]);
      const path = '/unbroken';
      sink.set(path, { status: 500 });
      const { id } = await plain.endpoint('', { url: sink.url + path, ...NO_RETRY });
      await plain.post(30);
      await eventually(() => expect(sink.arrivals(path).length).toBe(30));
      expect(await healthRow(ownPool, id)).toMatchObject({ state: 'closed', trips: 0 });
      await ownPool.query(
        `update relay.endpoints set breaker_state = 'open', breaker_failures = 5, breaker_trips = 1, breaker_streak = 1,
           breaker_until = now() + interval '1 hour' where id = $1`,
        [id],
      );
      await plain.post(30);
      await eventually(() => expect(sink.arrivals(path).length).toBe(60));
    } finally {
      await plain.stop();
      await ownPool.end();
      await own.drop();
    }
  });
});

describe('an operator who resets a breaker', { timeout: 30_000 }, () => {
  it('has what was held go at once, however long the cooldown', async () => {
    const at = await endpointAt('/reset', NO_RETRY);
    await openBreaker(at);
    await pool.query(`update relay.endpoints set breaker_until = now() + interval '1 hour' where id = $1`, [
      at.id,
    ]);
    sink.set(at.path, { status: 200 });
    const { deliveryIds } = await fleet.post(40, { type: at.type });
    await eventually(async () => {
      const { rows } = await pool.query(
        `select from relay.queue where delivery_id = any($1::uuid[]) and waiting = 'slot' and due_at > now() + interval '50 min'`,
        [deliveryIds],
      );
      expect(rows.length).toBe(40);
    }, 15_000);
    expect(sink.arrivals(at.path).length).toBe(5);
    const reset = await fleet.call('POST', `/v1/endpoints/${at.id}/breaker/reset`);
    expect(reset.status).toBe(200);
    await nothingOwed(deliveryIds, 4_000);
    expect(sink.arrivals(at.path).length).toBe(45);
    expect(await healthRow(pool, at.id)).toMatchObject({ state: 'closed', failures: 0 });
  });
});
