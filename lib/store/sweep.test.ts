import type pg from 'pg';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import {
  finishOne,
  givenClaimed,
  givenOne,
  givenOwed,
  keepOne,
  retry,
  success,
} from '../../services/testing/given-queue.ts';
import {
  age,
  attemptRows,
  deadLetterReason,
  deliveryRow,
  endLeases,
  findQueueRow,
  queueRow,
  requestCancel,
} from '../../services/testing/stored-rows.ts';
import { createPool } from './pool.ts';
import { reannounceLost } from './reannounce.ts';
import {
  type Announcement,
  announceDue,
  endOwed,
  nextLook,
  postponeLooks,
  reclaimExpired,
  type SweepOptions,
  surfaceEnqueued,
} from './sweep.ts';

let database: TestDatabase;
let pool: pg.Pool;
let leader: pg.PoolClient;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'sweep', max: 6, applicationName: 'test' });
  leader = await pool.connect();
});
beforeEach(async () => {
  await pool.query('truncate relay.queue');
});
afterAll(async () => {
  leader.release();
  await pool.end();
  await database.drop();
});

const ALL: SweepOptions = { limit: 1000, from: null };
const inMs = (ms: number) => new Date(Date.now() + ms);
const NOTHING_READ = { express: null, bulk: null };
/** Announces what is due, both lanes being read up to the same moment, and tells of both in one list. */
const announce = async (drainedUntil: Date | null = null, options = ALL) => {
  const both = { express: drainedUntil, bulk: drainedUntil };
  return inOneList(await announceDue(leader, { ...options, drainedUntil: both }));
};
const inOneList = ({ ids, ...rest }: Announcement) => ({ ids: [...ids.express, ...ids.bulk], ...rest });
const end = (mayReclaim = true) => endOwed(leader, { ...ALL, mayReclaim });

async function databaseNow(): Promise<Date> {
  return (await nextLook(leader)).now;
}

async function whileLocked(id: string, work: () => Promise<void>): Promise<void> {
  const holder = await pool.connect();
  await holder.query('begin');
  await holder.query('select from relay.queue where delivery_id = $1 for update', [id]);
  await work();
  await holder.query('rollback');
  holder.release();
}

/** A row whose lease ended that long ago, as a holder that vanished leaves it. */
async function givenAbandoned(
  endedMs: number,
  options: { reclaims?: number; id?: string } = {},
): Promise<string> {
  const id = options.id ?? (await givenOne(pool));
  await givenClaimed(pool, id, { processNumber: 9 });
  await endLeases(pool, [id], endedMs);
  await pool.query('update relay.queue set reclaims = $2 where delivery_id = $1', [
    id,
    options.reclaims ?? 0,
  ]);
  return id;
}

describe('what is due', () => {
  it('is announced once', async () => {
    const ids = await givenOwed(pool, 3, { announced: false });
    const { ids: announced, stalled } = await announce();
    expect([...announced].sort()).toEqual([...ids].sort());
    expect(stalled).toBe(0);
    const row = await queueRow(pool, ids[0]!);
    expect(row.announced_in).not.toBeNull();
    expect(row.look_in - row.announced_in!).toBeCloseTo(30_000, 0);
    expect((await announce()).ids).toEqual([]);
  });

  it('again after a retry is announced again, as due and not as stalled', async () => {
    const id = await givenOne(pool);
    await keepOne(pool, retry(await givenClaimed(pool, id), 0));
    expect(await announce()).toMatchObject({ ids: [id], stalled: 0 });
  });

  it('was announced before its moment was moved counts as due', async () => {
    const id = await givenOne(pool);
    await pool.query(
      `update relay.queue set due_at = now(), look_at = now(), announced_at = now() - interval '1 s'`,
    );
    expect(await announce()).toMatchObject({ ids: [id], stalled: 0 });
  });

  it('is not announced when leased, cancelled, expired or locked, nor before its moment', async () => {
    const [leased, cancelled, locked] = await givenOwed(pool, 3, { announced: false });
    const expired = await givenOne(pool, { expiresAt: inMs(-1_000) });
    const early = await givenOne(pool, { deliverAt: inMs(60_000) });
    await pool.query('update relay.queue set look_at = now() where delivery_id = any($1::uuid[])', [
      [expired, early],
    ]);
    await givenClaimed(pool, leased!);
    await requestCancel(pool, cancelled!);
    await whileLocked(locked!, async () => expect((await announce()).ids).toEqual([]));
    expect((await announce()).ids).toEqual([locked]);
  });

  it('is taken in slices, oldest look first, each beginning where the one before ended', async () => {
    const ids = await givenOwed(pool, 10, { announced: false });
    await Promise.all(ids.map((id, n) => age(pool, [id], 100_000 - n * 5_000)));
    const first = await announce(null, { limit: 4, from: null });
    expect([...first.ids].sort()).toEqual(ids.slice(0, 4));
    const second = await announce(null, { limit: 100, from: first.cursor });
    expect([...second.ids].sort()).toEqual(ids.slice(4));
    const now = await databaseNow();
    expect(now.getTime() - second.cursor!.getTime()).toBeGreaterThanOrEqual(0);
    expect(now.getTime() - second.cursor!.getTime()).toBeLessThan(5_000);
  });

  it('lies before the cursor is found by a full pass only', async () => {
    const [id] = await givenOwed(pool, 1, { announced: false });
    await age(pool, [id!], 60_000);
    const from = await databaseNow();
    expect((await announce(null, { limit: 10, from })).ids).toEqual([]);
    expect((await announce()).ids).toEqual([id]);
  });

  it('never looks later than its event expires', async () => {
    const id = await givenOne(pool, { expiresAt: inMs(10_000), deliverAt: inMs(-1) });
    await pool.query('update relay.queue set announced_at = null, look_at = now()');
    await announce();
    expect((await queueRow(pool, id)).look_in).toBeLessThan(10_500);
  });
});

