import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import {
  deferral,
  finishOne,
  givenClaimed,
  givenEndpoint,
  givenOwed,
  lease,
  PROCESS,
  success,
} from '../../services/testing/given-queue.ts';
import { givenWaiting, queueRow, requestCancel } from '../../services/testing/stored-rows.ts';
import { claimByIds } from './claims.ts';
import { createDatabase, type Database } from './database.ts';
import { defer } from './defer.ts';
import {
  cancelStep,
  type EndpointJob,
  finishJob,
  listJobs,
  pickRetimable,
  requestJob,
  retime,
} from './endpoint-jobs.ts';
import { createPool } from './pool.ts';

let database: TestDatabase;
let pool: pg.Pool;
let db: Database;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'sweep', max: 6, applicationName: 'test' });
  db = createDatabase(pool);
});
beforeEach(async () => {
  await pool.query('truncate relay.endpoint_jobs, relay.queue');
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

const allJobs = () => listJobs(pool, { after: null, limit: 100 });
const change = (endpointId: string, columns: string) =>
  pool.query(`update relay.endpoints set ${columns} where id = $1`, [endpointId]);
const idsOf = (rows: readonly { deliveryId: string }[]) => rows.map((row) => row.deliveryId).sort();

async function givenJob(endpointId: string, kind: EndpointJob['kind'] = 'retime'): Promise<EndpointJob> {
  await requestJob(db, endpointId, kind);
  const job = (await allJobs()).find((each) => each.endpointId === endpointId && each.kind === kind);
  if (!job) throw new Error('the job is not there');
  return job;
}

/** An endpoint at slot version 2, for which deliveries wait in slots of version 1. */
async function givenOlder(count: number): Promise<{ endpointId: string; ids: string[] }> {
  const endpointId = await givenEndpoint(pool, { patterns: ['nothing.else'] });
  const ids = await givenOwed(pool, count, { endpointId });
  await givenWaiting(pool, ids, { everyMs: 1_000 });
  await change(endpointId, 'slot_version = 2');
  return { endpointId, ids };
}

describe('the list of jobs', () => {
  it('tells them page by page in one order', async () => {
    const endpoints = Array.from({ length: 5 }, () => randomUUID()).sort();
    for (const id of endpoints) await requestJob(db, id, 'retime');
    await requestJob(db, endpoints[2]!, 'cancel');
    const first = await listJobs(pool, { after: null, limit: 4 });
    expect(first.map((job) => [job.endpointId, job.kind])).toEqual([
      [endpoints[0], 'retime'],
      [endpoints[1], 'retime'],
      [endpoints[2], 'cancel'],
      [endpoints[2], 'retime'],
    ]);
    const second = await listJobs(pool, { after: first[3]!, limit: 4 });
    expect(second.map((job) => job.endpointId)).toEqual(endpoints.slice(3));
    expect(await listJobs(pool, { after: second[1]!, limit: 4 })).toEqual([]);
  });

  it('knows a job that was asked for again, which starts over and is not ended by its earlier request', async () => {
    const id = randomUUID();
    const job = await givenJob(id, 'cancel');
    await pool.query('update relay.endpoint_jobs set after_delivery = gen_random_uuid()');
    const again = await givenJob(id, 'cancel');
    expect(again).toEqual({ ...job, round: 2, afterDelivery: null });
    expect(await finishJob(pool, job)).toBe(false);
    expect(await finishJob(pool, again)).toBe(true);
    expect(await finishJob(pool, again)).toBe(false);
    expect(await allJobs()).toEqual([]);
  });

  it('has a request only when its transaction commits', async () => {
    await db
      .transaction()
      .execute(async (trx) => {
        await requestJob(trx, randomUUID(), 'retime');
        throw new Error('no');
      })
      .catch(() => undefined);
    expect(await allJobs()).toEqual([]);
  });
});

describe('what a re-time job picks', () => {
  it('is what waits in slots of an older version, in the order of the slots, with the pace of the endpoint', async () => {
    const { endpointId, ids } = await givenOlder(20);
    await change(endpointId, 'rate_per_second = 7, burst = 3');
    const picked = await pickRetimable(pool, endpointId, 8);
    expect(picked).toEqual({ slotVersion: 2, ratePerSecond: 7, burst: 3, restMs: 0, ids: ids.slice(0, 8) });
  });

  it('is nothing that is leased, cancelled, of the present version, or waits for nothing', async () => {
    const { endpointId, ids } = await givenOlder(6);
    const [leased, cancelled, present, plain, other, old] = ids;
    await pool.query(`update relay.queue set due_at = now() - interval '1 s' where delivery_id = $1`, [
      leased,
    ]);
    await givenClaimed(pool, leased!);
    await requestCancel(pool, cancelled!);
    await givenWaiting(pool, [present!], { slotVersion: 2 });
    await pool.query('update relay.queue set waiting = null where delivery_id = $1', [plain]);
    await pool.query('update relay.queue set endpoint_id = gen_random_uuid() where delivery_id = $1', [
      other,
    ]);
    expect((await pickRetimable(pool, endpointId, 100))?.ids).toEqual([old]);
  });

  it('is parked rows first, in the order of their acceptance: they came due long ago', async () => {
    const { endpointId, ids } = await givenOlder(8);
    const parked = ids.slice(4);
    for (const id of [...parked].reverse()) await givenWaiting(pool, [id], { parked: true });
    expect((await pickRetimable(pool, endpointId, 6))?.ids).toEqual([...parked, ...ids.slice(0, 2)]);
  });

  it('is the newest of the older versions first: those stood at the head when that change came', async () => {
    const { endpointId, ids } = await givenOlder(6);
    await change(endpointId, 'slot_version = 3');
    await givenWaiting(pool, ids.slice(0, 3), { slotVersion: 2, everyMs: 60_000 });
    expect((await pickRetimable(pool, endpointId, 10))?.ids).toEqual(ids.slice(0, 3));
    await givenWaiting(pool, ids.slice(0, 3), { slotVersion: 3 });
    expect((await pickRetimable(pool, endpointId, 10))?.ids).toEqual(ids.slice(3));
  });

  it('comes with the rest of a pause or a cooldown, whichever ends later', async () => {
    const { endpointId } = await givenOlder(1);
    await change(endpointId, `paused_until = now() + interval '20 s', paused_reason = 'operator'`);
    const paused = await pickRetimable(pool, endpointId, 1);
    expect(paused!.restMs).toBeGreaterThan(10_000);
    expect(paused!.restMs).toBeLessThanOrEqual(20_000);
    await change(endpointId, `breaker_state = 'open', breaker_until = now() + interval '60 s'`);
    expect((await pickRetimable(pool, endpointId, 1))!.restMs).toBeGreaterThan(50_000);
    await change(endpointId, `paused_until = now() - interval '1 s', breaker_until = now() - interval '1 s'`);
    expect((await pickRetimable(pool, endpointId, 1))!.restMs).toBe(0);
  });

  it.each([
    ['disabled', `enabled = false, disabled_reason = 'operator'`],
    ['paused without end', `paused_until = 'infinity', paused_reason = 'operator'`],
    ['deleted', 'deleted_at = now()'],
  ])('is nothing for an endpoint that is %s', async (_, columns) => {
    const { endpointId } = await givenOlder(1);
    await change(endpointId, columns);
    expect(await pickRetimable(pool, endpointId, 1)).toBeNull();
    expect(await pickRetimable(pool, randomUUID(), 1)).toBeNull();
  });

  it('is still there while somebody holds it, so that its job is not done', async () => {
    const { endpointId, ids } = await givenOlder(1);
    const holder = await pool.connect();
    await holder.query('begin');
    await holder.query('select from relay.queue where delivery_id = $1 for update', ids);
    const slots = { slotVersion: 2, ids, delaysMs: [1_000] };
    expect((await pickRetimable(pool, endpointId, 1))?.ids).toEqual(ids);
    expect(await retime(pool, endpointId, slots)).toBe(0);
    await holder.query('rollback');
    holder.release();
    expect(await retime(pool, endpointId, slots)).toBe(1);
    expect((await pickRetimable(pool, endpointId, 1))?.ids).toEqual([]);
  });
});

describe('a delivery that is timed anew', () => {
  it('waits for its new moment, announced to nobody, and for no longer than its event lives', async () => {
    const { endpointId, ids } = await givenOlder(3);
    await givenWaiting(pool, [ids[0]!], { parked: true });
    await pool.query(
      `update relay.queue set expires_at = now() + interval '3 s', announced_at = now() where delivery_id = $1`,
      [ids[2]],
    );
    expect(await retime(pool, endpointId, { slotVersion: 2, ids, delaysMs: [0.25, 20_000, 40_000] })).toBe(3);
    const [first, second, third] = await Promise.all(ids.map((id) => queueRow(pool, id)));
    for (const row of [first, second, third])
      expect(row).toMatchObject({ waiting: 'slot', slot_version: 2, announced_in: null, lane: 1 });
    expect(first!.due_in).toBeLessThanOrEqual(0.25);
    expect(second!.due_in).toBeGreaterThan(10_000);
    expect(second!.due_in).toBeLessThanOrEqual(20_000);
    expect(second!.look_in).toBe(second!.due_in);
    expect(third!.due_in).toBeGreaterThan(30_000);
    expect(third!.look_in).toBeLessThan(3_500);
  });

  it('is left alone when it was claimed, cancelled, ended or timed by somebody else since it was picked', async () => {
    const { endpointId, ids } = await givenOlder(5);
    const [claimed, cancelled, ended, timed, free] = ids;
    await pool.query(`update relay.queue set due_at = now() - interval '1 s'`);
    const [held] = await claimByIds(pool, [claimed!], lease());
    await requestCancel(pool, cancelled!);
    await finishOne(pool, success(await givenClaimed(pool, ended!)));
    await givenWaiting(pool, [timed!], { slotVersion: 3, everyMs: 50_000 });
    const before = [await queueRow(pool, cancelled!), await queueRow(pool, timed!)];
    expect(await retime(pool, endpointId, { slotVersion: 2, ids, delaysMs: ids.map(() => 60_000) })).toBe(1);
    expect((await queueRow(pool, free!)).due_in).toBeGreaterThan(50_000);
    expect((await queueRow(pool, claimed!)).claim_token).toBe(held!.token);
    expect((await queueRow(pool, cancelled!)).slot_version).toBe(before[0]!.slot_version);
    expect((await queueRow(pool, timed!)).slot_version).toBe(3);
    // Whoever holds it is told by the version that its gate is out of date.
    await defer(pool, [deferral(held!, { wait: 60_000 })], PROCESS);
    expect((await queueRow(pool, claimed!)).due_in).toBeLessThanOrEqual(0);
  });
});

describe('a cancel job', () => {
  it('walks all deliveries of the endpoint in steps, leased ones too, and no other', async () => {
    const endpointId = await givenEndpoint(pool, { patterns: ['nothing.else'] });
    const ids = await givenOwed(pool, 2_500, { endpointId });
    const [strangers] = await givenOwed(pool, 1);
    const leased = await claimByIds(pool, ids.slice(0, 1_000), lease());
    for (const claim of leased.slice(0, 50)) await finishOne(pool, success(claim));
    await givenWaiting(pool, ids.slice(2_000), { parked: true });
    let job = await givenJob(endpointId, 'cancel');
    const walked: number[] = [];
    let cancelled = 0;
    while (walked.at(-1) !== 0) {
      const step = await cancelStep(pool, job, 1_000);
      walked.push(step.walked);
      cancelled += step.cancelled;
      job = (await allJobs())[0]!;
    }
    expect([walked, cancelled]).toEqual([[1_000, 1_000, 500, 0], 2_450]);
    expect(job.afterDelivery).toBe(ids.at(-1));
    const { rows } = await pool.query(
      `select count(*)::int as n, count(*) filter (where look_at <= now())::int as looked,
         count(*) filter (where lease_expires_at is not null)::int as leased
       from relay.queue where cancel_requested`,
    );
    expect(rows[0]).toEqual({ n: 2_450, looked: 2_450, leased: 950 });
    expect((await queueRow(pool, strangers!)).cancel_requested).toBe(false);
  });

  it('that was asked for again does not go on where the earlier request was', async () => {
    const endpointId = await givenEndpoint(pool, { patterns: ['nothing.else'] });
    await givenOwed(pool, 5, { endpointId });
    const stale = await givenJob(endpointId, 'cancel');
    const fresh = await givenJob(endpointId, 'cancel');
    await cancelStep(pool, stale, 2);
    expect(await allJobs()).toEqual([fresh]);
  });

  it('that is done twice at once cancels once', async () => {
    const endpointId = await givenEndpoint(pool, { patterns: ['nothing.else'] });
    const ids = await givenOwed(pool, 300, { endpointId });
    const job = await givenJob(endpointId, 'cancel');
    const steps = await Promise.all([cancelStep(pool, job, 500), cancelStep(pool, job, 500)]);
    expect(steps[0].cancelled + steps[1].cancelled).toBe(300);
    expect(idsOf(await claimByIds(pool, ids, lease()))).toEqual([]);
  });
});
