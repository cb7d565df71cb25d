import type pg from 'pg';
import { pino } from 'pino';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import type { RateLimiter } from '../../lib/domain/rate-bucket.ts';
import type { EndpointJobKind } from '../../lib/domain/vocabulary.ts';
import { rateMetrics } from '../../lib/metrics/rate.ts';
import { EMPTY_GAUGES, reconcileMetrics } from '../../lib/metrics/reconcile.ts';
import { Metrics } from '../../lib/metrics/registry.ts';
import { claimByIds } from '../../lib/store/claims.ts';
import { createDatabase, type Database } from '../../lib/store/database.ts';
import { defer } from '../../lib/store/defer.ts';
import { listJobs, requestJob } from '../../lib/store/endpoint-jobs.ts';
import { createPool } from '../../lib/store/pool.ts';
import { keep } from '../../lib/store/settle.ts';
import { readHorizons } from '../../lib/store/slots.ts';
import { endOwed } from '../../lib/store/sweep.ts';
import { FleetRateLimiter } from '../fleet/rate-limiter.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';
import { deferral, givenEndpoint, givenOwed, lease, PROCESS, retry } from '../testing/given-queue.ts';
import { givenWaiting } from '../testing/stored-rows.ts';
import { EndpointJobs } from './jobs.ts';

