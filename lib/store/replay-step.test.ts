import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import { givenHistory, type History } from '../../services/testing/given-history.ts';
import {
  death,
  finishOne,
  givenClaimed,
  givenEndpoint,
  givenTenant,
} from '../../services/testing/given-queue.ts';
import { deadLetterReason, deliveryRow, queueRow } from '../../services/testing/stored-rows.ts';
import { createDatabase, type Database } from './database.ts';
import { checkInvariants } from './invariants.ts';
import { createPool } from './pool.ts';
import {
  createReplayJob,
  findReplayJob,
  listRunningReplays,
  MAX_OPEN_REPLAYS,
  type NewReplayJob,
  type ReplayJob,
  replayBound,
  switchReplayJob,
} from './replay-jobs.ts';
import { replayStep } from './replay-step.ts';
import type { ReplayFilter } from './replay-walk.ts';

let database: TestDatabase;
let pool: pg.Pool;
let db: Database;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'sweep', max: 10, applicationName: 'test' });
  db = createDatabase(pool);
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

interface Given {
  tenantId: string;
  endpointId: string;
  /** Oldest first. */
  ids: string[];
}

async function givenDead(count: number, history: Partial<History> = {}): Promise<Given> {
  const tenantId = await givenTenant(pool);
  const endpointId = await givenEndpoint(pool, { tenantId, patterns: ['nothing.else'] });
  await givenHistory(pool, { tenantId, endpointIds: [endpointId], events: count, ...history });
  const { rows } = await pool.query('select id from relay.deliveries where tenant_id = $1 order by id', [
    tenantId,
  ]);
  return { tenantId, endpointId, ids: rows.map((row) => row.id) };
}

async function givenJob(
  tenantId: string,
  filter: Partial<ReplayFilter> = {},
  more: Partial<NewReplayJob> = {},
): Promise<ReplayJob> {
  const everything = {
    status: 'dead',
    endpointId: null,
    eventType: null,
    reason: null,
    from: null,
    to: null,
  } as const;
  const selection = { ...everything, ...filter, tenantId, endedBy: await replayBound(db) };
  const job = await createReplayJob(db, {
    selection,
    ratePerSecond: 100,
    dryRun: false,
    expected: null,
    ...more,
  });
  return job!;
}

const owner = (job: ReplayJob) => ({ tenantId: job.tenantId, endpointIds: null });
const find = async (job: ReplayJob) => (await findReplayJob(db, owner(job), job.id))!;
const to = (job: ReplayJob, how: 'pause' | 'resume' | 'cancel') =>
  switchReplayJob(db, owner(job), { id: job.id, how });
const step = (job: ReplayJob, take = 10) => replayStep(pool, job.id, { take, look: 100 });

/** Steps until one finds nothing to do. */
async function workOff(job: ReplayJob, take = 10): Promise<ReplayJob> {
  for (;;) {
    const taken = await step(job, take);
    if (!taken || taken.finished || !taken.moved) return find(job);
  }
}

const pendingAmong = async (ids: readonly string[]) => {
  const { rows } = await pool.query(
    `select id from relay.deliveries where id = any($1::uuid[]) and status = 'pending' order by id`,
    [ids],
  );
  return rows.map((row) => row.id as string);
};

