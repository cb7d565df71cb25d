import type pg from 'pg';
import { pino } from 'pino';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import type { RedisLink } from '../../lib/broker/link.ts';
import { EMPTY_GAUGES, reconcileMetrics } from '../../lib/metrics/reconcile.ts';
import { Metrics } from '../../lib/metrics/registry.ts';
import { type LeaderSession, tryLead } from '../../lib/store/leadership.ts';
import { createPool } from '../../lib/store/pool.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { givenBroker, givenConsumer, givenLink } from '../testing/given-broker.ts';
import { givenClaimed, givenOwed } from '../testing/given-queue.ts';
import { createTestRedis } from '../testing/redis.ts';
import { age, endLeases, queueRow } from '../testing/stored-rows.ts';
import { Sweeper, type SweeperOptions } from './sweeper.ts';

let database: TestDatabase;
let pool: pg.Pool;
let session: LeaderSession;
let link: RedisLink;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 8, applicationName: 'test' });
  session = (await tryLead(database.url, 'test-leader'))!;
});
beforeEach(async () => {
  await pool.query('truncate relay.queue');
  link = await givenLink(givenBroker(createTestRedis().url));
});
afterEach(async () => {
  await link.stop();
});
afterAll(async () => {
  await session.release();
  await pool.end();
  await database.drop();
});

function givenSweeper(options: Partial<SweeperOptions> = {}): Sweeper {
  const metrics = reconcileMetrics(new Metrics({ processMetrics: false }), {
    leader: () => true,
    gauges: () => EMPTY_GAUGES,
  });
  const log = pino({ level: 'silent' });
  return new Sweeper({
    client: session.client,
    link,
    pollMode: () => false,
    batch: 10,
    idleMs: 200,
    metrics,
    log,
    ...options,
  });
}

/** Rounds as the loop runs them, until one asks for a rest. */
async function sweepUntilIdle(sweeper: Sweeper): Promise<number> {
  for (let rounds = 1; ; rounds += 1) if ((await sweeper.round()) > 0) return rounds;
}

async function announcedIds(): Promise<string[]> {
  const reader = givenConsumer(link);
  const ids = (await reader.read(1_000)).flatMap(({ deliveryIds }) => deliveryIds);
  await reader.leave();
  return ids.sort();
}

describe('a sweep', () => {
  it('announces a backlog of many batches, each row once', async () => {
    const ids = await givenOwed(pool, 95, { announced: false });
    await Promise.all(ids.map((id, n) => age(pool, [id], 120_000 - n * 1_000)));
    expect(await sweepUntilIdle(givenSweeper())).toBe(10);
    expect(await announcedIds()).toEqual([...ids].sort());
  });

  it('rests until the next look, at most its idle time', async () => {
    const sweeper = givenSweeper();
    await sweepUntilIdle(sweeper);
    expect(await sweeper.round()).toBe(200);
    const [id] = await givenOwed(pool, 1);
    await age(pool, [id!], 29_900);
    expect(await sweeper.round()).toBeLessThanOrEqual(100);
  });

  it('announces what the pollers left when poll mode ends, however long it waited', async () => {
    let polling = true;
    const sweeper = givenSweeper({ pollMode: () => polling });
    await sweepUntilIdle(sweeper);
    const ids = await givenOwed(pool, 25, { announced: false });
    await age(pool, ids, 30_000);
    await sweepUntilIdle(sweeper);
    expect(await announcedIds()).toEqual([]);
    polling = false;
    await sweepUntilIdle(sweeper);
    expect(await announcedIds()).toEqual([...ids].sort());
  });

  it('gives back every lease that ended, as soon as it may, 5 s after its rounds work again', {
    timeout: 20_000,
  }, async () => {
    const sweeper = givenSweeper();
    await sweepUntilIdle(sweeper);
    const ids = await givenOwed(pool, 35);
    for (const id of ids) await givenClaimed(pool, id);
    await endLeases(pool, ids, 60_000);
    const owned = async () =>
      (await pool.query('select from relay.queue where lease_expires_at is not null')).rowCount;
    await sweepUntilIdle(sweeper);
    expect(await owned()).toBe(35);
    await expect
      .poll(
        async () => {
          await sweepUntilIdle(sweeper);
          return owned();
        },
        { timeout: 8_000, interval: 100 },
      )
      .toBe(0);
    expect((await queueRow(pool, ids[0]!)).reclaims).toBe(1);
  });
});
