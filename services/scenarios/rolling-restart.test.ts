import { Redis } from 'ioredis';
import type pg from 'pg';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { createPool } from '../../lib/store/pool.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';
import { type Fleet, type FleetProcess, startFleet } from '../testing/fleet.ts';
import { type PrivateRedis, startPrivateRedis } from '../testing/private-servers.ts';

const ENV = {
  // As short as the settings allow: an outcome is waited for 3 s, a lease lasts 10 s.
  RELAY_REQUEST_TIMEOUT_SECS: '3',
  RELAY_CONNECT_TIMEOUT_SECS: '3',
  RELAY_READ_TIMEOUT_SECS: '3',
  RELAY_LEASE_TTL_SECS: '10',
  RELAY_BROKER_RECLAIM_IDLE_SECS: '15',
  RELAY_BROKER_DEAD_CONSUMER_SECS: '5',
};

let database: TestDatabase;
let redis: PrivateRedis;
let client: Redis;
let pool: pg.Pool;
let fleet: Fleet;

beforeAll(async () => {
  [database, redis] = await Promise.all([createTestDatabase(), startPrivateRedis()]);
  client = new Redis(redis.url);
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
  fleet = await startFleet({ databaseUrl: database.url, redisUrl: redis.url, env: ENV });
  await Promise.all([fleet.start('api'), fleet.start('reconciler')]);
  await fleet.endpoint('/slow?ms=2000', { event_types: ['slow'] });
  await fleet.endpoint('/sink', { event_types: ['quick'] });
});
afterAll(async () => {
  await fleet.stop();
  client.disconnect();
  await pool.end();
  await Promise.all([redis.stop(), database.drop()]);
});
beforeEach(() => fleet.receiver.reset());

const streamKey = () => `${fleet.env.RELAY_BROKER_KEY_PREFIX}relay:deliveries`;

async function consumers(): Promise<number> {
  return ((await client.xinfo('CONSUMERS', streamKey(), 'relay-dispatchers')) as unknown[]).length;
}

/** Entries that somebody has read and not decided. */
async function undecided(): Promise<number> {
  const [pending] = (await client.xpending(streamKey(), 'relay-dispatchers')) as [number];
  return pending;
}

async function owed(): Promise<number> {
  return (await pool.query('select from relay.queue')).rowCount ?? 0;
}

describe('dispatchers restarted twelve times under light traffic, half of them killed (O-03)', {
  timeout: 90_000,
}, () => {
  it('leave no consumer, no entry and no delivery behind', async () => {
    let alive = await Promise.all(Array.from({ length: 3 }, () => fleet.start('dispatcher')));
    const posting = fleet.post(300, { connections: 4, rate: 25, type: 'quick' });
    for (let round = 0; round < 4; round += 1) {
      const fresh = await Promise.all(alive.map(() => fleet.start('dispatcher')));
      await Promise.all(alive.map((old, n) => (n % 2 === round % 2 ? old.kill() : old.terminate())));
      alive = fresh;
    }
    const { deliveryIds, statuses } = await posting;
    expect(statuses).toEqual({ 202: 300 });
    await fleet.delivered(deliveryIds, 30_000);
    await eventually(async () => {
      // Redis before 7.2 takes a consumer that waits for work for a dead one; it is back with the next entry.
      expect(await consumers()).toBeLessThanOrEqual(alive.length);
      expect(await undecided()).toBe(0);
      expect(await client.xlen(streamKey())).toBe(0);
      expect(await owed()).toBe(0);
    }, 45_000);
    const after = await fleet.post(20, { type: 'quick' });
    await fleet.delivered(after.deliveryIds, 5_000);
    await Promise.all(alive.map((dispatcher) => dispatcher.terminate()));
    await eventually(async () => expect(await consumers()).toBe(0), 15_000);
  });
});

/** The receiver has so many requests open, and the rows that they belong to are leased. */
async function whenSending(count: number): Promise<void> {
  await eventually(() => expect(fleet.receiver.counts().requests).toBe(count));
}

async function leased(): Promise<number> {
  const { rows } = await pool.query<{ n: number }>(
    'select count(*)::integer as n from relay.queue where lease_expires_at > now()',
  );
  return rows[0]!.n;
}

describe('a dispatcher told to stop with a hundred requests open (O-27)', { timeout: 60_000 }, () => {
  let next: FleetProcess;

  it('records them all when its grace outlasts them, exits 0, and nothing is sent twice', async () => {
    const leaving = await fleet.start('dispatcher', { RELAY_MAX_IN_FLIGHT: '100' });
    const { deliveryIds } = await fleet.post(130, { connections: 32, type: 'slow' });
    await whenSending(100);
    const stopping = leaving.terminate();
    // What was not begun is free again within about a second, while the hundred go on.
    await eventually(async () => expect(await leased()).toBeLessThanOrEqual(100), 2_000);
    expect(await stopping).toBe(0);
    expect(await leased()).toBe(0);
    expect(fleet.receiver.counts()).toMatchObject({ delivered: 100, duplicates: 0 });

    next = await fleet.start('dispatcher');
    await fleet.delivered(deliveryIds);
    expect(fleet.receiver.counts()).toMatchObject({ requests: 130, duplicates: 0 });
  });

  it('cuts them when its grace is shorter, still exits 0 within it, and repeats at most those', async () => {
    await next.terminate();
    fleet.receiver.reset();
    const leaving = await fleet.start('dispatcher', { RELAY_SHUTDOWN_DEADLINE_SECS: '1' });
    const { deliveryIds } = await fleet.post(60, { connections: 32, type: 'slow' });
    await whenSending(60);
    const startedAt = performance.now();
    expect(await leaving.terminate()).toBe(0);
    expect(performance.now() - startedAt).toBeLessThan(6_000);
    const cut = await leased();
    expect(cut).toBeGreaterThan(0);
    // Their leases are made to have ended.
    await pool.query(
      `update relay.queue set lease_expires_at = now() - interval '6 s', look_at = now() where lease_expires_at is not null`,
    );

    await fleet.start('dispatcher');
    await fleet.delivered(deliveryIds, 40_000);
    expect(fleet.receiver.counts().requests).toBeLessThanOrEqual(60 + cut);
    await eventually(async () => expect(await owed()).toBe(0));
    const { rows } = await pool.query<{ lost: number }>(
      `select count(*)::integer as lost from relay.delivery_attempts where delivery_id = any($1::uuid[]) and class = 'lost'`,
      [deliveryIds],
    );
    expect(rows[0]!.lost).toBe(cut);
  });
});