describe('what was announced and never claimed', () => {
  it('is announced again only up to the moment that the stream is known to be read', async () => {
    const [older, newer] = await givenOwed(pool, 2);
    await age(pool, [older!], 60_000);
    await age(pool, [newer!], 40_000);
    const now = (await databaseNow()).getTime();
    expect((await announce(null)).ids).toEqual([]);
    expect(await announce(new Date(now - 50_000))).toMatchObject({ ids: [older], stalled: 1 });
    expect(await announce(new Date(now))).toMatchObject({ ids: [newer], stalled: 1 });
  });

  it('and not known to be read neither is locked nor takes the place of others', async () => {
    const stalled = await givenOwed(pool, 5);
    await age(pool, stalled, 60_000);
    const [due] = await givenOwed(pool, 1, { announced: false });
    expect((await announce(null, { limit: 2, from: null })).ids).toEqual([due]);
    expect((await queueRow(pool, stalled[0]!)).look_in).toBeLessThan(0);
  });

  it('is left alone while its 30 s are not over', async () => {
    const [id] = await givenOwed(pool, 1);
    await age(pool, [id!], 20_000);
    expect((await announce(await databaseNow())).ids).toEqual([]);
  });
});

describe('the two lanes', () => {
  const lanesOf = async (ids: readonly string[]) =>
    Promise.all(ids.map(async (id) => (await queueRow(pool, id)).lane));
  const onBulk = (ids: readonly string[]) =>
    pool.query('update relay.queue set lane = 1 where delivery_id = any($1::uuid[])', [ids]);

  it('part what was accepted from what has waited: a retry goes on bulk, and its row says so', async () => {
    const id = await givenOne(pool);
    await keepOne(pool, retry(await givenClaimed(pool, id), 0));
    await pool.query('update relay.queue set lane = 0');
    const { ids } = await announceDue(leader, { ...ALL, drainedUntil: NOTHING_READ });
    expect(ids).toEqual({ express: [], bulk: [id] });
    expect(await lanesOf([id])).toEqual([1]);
  });

  it('keep what stalled on them, each by its own mark alone', async () => {
    const [fresh, other] = await givenOwed(pool, 2);
    await onBulk([other!]);
    await age(pool, [fresh!, other!], 60_000);
    const now = await databaseNow();
    const express = await announceDue(leader, { ...ALL, drainedUntil: { express: now, bulk: null } });
    expect(express).toMatchObject({ ids: { express: [fresh], bulk: [] }, stalled: 1 });
    const bulk = await announceDue(leader, { ...ALL, drainedUntil: { express: null, bulk: now } });
    expect(bulk).toMatchObject({ ids: { express: [], bulk: [other] }, stalled: 1 });
    expect(await lanesOf([fresh!, other!])).toEqual([0, 1]);
  });

  it('are flushed one by one', async () => {
    const [fresh, other] = await givenOwed(pool, 2);
    await onBulk([other!]);
    await age(pool, [fresh!, other!], 2_000);
    const until = new Date((await databaseNow()).getTime() - 1_000);
    expect(await reannounceLost(leader, { lane: 'bulk', limit: 100, until })).toEqual([other]);
    expect(await reannounceLost(leader, { lane: 'express', limit: 100, until })).toEqual([fresh]);
    expect(await lanesOf([fresh!, other!])).toEqual([0, 1]);
  });
});

