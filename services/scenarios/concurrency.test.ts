import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createPool } from '../../lib/store/pool.ts';
import { Arrivals, mostOpen, mostWithin } from '../testing/arrivals.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { type Fleet, startFleet } from '../testing/fleet.ts';
import { givenBacklog, knowEachOther } from '../testing/given-backlog.ts';
import { createTestRedis } from '../testing/redis.ts';

const arrivals = new Arrivals();
let database: TestDatabase;
let pool: pg.Pool;
let fleet: Fleet;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
  fleet = await startFleet({
    databaseUrl: database.url,
    redisUrl: createTestRedis().url,
    receiver: { onDelivery: arrivals.note },
  });
  await Promise.all([
    fleet.start('api'),
    fleet.start('dispatcher'),
    fleet.start('dispatcher'),
    fleet.start('reconciler'),
  ]);
  await knowEachOther(pool, 2);
});
afterAll(async () => {
  await fleet.stop();
  await pool.end();
  await database.drop();
});

const CAP = 4;
const RATE = 100;

/** When each deferral's slot was to be, ms since 1970, in order. */
async function slotsGiven(deliveryIds: readonly string[], reason: string): Promise<number[]> {
  const { rows } = await pool.query<{ at: number }>(
    `select date_part('epoch', next_attempt_at) * 1000 as at from relay.delivery_attempts
     where delivery_id = any($1::uuid[]) and class = 'deferred' and reason = $2 order by 1`,
    [deliveryIds, reason],
  );
  return rows.map(({ at }) => at);
}

describe('an endpoint that takes half a second and four at once', { timeout: 60_000 }, () => {
  it('never has more open, gets all, and what overflows does not come back together', async () => {
    const backlog = await givenBacklog({ fleet, pool }, '/slow?ms=500', {
      count: 60,
      max_in_flight: CAP,
      rate_per_second: RATE,
      burst: RATE,
    });
    await fleet.delivered(backlog.deliveryIds, 40_000);
    const seen = arrivals.of(backlog.path);
    expect(seen.length).toBe(60);
    expect(mostOpen(seen)).toBe(CAP);
    const slots = await slotsGiven(backlog.deliveryIds, 'concurrency');
    expect(slots.length).toBeGreaterThan(20);
    expect(new Set(slots).size).toBe(slots.length);
    // As far apart as its rate, but for what two dispatchers were given at once and wrote one after the other.
    expect(mostWithin(slots, 200)).toBeLessThanOrEqual((200 / 1_000) * RATE + 5);
  });
});
