import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import { givenClaimed, givenEndpoint, givenOwed } from '../../services/testing/given-queue.ts';
import { age, givenWaiting } from '../../services/testing/stored-rows.ts';
import { createPool } from './pool.ts';
import { readQueueFigures } from './queue-gauges.ts';

let database: TestDatabase;
let pool: pg.Pool;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

const change = (endpointId: string, columns: string) =>
  pool.query(`update relay.endpoints set ${columns} where id = $1`, [endpointId]);

describe('the figures of the queue', () => {
  it('are nothing when nothing is owed', async () => {
    expect(await readQueueFigures(pool)).toMatchObject({
      pending: 0,
      inflight: 0,
      due: 0,
      oldestPendingAge: null,
      waiting: { slot: 0, parked: 0 },
      slotHorizon: 0,
      breakers: { closed: 0, open: 0, half_open: 0 },
      pausedEndpoints: 0,
      jobs: { retime: 0, cancel: 0 },
      replays: { running: 0, paused: 0, failed: 0 },
    });
  });

  it('tell what is late, what waits for its slot, what is parked, and how the endpoints are', async () => {
    const ids = await givenOwed(pool, 10);
    await age(pool, ids.slice(0, 2), 60_000);
    await givenClaimed(pool, ids[0]!);
    await givenWaiting(pool, ids.slice(2, 5), { everyMs: 0 });
    await givenWaiting(pool, ids.slice(5, 9), { parked: true });
    const [open, halfOpen, paused, over, deleted] = await Promise.all(
      Array.from({ length: 5 }, () => givenEndpoint(pool)),
    );
    await change(open!, `breaker_state = 'open', breaker_until = now()`);
    await change(
      halfOpen!,
      `breaker_state = 'half_open', breaker_until = now(), breaker_probe = gen_random_uuid()`,
    );
    await change(paused!, `paused_until = 'infinity', paused_reason = 'operator'`);
    await change(over!, `paused_until = now() - interval '1 s', paused_reason = 'retry_after'`);
    await change(deleted!, `breaker_state = 'open', breaker_until = now(), deleted_at = now()`);
    await pool.query(`insert into relay.endpoint_jobs (endpoint_id, kind) values ($1, 'retime')`, [
      randomUUID(),
    ]);
    await pool.query(
      `insert into relay.replay_jobs (id, tenant_id, state, status, ended_by, rate_per_second, after_id, walked, finished_at)
       select gen_random_uuid(), gen_random_uuid(), s, 'dead', now(), 1, gen_random_uuid(), true, case when s = 'finished' then now() end
       from unnest(array['paused', 'finished']) s`,
    );
    const figures = await readQueueFigures(pool);
    expect(figures).toMatchObject({
      pending: 9,
      inflight: 1,
      due: 2,
      waiting: { slot: 3, parked: 4 },
      breakers: { closed: 3, open: 1, half_open: 1 },
      pausedEndpoints: 1,
      jobs: { retime: 1, cancel: 0 },
      replays: { running: 0, paused: 1, failed: 0 },
    });
    expect(figures.oldestPendingAge).toBeGreaterThan(59);
    expect(figures.slotHorizon).toBeGreaterThan(30);
    expect(figures.slotHorizon).toBeLessThanOrEqual(60);
  });
});
