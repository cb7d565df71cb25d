import { randomBytes, randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import {
  deferOne,
  deferral,
  givenClaimed,
  givenEndpoint,
  givenOne,
  givenOwed,
  keepOne,
  lease,
  pollLease,
  release,
  retry,
} from '../../services/testing/given-queue.ts';
import { age, endLeases, queueRow, requestCancel } from '../../services/testing/stored-rows.ts';
import { claimByIds, claimDue, readPayload } from './claims.ts';
import { createPool } from './pool.ts';

let database: TestDatabase;
let pool: pg.Pool;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'hot', max: 6, applicationName: 'test' });
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

const idsOf = (claims: readonly { deliveryId: string }[]) => claims.map((claim) => claim.deliveryId).sort();
const inMs = (ms: number) => new Date(Date.now() + ms);

describe('a claim', () => {
  it('brings all that sending needs', async () => {
    const endpointId = await givenEndpoint(pool);
    await pool.query('update relay.endpoints set version = 5 where id = $1', [endpointId]);
    const payload = Buffer.from([0, 0xff, 1]);
    const id = await givenOne(pool, {
      targetEndpointId: endpointId,
      type: 'a.b',
      contentType: 'x/y',
      payload,
    });
    await age(pool, [id], 2_000);
    const token = randomUUID();
    const [claim] = await claimByIds(pool, [id], lease({ token }));
    expect(claim).toMatchObject({
      deliveryId: id,
      eventId: `${id.slice(0, 32)}0000`,
      endpointId,
      token,
      attempts: 0,
      sends: 0,
      deferralReason: null,
      expired: false,
      type: 'a.b',
      contentType: 'x/y',
      payloadBytes: 3,
      endpointVersion: 5,
      endpointDeleted: false,
      waited: false,
      trips: 0,
      gates: null,
    });
    expect(claim?.payload?.equals(payload)).toBe(true);
    expect(claim?.lateMs).toBeGreaterThanOrEqual(2_000);
    expect(claim?.lateMs).toBeLessThan(20_000);
    expect(claim?.ageMs).toBeGreaterThan(0);
    expect(claim?.ageMs).toBeLessThan(20_000);
  });

  it('leases by the database clock, in the name of its process', async () => {
    const id = await givenOne(pool);
    const { token } = await givenClaimed(pool, id, { leaseMs: 12_345, processNumber: 42 });
    const row = await queueRow(pool, id);
    expect(row).toMatchObject({ claim_token: token, claimed_by: 42 });
    expect(row.lease_in).toBeGreaterThan(2_345);
    expect(row.lease_in).toBeLessThanOrEqual(12_345);
  });

  it('brings a payload of 32 KiB, and of a larger one its length', async () => {
    const payloads = [randomBytes(32_768), randomBytes(32_769)];
    const ids = [
      await givenOne(pool, { payload: payloads[0]! }),
      await givenOne(pool, { payload: payloads[1]! }),
    ];
    const claims = await claimByIds(pool, ids, lease());
    const [small, large] = ids.map((id) => claims.find((claim) => claim.deliveryId === id));
    expect(small?.payload?.equals(payloads[0]!)).toBe(true);
    expect(large).toMatchObject({ payload: null, payloadBytes: 32_769 });
    expect((await readPayload(pool, large!.eventId))?.equals(payloads[1]!)).toBe(true);
    expect(await readPayload(pool, randomUUID())).toBeNull();
  });

  it('says that an event or an endpoint is missing instead of passing the row over', async () => {
    const [noEvent, noEndpoint, deleted] = [await givenOne(pool), await givenOne(pool), await givenOne(pool)];
    await pool.query('delete from relay.events where id = $1', [`${noEvent.slice(0, 32)}0000`]);
    await pool.query('update relay.queue set endpoint_id = gen_random_uuid() where delivery_id = $1', [
      noEndpoint,
    ]);
    await pool.query(
      'update relay.endpoints set deleted_at = now() where id = (select endpoint_id from relay.queue where delivery_id = $1)',
      [deleted],
    );
    const claims = await claimByIds(pool, [noEvent, noEndpoint, deleted], lease());
    const claimOf = (id: string) => claims.find((claim) => claim.deliveryId === id);
    expect(claimOf(noEvent)).toMatchObject({ eventMissing: true, payload: null, endpointVersion: 1 });
    expect(claimOf(noEndpoint)).toMatchObject({
      endpointVersion: null,
      endpointDeleted: false,
      type: 'order.paid',
    });
    expect(claimOf(deleted)).toMatchObject({ endpointVersion: 1, endpointDeleted: true });
  });

  it('says that the time of its event is over', async () => {
    const ids = [
      await givenOne(pool, { expiresAt: inMs(-1) }),
      await givenOne(pool, { expiresAt: inMs(60_000) }),
    ];
    const claims = await claimByIds(pool, ids, lease());
    expect(ids.map((id) => claims.find((claim) => claim.deliveryId === id)?.expired)).toEqual([true, false]);
  });

  it('tells what held the delivery back before, and what was spent on it', async () => {
    const id = await givenOne(pool);
    await keepOne(pool, retry(await givenClaimed(pool, id)));
    const claim = await givenClaimed(pool, id);
    expect(claim).toMatchObject({ attempts: 1, sends: 1 });
    expect(claim.waited).toBe(false);
    await deferOne(pool, deferral(claim, { reason: 'paused' }));
    expect(await givenClaimed(pool, id)).toMatchObject({
      attempts: 1,
      sends: 1,
      deferralReason: 'paused',
      waited: true,
    });
  });

  it('passes over what is not due, leased, cancelled or finished, and ids that never were', async () => {
    const [due, early, leased, cancelled] = await givenOwed(pool, 4);
    await age(pool, [early!], -60_000);
    await givenClaimed(pool, leased!);
    await requestCancel(pool, cancelled!);
    const claims = await claimByIds(pool, [early!, leased!, cancelled!, randomUUID(), due!], lease());
    expect(idsOf(claims)).toEqual([due]);
  });

  it('does not take a lease that has ended: only the sweep gives it back', async () => {
    const id = await givenOne(pool);
    await givenClaimed(pool, id);
    await endLeases(pool, [id], 60_000);
    expect(await claimByIds(pool, [id], lease())).toEqual([]);
  });
});