describe('a look that comes too early', () => {
  it('is moved to 5 s after the lease, cancelled and expired rows included', async () => {
    const [leased, cancelled] = await givenOwed(pool, 2);
    const expired = await givenOne(pool, { expiresAt: inMs(-1_000) });
    for (const id of [leased!, cancelled!, expired]) await givenClaimed(pool, id);
    await requestCancel(pool, cancelled!);
    await pool.query('update relay.queue set look_at = now()');
    expect(await postponeLooks(leader, ALL)).toBe(3);
    for (const id of [leased!, cancelled!, expired]) {
      const row = await queueRow(pool, id);
      expect(row.look_in - row.lease_in!).toBeCloseTo(5_000, 0);
    }
    expect(await postponeLooks(leader, ALL)).toBe(0);
  });

  it('in the 5 s after a lease is moved to their end', async () => {
    const id = await givenOne(pool);
    await givenClaimed(pool, id);
    await pool.query(`update relay.queue set lease_expires_at = now() - interval '2 s', look_at = now()`);
    expect(await postponeLooks(leader, ALL)).toBe(1);
    const row = await queueRow(pool, id);
    expect(row.look_in).toBeGreaterThan(1_000);
    expect(row.look_in).toBeLessThanOrEqual(3_000);
  });

  it('is moved to the due moment, or to the expiry before it', async () => {
    const due = await givenOne(pool, { deliverAt: inMs(60_000) });
    const expiring = await givenOne(pool, { deliverAt: inMs(60_000), expiresAt: inMs(20_000) });
    await pool.query('update relay.queue set look_at = now()');
    expect(await postponeLooks(leader, ALL)).toBe(2);
    const row = await queueRow(pool, due);
    expect(row.look_in).toBe(row.due_in);
    expect((await queueRow(pool, expiring)).look_in).toBeLessThan(20_500);
  });

  it('of a due, cancelled or long ended row is not moved', async () => {
    const [due, cancelled] = await givenOwed(pool, 2, { announced: false });
    await requestCancel(pool, cancelled!);
    await givenAbandoned(6_000);
    const before = await queueRow(pool, due!);
    expect(await postponeLooks(leader, ALL)).toBe(0);
    expect((await queueRow(pool, due!)).look_in).toBeLessThanOrEqual(before.look_in);
  });
});

