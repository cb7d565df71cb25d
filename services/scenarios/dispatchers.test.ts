import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { checkInvariants, violations } from '../../lib/store/invariants.ts';
import { createPool } from '../../lib/store/pool.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';
import { type Fleet, type FleetProcess, startFleet } from '../testing/fleet.ts';
import { createTestRedis } from '../testing/redis.ts';
import { endLeases } from '../testing/stored-rows.ts';

/** The shortest lease that the configuration allows for sends of up to 3 s. */
const SHORT_LEASE = {
  RELAY_REQUEST_TIMEOUT_SECS: '3',
  RELAY_CONNECT_TIMEOUT_SECS: '3',
  RELAY_READ_TIMEOUT_SECS: '3',
  RELAY_LEASE_TTL_SECS: '10',
};
const SLOW = '/slow?ms=1500';

let database: TestDatabase;
let pool: pg.Pool;
let fleet: Fleet;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
  fleet = await startFleet({ databaseUrl: database.url, redisUrl: createTestRedis().url, env: SHORT_LEASE });
  await Promise.all([fleet.start('api'), fleet.start('reconciler')]);
  await fleet.endpoint(SLOW);
});
afterAll(async () => {
  await fleet.stop();
  await pool.end();
  await database.drop();
});

/** Ids of the rows that a process holds at this moment. */
async function heldBy(dispatcher: FleetProcess): Promise<string[]> {
  const started = dispatcher.log().find((line) => line.msg === 'dispatcher started');
  const { rows } = await pool.query<{ delivery_id: string }>(
    'select delivery_id from relay.queue where claimed_by = $1 and lease_expires_at is not null',
    [started?.number],
  );
  return rows.map((row) => row.delivery_id);
}

/** The receiver has requests open that this dispatcher sent, and some are still to come. */
async function whenSending(dispatcher: FleetProcess, atLeast: number): Promise<void> {
  await eventually(async () => {
    const open = fleet.receiver.counts().requests;
    expect(open).toBeGreaterThanOrEqual(atLeast);
    expect((await heldBy(dispatcher)).length).toBeGreaterThanOrEqual(atLeast);
  });
}

async function expectConsistent(ids: readonly string[]): Promise<void> {
  const { rows } = await pool.query(
    `select d.id from relay.deliveries d where d.id = any($1::uuid[]) and (d.status <> 'succeeded' or d.seq <> (
       select count(*) from relay.delivery_attempts a where a.delivery_id = d.id))`,
    [ids],
  );
  expect(rows).toEqual([]);
  expect(violations(await checkInvariants(pool, { repair: false }))).toBe(0);
}

describe('a dispatcher killed in the middle of its sends', () => {
  it('costs no delivery, and repeats at most the rows that it held', { timeout: 90_000 }, async () => {
    const doomed = await fleet.start('dispatcher');
    fleet.receiver.reset();
    const { deliveryIds } = await fleet.post(40);
    await whenSending(doomed, 10);
    await doomed.kill();
    const held = await heldBy(doomed);
    expect(held.length).toBeGreaterThan(0);
    await endLeases(pool, held, 6_000);

    const heir = await fleet.start('dispatcher');
    await fleet.delivered(deliveryIds, 60_000);
    await eventually(async () => expect(await heldBy(heir)).toEqual([]));
    expect(fleet.receiver.counts().duplicates).toBeLessThanOrEqual(held.length);
    for (const { delivery_id, successes } of fleet.receiver.deliveries()) {
      if (successes > 1) expect(held).toContain(delivery_id);
    }
    await expectConsistent(deliveryIds);
    await heir.terminate();
  });
});

describe('a dispatcher frozen past its lease and woken again', () => {
  it('changes nothing with its late outcomes, and repeats at most the rows that it held', {
    timeout: 120_000,
  }, async () => {
    const frozen = await fleet.start('dispatcher');
    fleet.receiver.reset();
    const { deliveryIds } = await fleet.post(30);
    await whenSending(frozen, 10);
    frozen.signal('SIGSTOP');
    const held = await heldBy(frozen);
    expect(held.length).toBeGreaterThan(0);

    const other = await fleet.start('dispatcher');
    await eventually(async () => {
      const { rows } = await pool.query(
        `select from relay.deliveries where id = any($1::uuid[]) and status <> 'succeeded'`,
        [deliveryIds],
      );
      expect(rows.length).toBe(0);
    }, 60_000);
    const before = await pool.query(
      'select id, seq, sends, finished_at from relay.deliveries where id = any($1::uuid[]) order by id',
      [deliveryIds],
    );
    frozen.signal('SIGCONT');
    // Every late outcome is turned away by its token, and counted.
    await eventually(async () => {
      const metrics = await (await fetch(`${frozen.url}/metrics`)).text();
      expect(Number(/^relay_leases_lost_total (\d+)/m.exec(metrics)?.[1])).toBe(held.length);
    }, 15_000);
    const after = await pool.query(
      'select id, seq, sends, finished_at from relay.deliveries where id = any($1::uuid[]) order by id',
      [deliveryIds],
    );
    expect(after.rows).toEqual(before.rows);
    expect(fleet.receiver.counts().duplicates).toBeLessThanOrEqual(held.length);
    await expectConsistent(deliveryIds);
    await Promise.all([frozen.terminate(), other.terminate()]);
  });
});
