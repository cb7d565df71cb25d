import type pg from 'pg';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { createPool } from '../../lib/store/pool.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';
import { type Fleet, type FleetProcess, startFleet } from '../testing/fleet.ts';
import { createTestRedis } from '../testing/redis.ts';

let database: TestDatabase;
let pool: pg.Pool;
let fleet: Fleet;
let reconcilers: FleetProcess[];

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
  fleet = await startFleet({
    databaseUrl: database.url,
    redisUrl: createTestRedis().url,
    // Half of the answers are failures, and their retries must leave at once.
    env: { RELAY_BREAKER: 'off' },
  });
  await Promise.all([fleet.start('api'), fleet.start('dispatcher')]);
  reconcilers = await Promise.all([fleet.start('reconciler'), fleet.start('reconciler')]);
  // Of two deliveries one fails at first, and is due again within a second.
  await fleet.endpoint('/flaky?pct=50', {
    retry_policy: { max_attempts: 10, base_ms: 1_000, factor: 1, cap_ms: 1_000 },
  });
});
afterAll(async () => {
  await fleet.stop();
  await pool.end();
  await database.drop();
});
beforeEach(() => fleet.receiver.reset());

/** Whether a reconciler says that it leads; a dead or frozen one says nothing. */
async function leads(process: FleetProcess): Promise<boolean> {
  if (!process.alive()) return false;
  const metrics = await fetch(`${process.url}/metrics`, { signal: AbortSignal.timeout(1_000) })
    .then((answer) => answer.text())
    .catch(() => '');
  return /^relay_leader 1$/m.test(metrics);
}

async function leader(withinMs = 10_000): Promise<{ leading: FleetProcess; other: FleetProcess }> {
  return eventually(async () => {
    const leading = await Promise.all(reconcilers.map(leads));
    expect(leading.filter(Boolean).length).toBe(1);
    const at = leading.indexOf(true);
    return { leading: reconcilers[at]!, other: reconcilers[1 - at]! };
  }, withinMs);
}

/** Deliveries that need a reconciler to arrive: half of them fail at first, and somebody must announce their retries. */
async function expectRetriesLeave(withinMs = 15_000): Promise<void> {
  const { deliveryIds, statuses } = await fleet.post(20);
  expect(statuses).toEqual({ 202: 20 });
  await fleet.delivered(deliveryIds, withinMs);
}

describe('two reconcilers', { timeout: 60_000 }, () => {
  it('have one leader, and a due retry leaves at once', async () => {
    await leader();
    const { deliveryIds } = await fleet.post(100, { rate: 100 });
    await fleet.delivered(deliveryIds);
    const { rows } = await eventually(async () => {
      const found = await pool.query<{ late: number }>(
        `select lateness_ms as late from relay.delivery_attempts
         where delivery_id = any($1::uuid[]) and class = 'success' and send > 1 order by 1`,
        [deliveryIds],
      );
      expect(found.rowCount).toBeGreaterThanOrEqual(30);
      return found;
    });
    const lateMs = rows.map((row) => row.late);
    expect(lateMs[Math.floor(lateMs.length * 0.9)]).toBeLessThan(250);
  });

  it('change the lead within seconds when the leader is killed', async () => {
    const { leading, other } = await leader();
    await leading.kill();
    await eventually(async () => expect(await leads(other)).toBe(true), 5_000);
    await expectRetriesLeave();
    reconcilers = [other, await fleet.start('reconciler')];
  });

  it('go on with one leader when the connection that leads is cut', async () => {
    const { leading } = await leader();
    const cut = await pool.query(
      `select pg_terminate_backend(pid) from pg_stat_activity
       where datname = current_database() and application_name = 'relay-reconciler-leader'
         and pid in (select pid from pg_locks where locktype = 'advisory' and granted)`,
    );
    expect(cut.rowCount).toBe(1);
    await eventually(() => {
      expect(leading.log().some((line) => String(line.msg).startsWith('no longer leads'))).toBe(true);
    }, 5_000);
    await leader(5_000);
    await expectRetriesLeave();
  });

  it('change the lead when the leader freezes, and the frozen one wakes as a standby', async () => {
    const { leading, other } = await leader();
    leading.signal('SIGSTOP');
    // Its session ends after 10 s of silence.
    await eventually(async () => expect(await leads(other)).toBe(true), 14_000);
    await expectRetriesLeave();
    leading.signal('SIGCONT');
    await eventually(async () => expect(await leads(leading)).toBe(false), 5_000);
    expect(await leads(other)).toBe(true);
    await expectRetriesLeave();
    // Nothing was announced, reclaimed or sent twice by the two.
    const repeated = await pool.query(
      `select delivery_id from relay.delivery_attempts where class = 'success' group by delivery_id having count(*) > 1`,
    );
    expect(repeated.rows).toEqual([]);
    expect(fleet.receiver.counts().duplicates).toBe(0);
  });
});