describe('the gates of a claim', () => {
  const NONE = { breaker: 'closed', failures: 0, failing: false, breakerForMs: null, pausedForMs: null };
  const gatesWhen = async (columns: string) => {
    const id = await givenOne(pool);
    await pool.query(
      `update relay.endpoints set ${columns} where id = (select endpoint_id from relay.queue where delivery_id = $1)`,
      [id],
    );
    return givenClaimed(pool, id);
  };

  it('are nothing for an endpoint with which nothing is wrong, its breaker tripped before or not', async () => {
    const well = await gatesWhen(
      `breaker_trips = 3, paused_until = now() - interval '1 s', paused_reason = 'operator'`,
    );
    expect(well).toMatchObject({ trips: 3, gates: null });
  });

  it('tell of failures in a row and of failing since the last success', async () => {
    expect((await gatesWhen('breaker_failures = 4')).gates).toEqual({ ...NONE, failures: 4 });
    expect((await gatesWhen('failing_since = now()')).gates).toEqual({ ...NONE, failing: true });
  });

  it('tell how long a breaker stays open, or by when its probe must have reported', async () => {
    const open = await gatesWhen(
      `breaker_state = 'open', breaker_trips = 2, breaker_until = now() + interval '20 s'`,
    );
    expect(open).toMatchObject({ trips: 2, gates: { breaker: 'open', pausedForMs: null } });
    expect(open.gates!.breakerForMs).toBeGreaterThan(10_000);
    expect(open.gates!.breakerForMs).toBeLessThanOrEqual(20_000);
    const { gates } = await gatesWhen(
      `breaker_state = 'half_open', breaker_probe = gen_random_uuid(), breaker_until = now() - interval '1 s'`,
    );
    expect(gates?.breaker).toBe('half_open');
    expect(gates!.breakerForMs).toBeLessThanOrEqual(-1_000);
  });

  it('tell how long a pause goes on, also when it has no end', async () => {
    const { gates } = await gatesWhen(
      `paused_until = now() + interval '20 s', paused_reason = 'retry_after'`,
    );
    expect(gates).toMatchObject({ breaker: 'closed', breakerForMs: null });
    expect(gates!.pausedForMs).toBeGreaterThan(10_000);
    expect(gates!.pausedForMs).toBeLessThanOrEqual(20_000);
    const endless = await gatesWhen(`paused_until = 'infinity', paused_reason = 'operator'`);
    expect(endless.gates).toEqual({ ...NONE, pausedForMs: Number.POSITIVE_INFINITY });
  });
});

describe('two dispatchers that race for the same rows', () => {
  it('share them: each row has one winner, whose token it carries', async () => {
    for (let round = 0; round < 5; round += 1) {
      const ids = await givenOwed(pool, 60);
      const tokens = [randomUUID(), randomUUID(), randomUUID()];
      const won = await Promise.all(
        tokens.map((token, n) => claimByIds(pool, n === 1 ? [...ids].reverse() : ids, lease({ token }))),
      );
      expect(idsOf(won.flat())).toEqual([...ids].sort());
      const { rows } = await pool.query(
        'select delivery_id, claim_token from relay.queue where delivery_id = any($1::uuid[])',
        [ids],
      );
      const tokenOf = new Map(rows.map((row) => [row.delivery_id, row.claim_token]));
      for (const claim of won.flat()) expect(tokenOf.get(claim.deliveryId)).toBe(claim.token);
    }
  });

  it('one that waited for the other comes back without the row', async () => {
    const id = await givenOne(pool);
    const first = await pool.connect();
    await first.query('begin');
    await first.query(
      'update relay.queue set lease_expires_at = now() + interval $$30 s$$, claim_token = gen_random_uuid() where delivery_id = $1',
      [id],
    );
    const second = claimByIds(pool, [id], lease());
    await first.query('commit');
    first.release();
    expect(await second).toEqual([]);
  });
});

