import type pg from 'pg';
import { pino } from 'pino';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { announce } from '../../lib/broker/announcer.ts';
import { streamKey } from '../../lib/broker/client.ts';
import type { RedisLink } from '../../lib/broker/link.ts';
import { LANES, type Lane } from '../../lib/domain/vocabulary.ts';
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

/** What lies unread on a lane; it is read and decided. */
async function announcedOn(lane: Lane): Promise<string[]> {
  await link.ensureGroup(lane);
  const reader = givenConsumer(link, { lane });
  const entries = await reader.read(1_000);
  await reader.decide(entries.map(({ entryId }) => entryId));
  await reader.leave();
  return entries.flatMap(({ deliveryIds }) => deliveryIds).sort();
}

/** Owed deliveries that were accepted and announced `ms` ago, of which those on bulk say so. */
async function givenAnnounced(lane: Lane, count: number, ms: number): Promise<string[]> {
  const ids = await givenOwed(pool, count);
  await age(pool, ids, ms);
  await pool.query('update relay.queue set lane = $2 where delivery_id = any($1::uuid[])', [
    ids,
    LANES.indexOf(lane),
  ]);
  expect(await announce(link, ids, lane)).toEqual([]);
  return [...ids].sort();
}

describe('a sweep', () => {
  it('announces a backlog of many batches, each row once', async () => {
    const ids = await givenOwed(pool, 95, { announced: false });
    await Promise.all(ids.map((id, n) => age(pool, [id], 120_000 - n * 1_000)));
    expect(await sweepUntilIdle(givenSweeper())).toBe(10);
    expect(await announcedOn('bulk')).toEqual([...ids].sort());
    expect(await announcedOn('express')).toEqual([]);
  });

  it('rests until the next look, at most its idle time', async () => {
    const sweeper = givenSweeper({ idleMs: 60_000 });
    await sweepUntilIdle(sweeper);
    expect(await sweeper.round()).toBe(60_000);
    const [id] = await givenOwed(pool, 1);
    await age(pool, [id!], 10_000);
    expect(await sweeper.round()).toBeLessThanOrEqual(20_000);
  });

  it('rests little while producers enqueue, of whom nobody tells it', async () => {
    const sweeper = givenSweeper();
    expect(await sweeper.round()).toBe(200);
    await givenOwed(pool, 1, { announced: false });
    await pool.query(`update relay.queue set look_at = '-infinity', due_at = now(), announced_at = null`);
    expect(await sweeper.round()).toBe(60);
    expect(await sweeper.round()).toBe(60);
  });

  it('announces what the pollers left when poll mode ends, however long it waited', async () => {
    let polling = true;
    const sweeper = givenSweeper({ pollMode: () => polling });
    await sweepUntilIdle(sweeper);
    const ids = await givenOwed(pool, 25, { announced: false });
    await age(pool, ids, 30_000);
    await sweepUntilIdle(sweeper);
    expect([await announcedOn('express'), await announcedOn('bulk')]).toEqual([[], []]);
    polling = false;
    await sweepUntilIdle(sweeper);
    expect(await announcedOn('bulk')).toEqual([...ids].sort());
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

describe('the two lanes of a sweep', () => {
  const both = async () => ({ express: await announcedOn('express'), bulk: await announcedOn('bulk') });

  it.each([
    ['express', 'bulk'],
    ['bulk', 'express'],
  ] as const)(
    'are behind by themselves: what stalled on %s waits while it is unread, whatever %s does',
    async (behind, other) => {
      const unread = await givenAnnounced(behind, 3, 60_000);
      const lost = await givenAnnounced(other, 3, 60_000);
      // Read and decided, and never claimed: nobody has them.
      expect(await announcedOn(other)).toEqual(lost);
      await sweepUntilIdle(givenSweeper());
      expect(await announcedOn(other)).toEqual(lost);
      expect(await announcedOn(behind)).toEqual(unread);
      for (const id of lost) expect((await queueRow(pool, id)).lane).toBe(LANES.indexOf(other));
    },
  );

  it('are both announced again after a flush, each on its own stream', async () => {
    const sweeper = givenSweeper();
    const express = await givenAnnounced('express', 15, 2_000);
    const bulk = await givenAnnounced('bulk', 15, 2_000);
    await sweepUntilIdle(sweeper);
    await flush();
    await sweepUntilIdle(sweeper);
    expect(await both()).toEqual({ express, bulk });
    await sweepUntilIdle(sweeper);
    expect(await both()).toEqual({ express: [], bulk: [] });
  });

  it('are flushed by themselves: what lies on the other is not announced twice', async () => {
    const sweeper = givenSweeper();
    const express = await givenAnnounced('express', 3, 2_000);
    const bulk = await givenAnnounced('bulk', 3, 2_000);
    await sweepUntilIdle(sweeper);
    await link.client.del(streamKey(link.options, 'bulk'));
    await sweepUntilIdle(sweeper);
    expect(await both()).toEqual({ express, bulk });
  });

  // Redis is shared with other tests, so that their keys must stay.
  async function flush(): Promise<void> {
    await link.client.del(...LANES.map((lane) => streamKey(link.options, lane)));
  }
});
