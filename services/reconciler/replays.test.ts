import type pg from 'pg';
import { pino } from 'pino';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { EMPTY_GAUGES, reconcileMetrics } from '../../lib/metrics/reconcile.ts';
import { Metrics } from '../../lib/metrics/registry.ts';
import { createDatabase, type Database } from '../../lib/store/database.ts';
import { createPool } from '../../lib/store/pool.ts';
import {
  createReplayJob,
  findReplayJob,
  type ReplayJob,
  replayBound,
  switchReplayJob,
} from '../../lib/store/replay-jobs.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';
import { givenHistory } from '../testing/given-history.ts';
import { givenEndpoint, givenTenant } from '../testing/given-queue.ts';
import { ReplayJobs } from './replays.ts';

let database: TestDatabase;
let pool: pg.Pool;
let db: Database;
/** As in a reconciler: one connection. */
let stepPool: pg.Pool;
const started: ReplayJobs[] = [];

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 4, applicationName: 'test' });
  stepPool = createPool({ url: database.url, purpose: 'sweep', max: 1, applicationName: 'test-steps' });
  db = createDatabase(pool);
});
afterEach(async () => {
  await Promise.all(started.splice(0).map((replays) => replays.stop()));
  await pool.query(
    `update relay.replay_jobs set state = 'cancelled', finished_at = now(), error = null where finished_at is null`,
  );
});
afterAll(async () => {
  await Promise.all([pool.end(), stepPool.end()]);
  await database.drop();
});

function givenReplays(options: { leads?: () => boolean } = {}) {
  const registry = new Metrics({ processMetrics: false });
  const metrics = reconcileMetrics(registry, { leader: () => true, gauges: () => EMPTY_GAUGES });
  const replays = new ReplayJobs({
    pool: stepPool,
    leader: options.leads ?? (() => true),
    metrics,
    log: pino({ level: 'silent' }),
  });
  started.push(replays);
  const counted = async (outcome: string) => {
    const { values } = await registry.registry.getSingleMetric('relay_replay_deliveries_total')!.get();
    return values.find((value) => value.labels.outcome === outcome)?.value;
  };
  return { replays, counted };
}

/** A tenant's job over so many dead letters, to one endpoint. */
async function givenJob(
  dead: number,
  options: { ratePerSecond?: number; eventType?: string } = {},
): Promise<ReplayJob> {
  const tenantId = await givenTenant(pool);
  const endpointId = await givenEndpoint(pool, { tenantId, patterns: ['nothing.else'] });
  if (dead > 0) await givenHistory(pool, { tenantId, endpointIds: [endpointId], events: dead, everyMs: 10 });
  const { ratePerSecond = 10_000, eventType = null } = options;
  const filter = { status: 'dead', endpointId: null, eventType, reason: null, from: null, to: null } as const;
  const selection = { ...filter, tenantId, endedBy: await replayBound(db) };
  return (await createReplayJob(db, { selection, ratePerSecond, dryRun: false, expected: null }))!;
}

const owner = (job: ReplayJob) => ({ tenantId: job.tenantId, endpointIds: null });
const find = async (job: ReplayJob) => (await findReplayJob(db, owner(job), job.id))!;
const to = (job: ReplayJob, how: 'pause' | 'resume') => switchReplayJob(db, owner(job), { id: job.id, how });
const finished = (job: ReplayJob, withinMs = 10_000) =>
  eventually(async () => {
    const now = await find(job);
    expect(now.state).toBe('finished');
    return now;
  }, withinMs);

async function refuseInQueue(tenantId: string): Promise<void> {
  const { rows } = await pool.query(
    'select id from relay.deliveries where tenant_id = $1 order by id offset 5 limit 1',
    [tenantId],
  );
  await pool.query(`
    create or replace function relay.refuse() returns trigger language plpgsql as
      $$ begin raise exception 'refused' using errcode = '23514'; end $$;
    create trigger refuse before insert on relay.queue for each row when (new.delivery_id = '${rows[0].id}') execute function relay.refuse()`);
}