describe('a lease that ended over 5 s ago', () => {
  it('is given back: the token stays, the holder is named in the log, the row is due a little later', async () => {
    const id = await givenAbandoned(5_500);
    const { claim_token } = await queueRow(pool, id);
    expect(await reclaimExpired(leader, ALL)).toEqual([id]);
    const row = await queueRow(pool, id);
    expect(row).toMatchObject({
      claim_token,
      lease_in: null,
      announced_in: null,
      reclaims: 1,
      seq: 1,
      attempts: 0,
      sends: 0,
      lane: 1,
    });
    expect(row.look_in).toBe(row.due_in);
    expect(row.due_in).toBeLessThanOrEqual(2_000);
    expect(await attemptRows(pool, id)).toMatchObject([
      { seq: 1, send: null, attempt: 0, class: 'lost', claimed_by: 9 },
    ]);
    expect(await reclaimExpired(leader, ALL)).toEqual([]);
  });

  it('and not before, nor when it runs', async () => {
    await givenAbandoned(4_000);
    await givenClaimed(pool, await givenOne(pool));
    await pool.query('update relay.queue set look_at = now()');
    expect(await reclaimExpired(leader, ALL)).toEqual([]);
  });

  it.each([
    [0, 2_000],
    [3, 16_000],
    [8, 300_000],
  ])('after %i reclaims comes back at a moment spread over %i ms', async (reclaims, rangeMs) => {
    const ids = await givenOwed(pool, 60);
    await Promise.all(ids.map((id) => givenAbandoned(6_000, { id, reclaims })));
    expect((await reclaimExpired(leader, ALL)).length).toBe(60);
    const delays = await Promise.all(ids.map(async (id) => (await attemptRows(pool, id))[0]!.next_in!));
    expect(new Set(delays).size).toBeGreaterThan(50);
    expect(Math.max(...delays)).toBeLessThanOrEqual(rangeMs);
    expect(Math.max(...delays) - Math.min(...delays)).toBeGreaterThan(rangeMs * 0.6);
  });

  it('ends the delivery when it is the tenth', async () => {
    const ninth = await givenAbandoned(6_000, { reclaims: 8 });
    const tenth = await givenAbandoned(6_000, { reclaims: 9 });
    expect(await reclaimExpired(leader, ALL)).toEqual([ninth]);
    expect(await end(false)).toEqual([]);
    expect(await end()).toEqual(['abandoned']);
    expect(await deliveryRow(pool, tenth)).toMatchObject({
      status: 'dead',
      dead_reason: 'abandoned',
      attempts: 0,
      sends: 0,
      seq: 1,
      last_class: 'lost',
    });
    expect(await deadLetterReason(pool, tenth)).toBe('abandoned');
    expect(await attemptRows(pool, tenth)).toMatchObject([
      { seq: 1, class: 'lost', reason: 'abandoned', claimed_by: 9 },
    ]);
    expect(await findQueueRow(pool, tenth)).toBeNull();
  });

  it('of a row that a settle holds at this moment is passed over', async () => {
    const id = await givenAbandoned(6_000);
    await whileLocked(id, async () => expect(await reclaimExpired(leader, ALL)).toEqual([]));
    const row = await queueRow(pool, id);
    expect(await finishOne(pool, success({ deliveryId: id, token: row.claim_token! }))).toBe(true);
    expect(await reclaimExpired(leader, ALL)).toEqual([]);
  });
});

describe('a cancelled or expired delivery', () => {
  it('that nobody holds is ended', async () => {
    const [cancelled, kept] = await givenOwed(pool, 2);
    await requestCancel(pool, cancelled!);
    const expired = await givenOne(pool, { expiresAt: inMs(-1_000) });
    const both = await givenOne(pool, { expiresAt: inMs(-1_000) });
    await requestCancel(pool, both);
    expect((await end(false)).sort()).toEqual(['cancelled', 'cancelled', 'expired']);
    expect(await deliveryRow(pool, cancelled!)).toMatchObject({
      status: 'dead',
      dead_reason: 'cancelled',
      seq: 0,
    });
    expect(await deliveryRow(pool, expired)).toMatchObject({ status: 'dead', dead_reason: 'expired' });
    expect(await deadLetterReason(pool, both)).toBe('cancelled');
    expect(await attemptRows(pool, cancelled!)).toEqual([]);
    expect(await findQueueRow(pool, kept!)).not.toBeNull();
  });

  it('that is held is ended only when its lease ended 5 s ago and settles had their chance', async () => {
    const id = await givenOne(pool);
    await givenClaimed(pool, id, { processNumber: 9 });
    await requestCancel(pool, id);
    expect(await end()).toEqual([]);
    await pool.query(`update relay.queue set lease_expires_at = now() - interval '4 s', look_at = now()`);
    expect(await end()).toEqual([]);
    await pool.query(`update relay.queue set lease_expires_at = now() - interval '6 s'`);
    expect(await reclaimExpired(leader, ALL)).toEqual([]);
    expect(await end(false)).toEqual([]);
    expect(await end()).toEqual(['cancelled']);
    expect(await deliveryRow(pool, id)).toMatchObject({
      dead_reason: 'cancelled',
      seq: 1,
      sends: 0,
      last_class: 'lost',
    });
    expect(await attemptRows(pool, id)).toMatchObject([{ class: 'lost', seq: 1, claimed_by: 9 }]);
  });

  it('keeps what its sends spent, and is ended in spite of a dead letter that should not be there', async () => {
    const id = await givenOne(pool);
    await keepOne(pool, retry(await givenClaimed(pool, id)));
    await requestCancel(pool, id);
    await pool.query(
      `insert into relay.dead_letters (delivery_id, endpoint_id, event_id, tenant_id, reason)
       select id, endpoint_id, event_id, tenant_id, 'gone' from relay.deliveries where id = $1`,
      [id],
    );
    expect(await end()).toEqual(['cancelled']);
    expect(await deliveryRow(pool, id)).toMatchObject({ attempts: 1, sends: 1, seq: 1 });
    expect(await deadLetterReason(pool, id)).toBe('cancelled');
  });
});

