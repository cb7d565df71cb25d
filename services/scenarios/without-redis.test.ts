import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createPool } from '../../lib/store/pool.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { type Fleet, startFleet } from '../testing/fleet.ts';

let database: TestDatabase;
let pool: pg.Pool;
let fleet: Fleet;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
  // A receiver that fails a quarter of a hundred in a row is no reason to wait here.
  const env = { RELAY_BREAKER: 'off' };
  fleet = await startFleet({ databaseUrl: database.url, redisUrl: null, env });
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
  await database.drop();
});

describe('a fleet without any Redis', { timeout: 60_000 }, () => {
  it('delivers each event once, and is woken by each commit', async () => {
    await fleet.endpoint('/sink', { event_types: ['quick'] });
    const { deliveryIds, statuses } = await fleet.post(100, { rate: 25, type: 'quick' });
    expect(statuses).toEqual({ 202: 100 });
    await fleet.delivered(deliveryIds);
    const { rows } = await pool.query<{ p50: number }>(
      `select percentile_disc(0.5) within group (order by lateness_ms) as p50
       from relay.delivery_attempts where delivery_id = any($1::uuid[]) and class = 'success'`,
      [deliveryIds],
    );
    // Without the wake-up it would be half the idle poll of 250 ms at best, and this many would hardly all be lucky.
    expect(rows[0]!.p50).toBeLessThan(100);
    expect(fleet.receiver.counts().duplicates).toBe(0);
  });

  it('retries on time, and drains a backlog as fast as it can send', async () => {
    await fleet.endpoint('/flaky?pct=25', {
      event_types: ['flaky'],
      retry_policy: { max_attempts: 10, base_ms: 200, factor: 1, cap_ms: 1_000 },
    });
    const { deliveryIds } = await fleet.post(1_000, { connections: 32, type: 'flaky' });
    await fleet.delivered(deliveryIds, 20_000);
    const { rows } = await pool.query<{ late: number }>(
      `select percentile_disc(0.9) within group (order by lateness_ms) as late
       from relay.delivery_attempts where delivery_id = any($1::uuid[]) and send > 1`,
      [deliveryIds],
    );
    expect(rows[0]!.late).toBeLessThan(1_000);
    const unfinished = await pool.query(`select from relay.deliveries where status <> 'succeeded'`);
    expect(unfinished.rowCount).toBe(0);
    expect(fleet.receiver.counts().duplicates).toBe(0);
  });
});
