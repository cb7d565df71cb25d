import { Redis } from 'ioredis';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createPool } from '../../lib/store/pool.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';
import { type Fleet, startFleet } from '../testing/fleet.ts';
import { type PrivateRedis, startPrivateRedis } from '../testing/private-servers.ts';

let database: TestDatabase;
let redis: PrivateRedis;
let fleet: Fleet;
let pool: pg.Pool;

beforeAll(async () => {
  [database, redis] = await Promise.all([createTestDatabase(), startPrivateRedis()]);
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
  fleet = await startFleet({ databaseUrl: database.url, redisUrl: redis.url });
  await Promise.all([
    fleet.start('api'),
    fleet.start('dispatcher'),
    fleet.start('dispatcher'),
    fleet.start('reconciler'),
  ]);
  await fleet.endpoint('/sink');
});
afterAll(async () => {
  await fleet.stop();
  await pool.end();
  await Promise.all([redis.stop(), database.drop()]);
});

/** Lateness of the first attempt of each of these deliveries, ms, in order. */
async function lateness(ids: readonly string[]): Promise<number[]> {
  const { rows } = await pool.query<{ late: number }>(
    `select min(lateness_ms)::integer as late from relay.delivery_attempts
     where delivery_id = any($1::uuid[]) and class = 'success' group by delivery_id order by 1`,
    [ids],
  );
  return rows.map((row) => row.late);
}

/** Relay repeats nothing by itself: one success each, and the receiver saw no request that is not in the log. */
async function expectNoRepeats(): Promise<void> {
  const { rows } = await pool.query<{ successes: number; deliveries: number; sends: number }>(
    `select count(*) filter (where class = 'success')::integer as successes, count(distinct delivery_id)::integer as deliveries,
       count(send)::integer as sends from relay.delivery_attempts`,
  );
  expect(rows[0]?.successes).toBe(rows[0]?.deliveries);
  expect(fleet.receiver.counts().requests).toBe(rows[0]?.sends);
}

const logged = (text: string) =>
  fleet.processes.flatMap((process) => process.log()).filter((line) => String(line.msg).includes(text));

describe('Redis flushed three times while deliveries run', () => {
  it('loses none, repeats none, and is no reason to wait', { timeout: 60_000 }, async () => {
    const client = new Redis(redis.url);
    const posting = fleet.post(2_000, { connections: 16, rate: 400 });
    for (let flush = 0; flush < 3; flush++) {
      // Each flush meets traffic: some has arrived since the last one, and some is still to come.
      await eventually(
        () => expect(fleet.receiver.counts().delivered).toBeGreaterThan(400 * (flush + 1)),
        40_000,
      );
      await client.flushall();
    }
    client.disconnect();
    const { deliveryIds, statuses } = await posting;
    expect(statuses).toEqual({ 202: 2_000 });
    await fleet.delivered(deliveryIds, 25_000);
    await eventually(expectNoRepeats);
    // The loops that met a missing group made it again instead of complaining.
    expect(logged('loop round failed').length).toBeLessThan(10);
  });
});

describe('Redis stopped under load and started again', () => {
  it('stops neither accepting nor delivering, and is used again when it is back', {
    timeout: 120_000,
  }, async () => {
    const before = fleet.post(400, { rate: 200 });
    await redis.stop();
    const during = await before;
    expect(during.statuses).toEqual({ 202: 400 });
    await eventually(() => expect(logged('poll mode').length).toBeGreaterThanOrEqual(4));

    const without = await fleet.post(300, { rate: 150 });
    await fleet.delivered(without.deliveryIds);
    const late = await lateness(without.deliveryIds);
    expect(late[Math.floor(late.length * 0.99)]).toBeLessThan(2_000);
    // What was announced just before may lie in what Redis has forgotten; the sweep looks after 30 s.
    await fleet.delivered(during.deliveryIds, 60_000);

    await redis.start();
    await eventually(() => expect(logged('stream mode').length).toBeGreaterThanOrEqual(8), 15_000);
    const after = await fleet.post(200, { rate: 200 });
    await fleet.delivered(after.deliveryIds);
    await eventually(expectNoRepeats);
  });
});
