import { Redis } from 'ioredis';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createPool } from '../../lib/store/pool.ts';
import { Arrivals, countWithin, mostInASecond, Stillness } from '../testing/arrivals.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { type Fleet, startFleet } from '../testing/fleet.ts';
import {
  type Backlog,
  deliveredWithoutRepeats,
  firstPassDone,
  givenBacklog,
  owedTo,
  waitUntil,
} from '../testing/given-backlog.ts';
import { type PrivateRedis, startPrivateRedis } from '../testing/private-servers.ts';

const RATE = 50;
const BURST = 20;
const LIMITS = { rate_per_second: RATE, burst: BURST };
const NO_LIMITS = { rate_per_second: 1e6, burst: 1e6 };

const arrivals = new Arrivals();
const stillness = new Stillness();
let database: TestDatabase;
let redis: PrivateRedis;
let pool: pg.Pool;
let fleet: Fleet;

beforeAll(async () => {
  [database, redis] = await Promise.all([createTestDatabase(), startPrivateRedis()]);
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
  fleet = await startFleet({
    databaseUrl: database.url,
    redisUrl: redis.url,
    receiver: { onDelivery: arrivals.note },
  });
  await Promise.all([
    fleet.start('api'),
    fleet.start('dispatcher'),
    fleet.start('dispatcher'),
    fleet.start('reconciler'),
  ]);
});
afterAll(async () => {
  await fleet.stop();
  await pool.end();
  await Promise.all([redis.stop(), database.drop()]);
});

async function change({ endpointId }: Backlog, settings: object): Promise<void> {
  const { status } = await fleet.call('PATCH', `/v1/endpoints/${endpointId}`, { body: settings });
  expect(status).toBe(200);
}

async function flushRedis(): Promise<void> {
  const client = new Redis(redis.url);
  await client.flushall();
  client.disconnect();
}

/** Lifts the limits, and sees that nothing was lost. */
async function drain(backlog: Backlog): Promise<void> {
  await change(backlog, NO_LIMITS);
  await deliveredWithoutRepeats({ fleet, pool, arrivals }, backlog);
}

describe('an endpoint for which more waits than it takes', { timeout: 90_000 }, () => {
  it.each([2, 4])(
    'is sent its rate by %i dispatchers, no more and no less, also when Redis forgets all',
    async (dispatchers) => {
      for (let started = 2; started < dispatchers; started += 1) await fleet.start('dispatcher');
      const backlog = await givenBacklog({ fleet, pool }, `/sink?by=${dispatchers}`, {
        count: 1_600,
        ...LIMITS,
      });
      await firstPassDone(pool, backlog);
      const from = Date.now() + 2_000;
      await waitUntil(from);
      stillness.reset();
      await waitUntil(from + 6_000);
      await flushRedis();
      await waitUntil(from + 12_000);
      const late = stillness.latenessSeconds;
      expect(await owedTo(pool, backlog)).toBeGreaterThan(500);
      const seen = arrivals.moments(backlog.path).filter((moment) => moment >= from);
      expect(mostInASecond(seen)).toBeLessThanOrEqual(RATE + BURST + RATE * late);
      expect(countWithin(seen, from, from + 12_000)).toBeGreaterThanOrEqual(0.95 * 12 * RATE);
      await drain(backlog);
    },
  );

  it('is sent less or more within two seconds of a change of its rate, and nothing is lost', async () => {
    const backlog = await givenBacklog({ fleet, pool }, '/sink?changed', { count: 10_000, ...LIMITS });
    await firstPassDone(pool, backlog);
    await change(backlog, { rate_per_second: 5 });
    const slow = Date.now() + 2_000;
    await waitUntil(slow);
    stillness.reset();
    await waitUntil(slow + 6_000);
    await change(backlog, { rate_per_second: RATE });
    const quick = Date.now() + 2_000;
    await waitUntil(quick + 5_000);
    const late = stillness.latenessSeconds;
    const seen = arrivals.moments(backlog.path);
    const slowed = seen.filter((moment) => moment >= slow && moment < slow + 6_000);
    expect(mostInASecond(slowed)).toBeLessThanOrEqual(5 + BURST + 5 * late);
    expect(slowed.length).toBeLessThanOrEqual(5 * 6 + BURST);
    const quickened = seen.filter((moment) => moment >= slow);
    expect(mostInASecond(quickened)).toBeLessThanOrEqual(RATE + BURST + RATE * late);
    expect(countWithin(seen, quick, quick + 5_000)).toBeGreaterThanOrEqual(0.9 * 5 * RATE);
    await drain(backlog);
  });
});

interface Slot {
  /** Ms since 1970. */
  due: number;
  waiting: string | null;
  attempts: number;
  sends: number;
  /** Rows of the log, and how many reasons to be deferred are among them. */
  logged: number;
  reasons: number;
}

async function slotsOf({ endpointId }: Backlog): Promise<Slot[]> {
  const { rows } = await pool.query<Slot>(
    `select date_part('epoch', q.due_at) * 1000 as due, q.waiting, q.attempts, q.sends,
       (select count(*)::integer from relay.delivery_attempts a where a.delivery_id = q.delivery_id) as logged,
       (select count(distinct a.reason)::integer from relay.delivery_attempts a
        where a.delivery_id = q.delivery_id and a.class = 'deferred') as reasons
     from relay.queue q where q.endpoint_id = $1 order by q.due_at`,
    [endpointId],
  );
  return rows;
}

describe("what is turned away for its endpoint's rate", { timeout: 60_000 }, () => {
  it('waits in moments of its own, spaced by the rate, is logged once and spends no attempt', async () => {
    const limits = { rate_per_second: 10, burst: BURST };
    const backlog = await givenBacklog({ fleet, pool }, '/sink?slots', { count: 400, ...limits });
    await firstPassDone(pool, backlog);
    const slots = await slotsOf(backlog);
    expect(slots.length).toBeGreaterThan(300);
    const moments = slots.map(({ due }) => due);
    expect(new Set(moments).size).toBe(slots.length);
    // Slots are timed by the moment at which they are written, which differs by as much as a batch of them may wait.
    expect(moments.at(-1)! - moments[0]!).toBeGreaterThan(100 * (slots.length - 1) - 1_000);
    for (const { waiting, attempts, sends, logged, reasons } of slots) {
      expect({ waiting, attempts, sends, logged }).toEqual({
        waiting: 'slot',
        attempts: 0,
        sends: 0,
        logged: reasons,
      });
    }
    await drain(backlog);
  });
});