describe('rows enqueued inside a transaction of somebody else', () => {
  it('are found however late their commit, and then look now, or when due, or when they expire', async () => {
    const now = await givenOne(pool);
    const later = await givenOne(pool, { deliverAt: inMs(60_000) });
    const expiring = await givenOne(pool, { deliverAt: inMs(60_000), expiresAt: inMs(20_000) });
    await pool.query(`update relay.queue set look_at = '-infinity', announced_at = null`);
    expect(await surfaceEnqueued(leader, 2)).toBe(2);
    expect(await surfaceEnqueued(leader, 2)).toBe(1);
    expect(await surfaceEnqueued(leader, 2)).toBe(0);
    expect((await queueRow(pool, now)).look_in).toBeLessThanOrEqual(0);
    expect((await queueRow(pool, now)).look_in).toBeGreaterThan(-10_000);
    expect((await queueRow(pool, later)).look_in).toBeGreaterThan(50_000);
    expect((await queueRow(pool, expiring)).look_in).toBeLessThan(20_500);
  });

  it('are late from when they were found, not from when their producer wrote them', async () => {
    const id = await givenOne(pool);
    await age(pool, [id], 3_600_000);
    await pool.query(`update relay.queue set look_at = '-infinity', announced_at = null`);
    expect(await surfaceEnqueued(leader, 1)).toBe(1);
    expect((await queueRow(pool, id)).due_in).toBeGreaterThan(-60_000);
    expect(await announce()).toMatchObject({ ids: [id], stalled: 0 });
  });

  it('are announced by a full pass without moving the cursor', async () => {
    const id = await givenOne(pool);
    await pool.query(`update relay.queue set look_at = '-infinity', announced_at = null`);
    expect(await announce(null, { limit: 1, from: null })).toMatchObject({ ids: [id], cursor: null });
  });
});

describe('the next look', () => {
  it('is the earliest that lies ahead, in milliseconds', async () => {
    expect((await nextLook(leader)).inMs).toBeNull();
    const [past, near, far, parked] = await givenOwed(pool, 4);
    await age(pool, [past!], 60_000);
    await age(pool, [near!], 20_000);
    await pool.query(`update relay.queue set look_at = 'infinity' where delivery_id = $1`, [parked]);
    const { inMs: wait, now } = await nextLook(leader);
    expect(wait).toBeGreaterThan(5_000);
    expect(wait).toBeLessThanOrEqual(10_000);
    expect(Math.abs(now.getTime() - Date.now())).toBeLessThan(5_000);
    expect((await queueRow(pool, far!)).look_in).toBeGreaterThan(wait!);
  });
});

describe('announcements that were flushed away', () => {
  it('are made again at once for what was announced before the flush, and for nothing else', async () => {
    const [lost, later, leased, cancelled] = await givenOwed(pool, 4);
    const early = await givenOne(pool, { deliverAt: inMs(60_000) });
    await age(pool, [lost!, leased!, cancelled!], 2_000);
    await givenClaimed(pool, leased!);
    await requestCancel(pool, cancelled!);
    const until = new Date((await databaseNow()).getTime() - 1_000);
    expect(await reannounceLost(leader, { lane: 'express', limit: 100, until })).toEqual([lost]);
    const row = await queueRow(pool, lost!);
    expect(row.announced_in).toBeGreaterThan(-1_000);
    expect(row.look_in - row.announced_in!).toBeCloseTo(30_000, 0);
    expect(await reannounceLost(leader, { lane: 'express', limit: 100, until })).toEqual([]);
    for (const id of [later!, early]) expect((await queueRow(pool, id)).look_in).toBeGreaterThan(20_000);
  });

  it('are made again in slices', async () => {
    const ids = await givenOwed(pool, 5);
    await age(pool, ids, 2_000);
    const until = new Date((await databaseNow()).getTime() - 1_000);
    const slices = [];
    for (let n = 0; n < 3; n += 1)
      slices.push(await reannounceLost(leader, { lane: 'express', limit: 2, until }));
    expect(slices.map((slice) => slice.length)).toEqual([2, 2, 1]);
    expect(slices.flat().sort()).toEqual([...ids].sort());
  });
});