describe('claiming straight from the queue', () => {
  beforeEach(async () => {
    await pool.query('delete from relay.queue');
  });

  it('takes what is due in the order of its look, up to the limit, and goes on from its cursor', async () => {
    const ids = await givenOwed(pool, 6, { announced: false });
    await Promise.all(ids.map((id, n) => age(pool, [id], 60_000 - n * 5_000)));
    const first = await claimDue(pool, 4, null, pollLease());
    expect(idsOf(first.claims)).toEqual(ids.slice(0, 4));
    const { rows } = await pool.query(
      'select max(look_at) as look from relay.queue where lease_expires_at is null',
    );
    expect(first.cursor!.getTime()).toBeLessThan(rows[0].look.getTime());
    const second = await claimDue(pool, 4, first.cursor, pollLease());
    expect(idsOf(second.claims)).toEqual(ids.slice(4));
    expect(second.cursor!.getTime()).toBeGreaterThan(first.cursor!.getTime());
    expect((await claimDue(pool, 4, second.cursor, pollLease())).claims).toEqual([]);
  });

  it('brings the same as a claim by ids', async () => {
    const id = await givenOne(pool, { payload: Buffer.from([0, 1]) });
    await age(pool, [id], 60_000);
    const { claims } = await claimDue(pool, 10, null, pollLease());
    const { lateMs: _late, ageMs: _age, token: _token, ...byLook } = claims[0]!;
    await keepOne(pool, release(claims[0]!));
    const { lateMs: _1, ageMs: _2, token: _3, ...byId } = await givenClaimed(pool, id);
    expect(byLook).toEqual(byId);
  });

  it('moves the look to 5 s after the lease, so that the next poll does not walk over it', async () => {
    const [id] = await givenOwed(pool, 1, { announced: false });
    await claimDue(pool, 1, null, pollLease({ leaseMs: 30_000 }));
    const row = await queueRow(pool, id!);
    expect(row.look_in - row.lease_in!).toBeCloseTo(5_000, 0);
  });

  it('passes over what is announced and waits for its reader, not due, leased, cancelled or locked', async () => {
    const [free, announced, early, leased, cancelled, locked] = await givenOwed(pool, 6, {
      announced: false,
    });
    await pool.query(`update relay.queue set look_at = now() + interval '30 s' where delivery_id = $1`, [
      announced,
    ]);
    await pool.query(`update relay.queue set due_at = now() + interval '1 s' where delivery_id = $1`, [
      early,
    ]);
    await givenClaimed(pool, leased!);
    await requestCancel(pool, cancelled!);
    const holder = await pool.connect();
    await holder.query('begin');
    await holder.query('select from relay.queue where delivery_id = $1 for update', [locked]);
    expect(idsOf((await claimDue(pool, 10, null, pollLease())).claims)).toEqual([free]);
    await holder.query('rollback');
    holder.release();
    expect(idsOf((await claimDue(pool, 10, null, pollLease())).claims)).toEqual([locked]);
  });

  it('divides what wakes in its slot between the dispatchers, until it is a second late', async () => {
    const ids = await givenOwed(pool, 40, { announced: false });
    await pool.query(`update relay.queue set waiting = 'slot', slot_version = 1`);
    const poll = async (rank: number) =>
      idsOf((await claimDue(pool, 100, null, pollLease({ part: { rank, live: 3 } }))).claims);
    const first = await poll(0);
    expect(first.length).toBeGreaterThan(0);
    expect(first.length).toBeLessThan(ids.length);
    expect(await poll(0)).toEqual([]);
    const second = await poll(1);
    await age(pool, ids, 1_100);
    expect([...first, ...second, ...(await poll(1))].sort()).toEqual([...ids].sort());
  });

  it('finds rows that look at -infinity when it walks from the beginning, and keeps its place', async () => {
    const [id] = await givenOwed(pool, 1, { announced: false });
    await pool.query(`update relay.queue set look_at = '-infinity'`);
    const later = new Date();
    expect((await claimDue(pool, 1, later, pollLease())).claims).toEqual([]);
    const { claims, cursor } = await claimDue(pool, 1, null, pollLease());
    expect(idsOf(claims)).toEqual([id]);
    expect(cursor).toBeNull();
  });

  it('gives each row to one of many pollers', async () => {
    const ids = await givenOwed(pool, 300, { announced: false });
    const poll = async () => (await claimDue(pool, 40, null, pollLease())).claims;
    const won: { deliveryId: string }[] = [];
    while (won.length < ids.length) {
      const round = (await Promise.all([poll(), poll(), poll(), poll()])).flat();
      expect(round.length).toBeGreaterThan(0);
      won.push(...round);
    }
    expect(idsOf(won)).toEqual([...ids].sort());
  });
});