describe('a replay job', () => {
  it('returns what it selects to pending, oldest first, a step at a time, on the bulk lane', async () => {
    const { tenantId, ids } = await givenDead(25);
    const job = await givenJob(tenantId);
    expect(await step(job)).toMatchObject({ replayed: 10, moved: true, finished: false });
    expect(await pendingAmong(ids)).toEqual(ids.slice(0, 10));
    expect(await find(job)).toMatchObject({ state: 'running', selected: 10, replayed: 10, finishedAt: null });
    expect(await deliveryRow(pool, ids[0]!)).toMatchObject({
      status: 'pending',
      generation: 2,
      dead_reason: null,
    });
    expect(await queueRow(pool, ids[0]!)).toMatchObject({
      lane: 1,
      generation: 2,
      attempts: 0,
      sends: 1,
      seq: 1,
    });
    expect(await deadLetterReason(pool, ids[0]!)).toBeNull();
    const done = await workOff(job);
    expect(done).toMatchObject({ state: 'finished', selected: 25, replayed: 25, waiting: 0 });
    expect(done.finishedAt).toBeInstanceOf(Date);
    expect(await pendingAmong(ids)).toEqual(ids);
    expect(await step(job)).toBeNull();
  });

  it('takes what succeeded just as well', async () => {
    const { tenantId, endpointId, ids } = await givenDead(12, { statuses: ['succeeded', 'dead'] });
    for (const filter of [{ endpointId }, {}]) {
      const job = await workOff(await givenJob(tenantId, { status: 'succeeded', ...filter }), 4);
      expect(job).toMatchObject({ state: 'finished', selected: 'endpointId' in filter ? 6 : 0 });
    }
    expect((await pendingAmong(ids)).length).toBe(6);
  });

  it('never replays what dies again after it has begun', async () => {
    const { tenantId, ids } = await givenDead(6);
    const job = await givenJob(tenantId);
    await step(job, 3);
    for (const id of ids.slice(0, 3)) await finishOne(pool, death(await givenClaimed(pool, id)));
    expect(await workOff(job, 3)).toMatchObject({ state: 'finished', selected: 6, replayed: 6 });
    for (const id of ids.slice(0, 3)) {
      expect(await deliveryRow(pool, id)).toMatchObject({ status: 'dead', generation: 2 });
    }
  });

  it('says why it passed over what it selected', async () => {
    const { tenantId, ids } = await givenDead(8);
    const deleted = await givenEndpoint(pool, { tenantId, deleted: true });
    const change = (columns: string, id: string) =>
      pool.query(`update relay.deliveries set ${columns} where id = $1`, [id]);
    await change(`endpoint_id = '${deleted}'`, ids[1]!);
    await change(`endpoint_id = '${deleted}'`, ids[2]!);
    await pool.query('delete from relay.events where id = $1', [`${ids[3]!.slice(0, 32)}0000`]);
    await pool.query('delete from relay.deliveries where id = $1', [ids[5]!]);
    await change('generation = 32767', ids[6]!);
    const job = await givenJob(tenantId);
    await change(`finished_at = now() + interval '1 s'`, ids[4]!);
    expect(await workOff(job)).toMatchObject({
      state: 'finished',
      selected: 8,
      replayed: 2,
      skipped: { endpoint_deleted: 2, event_missing: 1, changed: 3, locked: 0 },
      waiting: 0,
    });
  });

  it('writes nothing of a step that fails', async () => {
    const { tenantId, ids } = await givenDead(5);
    const job = await givenJob(tenantId);
    await refuseInQueue(ids[3]!);
    await expect(step(job)).rejects.toMatchObject({ code: '23514' });
    expect(await find(job)).toMatchObject({ state: 'running', selected: 0, replayed: 0 });
    expect(await pendingAmong(ids)).toEqual([]);
    await step(job, 3);
    await expect(step(job)).rejects.toMatchObject({ code: '23514' });
    expect(await pendingAmong(ids)).toEqual(ids.slice(0, 3));
    await pool.query('drop trigger refuse on relay.queue');
    expect(await workOff(job)).toMatchObject({ state: 'finished', replayed: 5 });
  });

  it('tells whoever subscribes to it that it is done', async () => {
    const { tenantId } = await givenDead(4);
    const hearer = await givenEndpoint(pool, { tenantId, patterns: ['~replay.finished'] });
    const job = await workOff(await givenJob(tenantId), 3);
    const { rows } = await pool.query(
      `select d.endpoint_id, convert_from(e.payload, 'UTF8')::json as body
       from relay.events e join relay.deliveries d on d.event_id = e.id where e.tenant_id = $1 and e.type = '~replay.finished'`,
      [tenantId],
    );
    expect(rows).toMatchObject([
      {
        endpoint_id: hearer,
        body: { data: { replay_id: job.id, dry_run: false, selected: 4, replayed: 4 } },
      },
    ]);
  });

  it('only counts when it is a dry run', async () => {
    const { tenantId, ids } = await givenDead(250);
    const job = await workOff(await givenJob(tenantId, {}, { dryRun: true }));
    expect(job).toMatchObject({ state: 'finished', dryRun: true, selected: 250, replayed: 0 });
    expect(await pendingAmong(ids)).toEqual([]);
  });
});

async function refuseInQueue(id: string): Promise<void> {
  await pool.query(`
    create or replace function relay.refuse() returns trigger language plpgsql as
      $$ begin raise exception 'refused' using errcode = '23514'; end $$;
    create trigger refuse before insert on relay.queue for each row when (new.delivery_id = '${id}') execute function relay.refuse()`);
}

async function holding<T>(ids: readonly string[], work: (holder: pg.PoolClient) => Promise<T>): Promise<T> {
  const holder = await pool.connect();
  try {
    await holder.query('begin');
    await holder.query('select from relay.deliveries where id = any($1::uuid[]) for update', [ids]);
    return await work(holder);
  } finally {
    await holder.query('rollback');
    holder.release();
  }
}

