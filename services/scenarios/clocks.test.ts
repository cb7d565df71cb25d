import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createPool } from '../../lib/store/pool.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';
import { type Fleet, startFleet } from '../testing/fleet.ts';
import { createTestRedis } from '../testing/redis.ts';

/** Shifts what a process takes for the time, before a line of its own runs. */
function clockOff(minutes: number): Record<string, string> {
  const shift = `
    const real = Date.now.bind(Date), by = ${minutes * 60_000}, RealDate = Date;
    globalThis.Date = class extends RealDate {
      constructor(...args) { args.length === 0 ? super(real() + by) : super(...args); }
      static now() { return real() + by; }
    };`;
  return { NODE_OPTIONS: `--import data:text/javascript,${encodeURIComponent(shift)}` };
}

let database: TestDatabase;
let pool: pg.Pool;
let fleet: Fleet;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
  fleet = await startFleet({ databaseUrl: database.url, redisUrl: createTestRedis().url });
  await Promise.all([
    fleet.start('api', clockOff(10)),
    fleet.start('dispatcher', clockOff(10)),
    fleet.start('dispatcher', clockOff(-10)),
    fleet.start('dispatcher'),
    fleet.start('reconciler', clockOff(10)),
  ]);
});
afterAll(async () => {
  await fleet.stop();
  await pool.end();
  await database.drop();
});

describe('processes whose clocks are ten minutes ahead and behind (O-05)', { timeout: 60_000 }, () => {
  it('say so in their logs, once each', async () => {
    const minutesAhead = () =>
      fleet.processes
        .flatMap((process) => process.log())
        .filter((line) => String(line.msg).includes('clock is wrong'))
        .map((line) => Math.round(Number(line.database_ahead_seconds) / 60));
    await eventually(() => expect(minutesAhead().toSorted()).toEqual([-10, -10, -10, 10]));
  });

  it('take no work from one another, and sign with a time that receivers accept', async () => {
    await fleet.endpoint('/slow?ms=1500', { event_types: ['slow'] });
    await fleet.endpoint('/verify', { event_types: ['signed'] });
    const [slow, signed] = await Promise.all([
      fleet.post(150, { connections: 16, type: 'slow' }),
      fleet.post(150, { connections: 16, type: 'signed' }),
    ]);
    await fleet.delivered([...slow.deliveryIds, ...signed.deliveryIds]);
    expect(fleet.receiver.counts()).toMatchObject({ duplicates: 0, rejected: 0, verified: 150 });
    await eventually(async () => expect((await pool.query('select from relay.queue')).rowCount).toBe(0));
    const { rows } = await pool.query<{ senders: number; lost: number; sends: number }>(
      `select count(distinct claimed_by)::integer as senders, count(*) filter (where class = 'lost')::integer as lost,
         count(send)::integer as sends from relay.delivery_attempts`,
    );
    // All three took part, and each delivery was sent once.
    expect(rows[0]).toEqual({ senders: 3, lost: 0, sends: 300 });
  });

  it('retry when it is due by the clock of the database', async () => {
    await fleet.endpoint('/flaky?pct=50', {
      event_types: ['flaky'],
      retry_policy: { max_attempts: 10, base_ms: 1_500, factor: 1, cap_ms: 1_500 },
    });
    const { deliveryIds } = await fleet.post(60, { connections: 8, type: 'flaky' });
    await fleet.delivered(deliveryIds);
    const { rows } = await eventually(async () => {
      const found = await pool.query<{ asked: number; waited: number; late: number; clock: number }>(
        `select extract(epoch from a.next_attempt_at - a.at)::float8 as asked, extract(epoch from b.at - a.at)::float8 as waited,
           b.lateness_ms as late, abs(extract(epoch from a.at - now()))::float8 as clock
         from relay.delivery_attempts a join relay.delivery_attempts b on b.delivery_id = a.delivery_id and b.send = a.send + 1
         where a.delivery_id = any($1::uuid[]) and a.class = 'retryable'`,
        [deliveryIds],
      );
      expect(found.rowCount).toBeGreaterThanOrEqual(25);
      return found;
    });
    for (const { asked, waited, late, clock } of rows) {
      expect(asked).toBeGreaterThan(0);
      expect(asked).toBeLessThanOrEqual(1.5);
      expect(waited).toBeGreaterThanOrEqual(asked);
      expect(waited).toBeLessThan(asked + 3);
      expect(late).toBeLessThan(3_000);
      expect(clock).toBeLessThan(60);
    }
  });
});
