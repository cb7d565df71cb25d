import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createPool } from '../../lib/store/pool.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';
import { type Fleet, startFleet } from '../testing/fleet.ts';
import { createTestRedis } from '../testing/redis.ts';

let database: TestDatabase;
let pool: pg.Pool;
let fleet: Fleet;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
  fleet = await startFleet({ databaseUrl: database.url, redisUrl: createTestRedis().url });
  await Promise.all([fleet.start('dispatcher'), fleet.start('reconciler')]);
  // A deferred trigger runs inside COMMIT: it holds the commit open, and then lets it happen.
  await pool.query(`
    create function relay.slow_commit() returns trigger language plpgsql as $$
    begin
      perform pg_sleep(1);
      return null;
    end $$;
    create constraint trigger slow_commit after insert on relay.events deferrable initially deferred
      for each row when (new.type = 'slow') execute function relay.slow_commit()`);
});
afterAll(async () => {
  await fleet.stop();
  await pool.end();
  await database.drop();
});

/** Resolves when a transaction is inside its COMMIT. */
async function whenCommitting(): Promise<void> {
  await eventually(async () => {
    const { rowCount } = await pool.query(
      `select from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'`,
    );
    expect(rowCount).toBeGreaterThan(0);
  });
}

/** Resolves when no transaction is inside its COMMIT: the posts may have shared one statement or made several. */
async function whenCommitted(): Promise<void> {
  await eventually(async () => {
    const { rowCount } = await pool.query(
      `select from pg_stat_activity where datname = current_database() and application_name like 'relay-api%' and state = 'active'`,
    );
    expect(rowCount).toBe(0);
  });
}

/**
 * The sweep looks half a minute after its announcement at what was not picked up. That half minute is made to have passed; returns how many
 * deliveries are still owed.
 */
async function owedAfterHalfAMinute(): Promise<number> {
  await pool.query(`
    update relay.queue
    set due_at = due_at - interval '31 s', announced_at = announced_at - interval '31 s', look_at = now()
    where announced_at > now() - interval '30 s' and lease_expires_at is null`);
  const { rows } = await pool.query<{ owed: number }>('select count(*)::integer as owed from relay.queue');
  return rows[0]!.owed;
}

describe('an API killed between the commit and its announcement (O-04)', { timeout: 60_000 }, () => {
  it('costs nothing: what was committed is found and delivered, though nobody was told of it', async () => {
    let committed = 0;
    for (let round = 1; round <= 3; round += 1) {
      const api = await fleet.start('api');
      if (round === 1) await fleet.endpoint('/sink');
      const posting = fleet.post(5, { connections: 5, type: 'slow' });
      await whenCommitting();
      await api.kill();
      // Nobody was answered, and Postgres commits all the same what it had been asked to.
      expect((await posting).statuses).toEqual({ 0: 5 });
      await whenCommitted();
      const { rows } = await pool.query<{ n: number }>('select count(*)::integer as n from relay.deliveries');
      expect(rows[0]!.n).toBeGreaterThan(committed);
      committed = rows[0]!.n;
    }
    expect(fleet.receiver.counts().requests).toBe(0);
    await eventually(async () => expect(await owedAfterHalfAMinute()).toBe(0), 20_000);
    expect(fleet.receiver.counts().delivered).toBe(committed);
    expect(fleet.receiver.counts().duplicates).toBe(0);
  });

  it('is no different under load: every 202 is delivered, and every committed event too', async () => {
    await pool.query('drop trigger slow_commit on relay.events');
    fleet.receiver.reset();
    const accepted: string[] = [];
    for (let round = 1; round <= 3; round += 1) {
      const api = await fleet.start('api');
      const posting = fleet.post(200, { connections: 16 });
      await eventually(() => expect(fleet.receiver.counts().requests).toBeGreaterThan(accepted.length + 20));
      await api.kill();
      const { deliveryIds, statuses } = await posting;
      expect(Object.keys(statuses).sort()).toEqual(['0', '202']);
      accepted.push(...deliveryIds);
    }
    await eventually(async () => expect(await owedAfterHalfAMinute()).toBe(0), 20_000);
    await fleet.delivered(accepted);
    const { rows } = await pool.query(`select id from relay.deliveries where status <> 'succeeded'`);
    expect(rows).toEqual([]);
    expect(fleet.receiver.counts().duplicates).toBe(0);
  });
});