describe('a delivery that somebody holds when its turn comes', () => {
  it('is tried again after the walk, as often as it takes', async () => {
    const { tenantId, ids } = await givenDead(30);
    const job = await givenJob(tenantId);
    const held = [ids[2]!, ids[11]!, ids[29]!];
    await holding(held, async () => {
      expect(await workOff(job)).toMatchObject({ state: 'running', selected: 30, replayed: 27, waiting: 3 });
      expect(await step(job)).toMatchObject({ replayed: 0, moved: false, finished: false });
    });
    await holding(held.slice(1), async () => {
      expect(await step(job, 1)).toMatchObject({ replayed: 1, moved: true, finished: false });
      expect(await find(job)).toMatchObject({ replayed: 28, waiting: 2 });
    });
    expect(await workOff(job, 1)).toMatchObject({
      state: 'finished',
      selected: 30,
      replayed: 30,
      waiting: 0,
    });
    expect(await pendingAmong(ids)).toEqual(ids);
    const left = await pool.query('select from relay.replay_held where job_id = $1', [job.id]);
    expect(left.rowCount).toBe(0);
  });

  it('counts as changed when its holder replayed it', async () => {
    const { tenantId, ids } = await givenDead(3);
    const [job, other] = [await givenJob(tenantId), await givenJob(tenantId)];
    await holding(ids.slice(0, 1), async (holder) => {
      expect(await workOff(job)).toMatchObject({ replayed: 2, waiting: 1 });
      await holder.query('commit');
    });
    expect(await workOff(other)).toMatchObject({ state: 'finished', selected: 1, replayed: 1 });
    expect(await workOff(job)).toMatchObject({ state: 'finished', replayed: 2, skipped: { changed: 1 } });
  });

  it('counts as locked when the job is cancelled first', async () => {
    const { tenantId, ids } = await givenDead(4);
    const job = await givenJob(tenantId);
    await holding(ids.slice(0, 2), async () => {
      await workOff(job);
      expect((await to(job, 'cancel'))?.job).toMatchObject({
        state: 'cancelled',
        selected: 4,
        replayed: 2,
        skipped: { locked: 2 },
        waiting: 0,
      });
    });
    expect(await step(job)).toBeNull();
    const left = await pool.query('select from relay.replay_held where job_id = $1', [job.id]);
    expect(left.rowCount).toBe(0);
  });
});

describe('the switches of a replay job', () => {
  it('hold from the moment at which they are answered', async () => {
    const { tenantId, ids } = await givenDead(400);
    const job = await givenJob(tenantId);
    const working = workOff(job, 2);
    await step(job, 2);
    const paused = (await to(job, 'pause'))!;
    expect(paused).toMatchObject({ over: false, job: { state: 'paused' } });
    await working;
    expect((await pendingAmong(ids)).length).toBe(paused.job.replayed);
    expect((await find(job)).replayed).toBe(paused.job.replayed);
    expect(await step(job)).toBeNull();
    expect((await to(job, 'pause'))?.over).toBe(false);

    expect((await to(job, 'resume'))?.job.state).toBe('running');
    expect((await to(job, 'resume'))?.over).toBe(false);
    await step(job, 2);
    expect((await to(job, 'cancel'))?.job).toMatchObject({ state: 'cancelled', error: null });
    expect(await step(job)).toBeNull();
    expect((await pendingAmong(ids)).length).toBe((await find(job)).replayed);
    for (const how of ['pause', 'resume'] as const) expect((await to(job, how))?.over).toBe(true);
    expect((await to(job, 'cancel'))?.over).toBe(false);
  });

  it('are for its own tenant only', async () => {
    const { tenantId } = await givenDead(1);
    const job = await givenJob(tenantId);
    const stranger = { tenantId: await givenTenant(pool), endpointIds: null };
    for (const how of ['pause', 'cancel'] as const) {
      expect(await switchReplayJob(db, stranger, { id: job.id, how })).toBeNull();
    }
    expect(await findReplayJob(db, stranger, job.id)).toBeNull();
    expect((await find(job)).state).toBe('running');
  });
});

describe('many at work on replay jobs', () => {
  it('replay each delivery once and count each once, whoever takes the steps', async () => {
    const { tenantId, ids } = await givenDead(300);
    const [one, two] = [await givenJob(tenantId), await givenJob(tenantId)];
    const leaders = [one, one, one, two, two].map(async (job) => {
      for (let at = 0; at < 200; at += 1) {
        const taken = await step(job, 7);
        if (taken?.finished || (await find(job)).state === 'finished') return;
      }
    });
    await Promise.all(leaders);
    const [first, second] = [await workOff(one), await workOff(two)];
    expect([first.state, second.state]).toEqual(['finished', 'finished']);
    expect(first.replayed + second.replayed).toBe(300);
    const { rows } = await pool.query(
      'select generation, count(*)::integer as count from relay.deliveries where id = any($1::uuid[]) group by 1',
      [ids],
    );
    expect(rows).toEqual([{ generation: 2, count: 300 }]);
    const report = await checkInvariants(pool, { repair: false });
    expect(report).toMatchObject({
      pendingWithoutQueueRow: 0,
      queueRowWithoutPending: 0,
      deadWithoutDeadLetter: 0,
    });
  });
});

describe('a tenant', () => {
  it('has only so many unfinished replay jobs, and any number of others', async () => {
    const { tenantId } = await givenDead(0);
    const over = await givenJob(tenantId);
    await workOff(over);
    for (let n = 0; n < MAX_OPEN_REPLAYS; n += 1) expect(await givenJob(tenantId)).not.toBeNull();
    expect(await givenJob(tenantId)).toBeNull();
    const running = await listRunningReplays(pool, { after: null, limit: 1_000 });
    const own = running.filter((job) => job.tenantId === tenantId);
    expect(own.length).toBe(MAX_OPEN_REPLAYS);
    const [first, ...rest] = running;
    expect(await listRunningReplays(pool, { after: first!, limit: 1_000 })).toEqual(rest);
  });
});