describe('the leading reconciler', () => {
  it('works off every job, whoever it is of, and counts what it does', async () => {
    const jobs = await Promise.all([givenJob(0), givenJob(1), givenJob(700), givenJob(1_300)]);
    const { replays, counted } = givenReplays();
    replays.start();
    for (const [n, job] of jobs.entries()) {
      expect(await finished(job)).toMatchObject({
        selected: [0, 1, 700, 1_300][n],
        replayed: [0, 1, 700, 1_300][n],
      });
    }
    expect(await counted('replayed')).toBe(2_001);
    expect(await counted('changed')).toBe(0);
    const late = await givenJob(3);
    expect(await finished(late)).toMatchObject({ replayed: 3 });
  });

  it('replays no faster than a job’s pace', async () => {
    const job = await givenJob(100, { ratePerSecond: 100 });
    const startedAt = performance.now();
    givenReplays().replays.start();
    await finished(job);
    // Four steps of 25, of which the first need not wait.
    expect(performance.now() - startedAt).toBeGreaterThan(700);
  });

  it('lets neither a slow job nor one that walks far hold up another', async () => {
    const [slow, far] = [
      await givenJob(50, { ratePerSecond: 0.02 }),
      await givenJob(60_000, { eventType: 'never.sent' }),
    ];
    const { replays } = givenReplays();
    replays.start();
    await eventually(async () => expect((await find(slow)).replayed).toBe(1));
    expect(await finished(await givenJob(1_500))).toMatchObject({ replayed: 1_500 });
    expect(await find(slow)).toMatchObject({ state: 'running', replayed: 1 });
    expect(await finished(far, 20_000)).toMatchObject({ selected: 0 });
  });

  it('stops at a pause, and goes on when it is resumed', async () => {
    const job = await givenJob(400, { ratePerSecond: 400 });
    givenReplays().replays.start();
    await eventually(async () => expect((await find(job)).replayed).toBeGreaterThan(0));
    const paused = (await to(job, 'pause'))!.job;
    expect(paused.replayed).toBeLessThan(400);
    // Other jobs go on meanwhile, which shows that the leader is at work.
    expect(await finished(await givenJob(1_000))).toMatchObject({ replayed: 1_000 });
    expect(await find(job)).toMatchObject({ state: 'paused', replayed: paused.replayed });
    await to(job, 'resume');
    expect(await finished(job)).toMatchObject({ replayed: 400 });
  });

  it('goes on with a job whose connection was cut', async () => {
    const job = await givenJob(1_000, { ratePerSecond: 2_000 });
    givenReplays().replays.start();
    for (let cuts = 0; cuts < 3; cuts += 1) {
      await eventually(async () => {
        const { rowCount } = await pool.query(
          `select pg_terminate_backend(pid) from pg_stat_activity
           where datname = current_database() and application_name = 'test-steps'`,
        );
        expect(rowCount).toBe(1);
      });
    }
    expect(await finished(job)).toMatchObject({ selected: 1_000, replayed: 1_000 });
    const { rows } = await pool.query(
      'select generation, count(*)::integer as count from relay.deliveries where tenant_id = $1 group by 1',
      [job.tenantId],
    );
    expect(rows).toEqual([{ generation: 2, count: 1_000 }]);
  });

  it('says that a job failed when a row of it is refused again and again, and goes on with the others', async () => {
    const job = await givenJob(10);
    await refuseInQueue(job.tenantId);
    const { replays } = givenReplays();
    replays.start();
    expect(await finished(await givenJob(20))).toMatchObject({ replayed: 20 });
    const failed = await eventually(async () => {
      const now = await find(job);
      expect(now.state).toBe('failed');
      return now;
    }, 15_000);
    expect(failed).toMatchObject({
      replayed: 0,
      error: expect.stringContaining('SQLSTATE 23514'),
      finishedAt: null,
    });
    await pool.query('drop trigger refuse on relay.queue');
    await to(job, 'resume');
    expect(await finished(job)).toMatchObject({ replayed: 10, error: null });
  });

  it('stops at once, though a job waits long for its next step', async () => {
    const job = await givenJob(10, { ratePerSecond: 0.01 });
    const { replays } = givenReplays();
    replays.start();
    await eventually(async () => expect((await find(job)).replayed).toBe(1));
    const startedAt = performance.now();
    await replays.stop();
    expect(performance.now() - startedAt).toBeLessThan(20_000);
    started.length = 0;
    expect(await find(job)).toMatchObject({ state: 'running', replayed: 1 });
    // Whoever leads next takes the next step at once.
    givenReplays().replays.start();
    await eventually(async () => expect((await find(job)).replayed).toBe(2));
  });
});

describe('a reconciler that does not lead', () => {
  it('takes no step, nor another one of a job in whose middle it loses the lead', async () => {
    let [leads, asked] = [false, 0];
    const { replays } = givenReplays({
      leads: () => {
        asked += 1;
        return leads;
      },
    });
    /** Half a second apart at least, and a step of this job is due every quarter. */
    const rounds = (count: number) => {
      const from = asked;
      return eventually(() => expect(asked).toBeGreaterThanOrEqual(from + count));
    };
    const job = await givenJob(500, { ratePerSecond: 100 });
    replays.start();
    await rounds(3);
    expect(await find(job)).toMatchObject({ selected: 0 });
    leads = true;
    await eventually(async () => expect((await find(job)).replayed).toBeGreaterThan(0));
    leads = false;
    await rounds(2);
    const { replayed } = await find(job);
    await rounds(3);
    expect(await find(job)).toMatchObject({ state: 'running', replayed });
  });
});