let database: TestDatabase;
let pool: pg.Pool;
let db: Database;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'sweep', max: 6, applicationName: 'test' });
  db = createDatabase(pool);
});
beforeEach(async () => {
  await pool.query('truncate relay.endpoint_jobs, relay.queue');
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

function givenLimiter(): RateLimiter {
  return new FleetRateLimiter({
    link: null,
    readHorizons: (endpoints) => readHorizons(pool, endpoints),
    liveDispatchers: () => 1,
    metrics: rateMetrics(new Metrics({ processMetrics: false })),
  });
}

function givenJobs(options: { limiter?: RateLimiter; leads?: boolean } = {}): EndpointJobs {
  return new EndpointJobs({
    pool,
    limiter: options.limiter ?? givenLimiter(),
    leader: () => options.leads ?? true,
    metrics: reconcileMetrics(new Metrics({ processMetrics: false }), {
      leader: () => true,
      gauges: () => EMPTY_GAUGES,
    }),
    log: pino({ level: 'silent' }),
  });
}

const IDLE_MS = 500;

/** Rounds as the loop runs them, without its rests, until one finds nothing to do. */
async function workUntilIdle(jobs: EndpointJobs): Promise<number> {
  for (let rounds = 1; ; rounds += 1) if ((await jobs.round()) === IDLE_MS) return rounds;
}

const change = (endpointId: string, columns: string) =>
  pool.query(`update relay.endpoints set ${columns} where id = $1`, [endpointId]);

/** What the API does when deliveries may go earlier: the columns and the job in one transaction. */
const retimed = (endpointId: string, columns: string) =>
  db.transaction().execute(async (trx) => {
    const assignments = `${columns}, version = version + 1, slot_version = slot_version + 1`;
    await change(endpointId, assignments);
    await requestJob(trx, endpointId, 'retime');
  });

const openJobs = async () => (await listJobs(pool, { after: null, limit: 100 })).map((job) => job.kind);

async function givenWaitingFor(
  count: number,
  options: { rate?: number; parked?: boolean } = {},
): Promise<{ endpointId: string; ids: string[] }> {
  const endpointId = await givenEndpoint(pool, { patterns: ['nothing.else'] });
  await change(endpointId, `rate_per_second = ${options.rate ?? 10}`);
  const ids = await givenOwed(pool, count, { endpointId });
  await givenWaiting(pool, ids, { parked: options.parked ?? false });
  return { endpointId, ids };
}

interface Slot {
  id: string;
  slot_version: number;
  /** Ms from now. */
  due_in: number;
}

/** In the order in which they go. */
async function slotsOf(endpointId: string): Promise<Slot[]> {
  const { rows } = await pool.query<Slot>(
    `select delivery_id as id, slot_version,
       case when due_at = 'infinity' then 'Infinity' else date_part('epoch', due_at - now()) * 1000 end as due_in
     from relay.queue where endpoint_id = $1 and waiting is not null order by due_at, delivery_id`,
    [endpointId],
  );
  return rows;
}

/**
 * By how many places a delivery is from where it stood before. Slots are delays from the moment of the question, written a moment later: where two
 * steps meet, a moment that was not alike lets neighbours overlap.
 */
/** How far any delivery came from its place in the order, but for the few that may be put last because they were about to go. */
function farthestMove(slots: readonly Slot[], ids: readonly string[], options = { putLast: 0 }): number {
  const place = new Map(ids.map((id, n) => [id, n]));
  const moves = slots.map(({ id }, n) => Math.abs(place.get(id)! - n)).sort((a, b) => b - a);
  return moves[options.putLast]!;
}

/** The distances between neighbours, ms, in the tenths that the spacing of slots is exact to. */
function gapsOf(slots: readonly Slot[]): number[] {
  const gaps = slots.slice(1).map((slot, n) => Math.round((slot.due_in - slots[n]!.due_in) * 10) / 10);
  return [...new Set(gaps)];
}

describe('a re-time job', () => {
  it('gives what waits new slots at the new rate, from now on, in the order of the old', async () => {
    const { endpointId, ids } = await givenWaitingFor(1_200);
    await retimed(endpointId, 'rate_per_second = 50');
    await workUntilIdle(givenJobs());
    const slots = await slotsOf(endpointId);
    expect(farthestMove(slots, ids)).toBeLessThan(50);
    expect(new Set(slots.map((slot) => slot.slot_version))).toEqual(new Set([2]));
    expect(slots[0]!.due_in).toBeLessThan(1_000);
    const span = slots.at(-1)!.due_in - slots[0]!.due_in;
    expect(span).toBeGreaterThan(1_199 * 20 - 1_000);
    expect(span).toBeLessThan(1_199 * 20 + 2_000);
    expect(new Set(slots.map((slot) => slot.due_in)).size).toBe(1_200);
    expect(await openJobs()).toEqual([]);
  });

  it('lets what was parked go again, one by one in the order of acceptance, the first within a second', async () => {
    const { endpointId, ids } = await givenWaitingFor(400, { parked: true });
    await retimed(endpointId, 'paused_until = null, paused_reason = null');
    await workUntilIdle(givenJobs());
    const slots = await slotsOf(endpointId);
    expect(slots.map(({ id }) => id)).toEqual(ids);
    expect(slots[0]!.due_in).toBeLessThan(1_000);
    expect(gapsOf(slots)).toEqual([100]);
  });

  it('begins behind a pause that still runs', async () => {
    const { endpointId } = await givenWaitingFor(10, { parked: true });
    await retimed(endpointId, `paused_until = now() + interval '1 h', paused_reason = 'operator'`);
    await workUntilIdle(givenJobs());
    const slots = await slotsOf(endpointId);
    expect(slots[0]!.due_in).toBeGreaterThan(3_590_000);
    expect(slots[0]!.due_in).toBeLessThan(3_601_000);
    expect(gapsOf(slots)).toEqual([100]);
  });

  it('leaves alone what waits for an endpoint that is paused without end again', async () => {
    const { endpointId } = await givenWaitingFor(10, { parked: true });
    await retimed(endpointId, `paused_until = 'infinity', paused_reason = 'operator'`);
    await workUntilIdle(givenJobs());
    expect(await openJobs()).toEqual([]);
    expect((await slotsOf(endpointId)).every((slot) => slot.due_in === Number.POSITIVE_INFINITY)).toBe(true);
    await retimed(endpointId, 'paused_until = null, paused_reason = null');
    await workUntilIdle(givenJobs());
    expect((await slotsOf(endpointId)).every((slot) => slot.slot_version === 3)).toBe(true);
  });

  it('interrupted in the middle is gone on with by whoever leads next', async () => {
    const { endpointId, ids } = await givenWaitingFor(3_000);
    await retimed(endpointId, 'rate_per_second = 100');
    const first = givenJobs();
    await first.round();
    await first.round();
    const done = (await slotsOf(endpointId)).filter((slot) => slot.slot_version === 2).length;
    expect(done).toBe(1_000);
    expect(await openJobs()).toEqual(['retime']);
    await workUntilIdle(givenJobs());
    const slots = await slotsOf(endpointId);
    expect(slots.every((slot) => slot.slot_version === 2)).toBe(true);
    expect(farthestMove(slots, ids)).toBeLessThan(50);
    expect(new Set(slots.map((slot) => slot.due_in)).size).toBe(3_000);
    expect(await openJobs()).toEqual([]);
  });

  it('that is asked for again while it runs times everything by the last change', async () => {
    const { endpointId, ids } = await givenWaitingFor(1_800);
    await retimed(endpointId, 'rate_per_second = 5');
    const jobs = givenJobs();
    await jobs.round();
    await retimed(endpointId, 'rate_per_second = 100');
    await workUntilIdle(jobs);
    const slots = await slotsOf(endpointId);
    // At 5 a second, as many were due within the second in which the second change was seen.
    expect(farthestMove(slots, ids, { putLast: 10 })).toBeLessThan(50);
    expect(slots.every((slot) => slot.slot_version === 3)).toBe(true);
    expect(slots.at(-1)!.due_in).toBeLessThan(1_800 * 10 + 2_000);
    expect(await openJobs()).toEqual([]);
  });

  it('leaves no slot to what is about to go, after a rate is lowered to a tenth', async () => {
    const { endpointId, ids } = await givenWaitingFor(600, { rate: 50 });
    await pool.query(
      `update relay.queue q set due_at = now() + array_position($1::uuid[], delivery_id) * interval '20 ms'
       where delivery_id = any($1::uuid[])`,
      [ids],
    );
    await retimed(endpointId, 'rate_per_second = 5');
    await givenJobs().round();
    const first = (await slotsOf(endpointId)).filter((slot) => slot.slot_version === 2).slice(0, 20);
    const places = first.map(({ id }) => ids.indexOf(id));
    // The first 50 are due within the second: they may go meanwhile, and their slots would stay empty.
    expect(Math.min(...places)).toBeGreaterThanOrEqual(40);
    expect(first.at(-1)!.due_in).toBeLessThan(20 * 200 + 1_000);
  });

  it('is not ended by a look that came before it was asked for again', async () => {
    const { endpointId } = await givenWaitingFor(3);
    await retimed(endpointId, 'rate_per_second = 5');
    const own = givenLimiter();
    let changed = false;
    const limiter: RateLimiter = {
      async ask(asks) {
        if (!changed) await retimed(endpointId, 'rate_per_second = 50');
        changed = true;
        return own.ask(asks);
      },
    };
    await workUntilIdle(givenJobs({ limiter }));
    expect((await slotsOf(endpointId)).every((slot) => slot.slot_version === 3)).toBe(true);
    expect(gapsOf(await slotsOf(endpointId))).toEqual([20]);
  });

  it('is not done while somebody holds a row of it', async () => {
    const { endpointId, ids } = await givenWaitingFor(5);
    await retimed(endpointId, 'rate_per_second = 50');
    const holder = await pool.connect();
    await holder.query('begin');
    await holder.query('select from relay.queue where delivery_id = $1 for update', [ids[2]]);
    const jobs = givenJobs();
    await jobs.round();
    // Nothing can be done: it comes back soon, and not at once.
    const restMs = await jobs.round();
    expect(restMs).toBeGreaterThan(100);
    expect(restMs).toBeLessThan(IDLE_MS);
    expect(await openJobs()).toEqual(['retime']);
    await holder.query('commit');
    holder.release();
    await workUntilIdle(jobs);
    expect((await slotsOf(endpointId)).every((slot) => slot.slot_version === 2)).toBe(true);
  });

  it('of two leaders at once is done once: no two deliveries share a moment, none is left out', async () => {
    const { endpointId } = await givenWaitingFor(2_500);
    await retimed(endpointId, 'rate_per_second = 200');
    const limiter = givenLimiter();
    await Promise.all([workUntilIdle(givenJobs({ limiter })), workUntilIdle(givenJobs({ limiter }))]);
    const slots = await slotsOf(endpointId);
    expect(slots.every((slot) => slot.slot_version === 2)).toBe(true);
    expect(new Set(slots.map((slot) => slot.due_in)).size).toBe(2_500);
  });

  it('and what is claimed and deferred meanwhile leaves nothing in a slot of an older version', async () => {
    const { endpointId, ids } = await givenWaitingFor(1_500);
    await pool.query(`update relay.queue set due_at = now(), look_at = now()`);
    let stop = false;
    const dispatcher = async () => {
      while (!stop) {
        const some = ids.filter(() => Math.random() < 0.05);
        const claims = await claimByIds(pool, some, lease());
        const { rows } = await pool.query('select slot_version from relay.endpoints where id = $1', [
          endpointId,
        ]);
        // A gate may be judged by what was read a change ago.
        const slotVersion = rows[0].slot_version - (Math.random() < 0.3 ? 1 : 0);
        await defer(
          pool,
          claims.map((claim) => deferral(claim, { slotVersion, wait: 600_000 })),
          PROCESS,
        );
      }
    };
    const dispatching = dispatcher();
    const jobs = givenJobs();
    for (let n = 0; n < 6; n += 1) {
      await retimed(endpointId, `rate_per_second = ${20 + n}`);
      await workUntilIdle(jobs);
    }
    stop = true;
    await dispatching;
    await workUntilIdle(jobs);
    expect((await slotsOf(endpointId)).filter((slot) => slot.slot_version !== 7)).toEqual([]);
    expect(await openJobs()).toEqual([]);
  });
});

describe('a cancel job', () => {
  it('ends 12,000 deliveries of a deleted endpoint, those too that somebody is sending', async () => {
    const { endpointId, ids } = await givenWaitingFor(12_000, { parked: true });
    await pool.query(
      `update relay.queue set due_at = now(), waiting = null where delivery_id = any($1::uuid[])`,
      [ids.slice(0, 100)],
    );
    const sending = await claimByIds(pool, ids.slice(0, 100), lease());
    await change(endpointId, 'deleted_at = now()');
    await requestJob(db, endpointId, 'cancel');
    await workUntilIdle(givenJobs());
    expect(await openJobs()).toEqual([]);
    await keep(
      pool,
      sending.map((claim) => retry(claim, 60_000)),
      PROCESS,
    );
    const client = await pool.connect();
    let ended = 0;
    for (let n = -1; n !== 0; ended += n)
      n = (await endOwed(client, { limit: 2_000, from: null, mayReclaim: true })).length;
    client.release();
    expect(ended).toBe(12_000);
    const { rows } = await pool.query(
      `select count(*)::int as n from relay.deliveries where endpoint_id = $1 and dead_reason = 'cancelled'`,
      [endpointId],
    );
    expect(rows[0].n).toBe(12_000);
  });
});

describe('jobs of many endpoints', () => {
  it('take turns: a long one keeps a short one waiting for one step', async () => {
    const [long, short] = [await givenWaitingFor(3_000), await givenWaitingFor(3)];
    for (const { endpointId } of [long, short]) await retimed(endpointId, 'rate_per_second = 100');
    const jobs = givenJobs();
    await jobs.round();
    expect((await slotsOf(short.endpointId)).every((slot) => slot.slot_version === 2)).toBe(true);
    expect((await slotsOf(long.endpointId)).filter((slot) => slot.slot_version === 2).length).toBe(500);
  });

  it('are all come to, however many there are', async () => {
    const waiting = [];
    for (let n = 0; n < 40; n += 1) waiting.push(await givenWaitingFor(2));
    for (const { endpointId } of waiting) await retimed(endpointId, 'rate_per_second = 100');
    await workUntilIdle(givenJobs());
    expect(await openJobs()).toEqual([]);
    for (const { endpointId } of waiting)
      expect((await slotsOf(endpointId)).map((slot) => slot.slot_version)).toEqual([2, 2]);
  });

  it('are not held up by one that fails every time', async () => {
    const waiting = [];
    for (let n = 0; n < 5; n += 1) waiting.push(await givenWaitingFor(2));
    for (const { endpointId } of waiting) await retimed(endpointId, 'rate_per_second = 100');
    const bad = waiting[2]!.endpointId;
    const own = givenLimiter();
    const limiter: RateLimiter = {
      ask: (asks) =>
        asks.some((ask) => ask.endpointId === bad) ? Promise.reject(new Error('no')) : own.ask(asks),
    };
    const jobs = givenJobs({ limiter }).start();
    await eventually(async () => {
      const open = await listJobs(pool, { after: null, limit: 100 });
      expect(open.map((job) => job.endpointId)).toEqual([bad]);
    });
    // Its rounds end well or badly by turns, as the bad job is met or not.
    await eventually(() => expect(jobs.loop.failing).toBe(true));
    await jobs.stop();
  });
});

describe('a reconciler', () => {
  it.each<EndpointJobKind>(['retime', 'cancel'])('that stands by leaves a %s job alone', async (kind) => {
    const { endpointId } = await givenWaitingFor(2);
    await requestJob(db, endpointId, kind);
    expect(await givenJobs({ leads: false }).round()).toBe(IDLE_MS);
    expect(await openJobs()).toEqual([kind]);
  });

  it('without jobs asks once and rests', async () => {
    expect(await givenJobs().round()).toBe(IDLE_MS);
  });
});
