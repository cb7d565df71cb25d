import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import { eventually } from '../../services/testing/eventually.ts';
import {
  deferOne,
  deferral,
  givenClaimed,
  givenEndpoint,
  givenOne,
  givenOwed,
  lease,
  PROCESS,
} from '../../services/testing/given-queue.ts';
import {
  age,
  attemptRows,
  deliveryRow,
  endLeases,
  findQueueRow,
  queueRow,
  requestCancel,
} from '../../services/testing/stored-rows.ts';
import { type Claim, claimByIds } from './claims.ts';
import { defer } from './defer.ts';
import { createPool } from './pool.ts';
import { announceDue, endOwed, nextLook, postponeLooks, reclaimExpired } from './sweep.ts';

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

const SLOT_CHANGE = 'slot_version = slot_version + 1, version = version + 1';
const PAUSED = `paused_until = 'infinity', paused_reason = 'operator'`;
const DISABLED = `enabled = false, disabled_reason = 'operator', disabled_at = now()`;

const change = (on: pg.Pool | pg.PoolClient, endpointId: string, columns: string) =>
  on.query(`update relay.endpoints set ${columns} where id = $1`, [endpointId]);

async function givenClaimOf(columns: string | null, expiresAt: Date | null = null): Promise<Claim> {
  const endpointId = await givenEndpoint(pool, { patterns: ['nothing.else'] });
  const id = await givenOne(pool, { targetEndpointId: endpointId, expiresAt });
  if (columns) await change(pool, endpointId, columns);
  return givenClaimed(pool, id);
}

describe('a deferral', () => {
  it('waits in its own slot, free and announced to nobody', async () => {
    const claim = await givenClaimOf(null);
    expect(await deferOne(pool, deferral(claim, { wait: 60_000, reason: 'rate_limit' }))).toBe(true);
    const row = await queueRow(pool, claim.deliveryId);
    expect(row).toMatchObject({
      waiting: 'slot',
      slot_version: 1,
      deferrals: 1,
      deferral_reason: 'rate_limit',
      attempts: 0,
      sends: 0,
      seq: 1,
      lane: 1,
      claim_token: null,
      claimed_by: null,
      lease_in: null,
      announced_in: null,
    });
    expect(row.due_in).toBeGreaterThan(50_000);
    expect(row.due_in).toBeLessThanOrEqual(60_000);
    expect(row.look_in).toBe(row.due_in);
    const [logged] = await attemptRows(pool, claim.deliveryId);
    expect(logged).toMatchObject({
      seq: 1,
      send: null,
      attempt: 0,
      class: 'deferred',
      reason: 'rate_limit',
      claimed_by: 7,
    });
    expect(logged!.next_in).toBeGreaterThan(50_000);
  });

  it('is logged once for a reason and then counted', async () => {
    const { deliveryId: id } = await givenClaimOf(null);
    await endLeases(pool, [id], 0);
    await pool.query('update relay.queue set lease_expires_at = null where delivery_id = $1', [id]);
    await deferOne(pool, deferral(await givenClaimed(pool, id)));
    for (let n = 0; n < 3; n += 1)
      await deferOne(pool, deferral(await givenClaimed(pool, id), { repeated: true }));
    await deferOne(pool, deferral(await givenClaimed(pool, id), { reason: 'breaker_open' }));
    expect(await queueRow(pool, id)).toMatchObject({
      deferrals: 5,
      seq: 2,
      deferral_reason: 'breaker_open',
    });
    expect((await attemptRows(pool, id)).map((row) => [row.seq, row.reason])).toEqual([
      [1, 'concurrency'],
      [2, 'breaker_open'],
    ]);
  });

  it('is looked at when its event expires, if that is sooner', async () => {
    const claim = await givenClaimOf(null, new Date(Date.now() + 10_000));
    await deferOne(pool, deferral(claim, { wait: 60_000 }));
    const row = await queueRow(pool, claim.deliveryId);
    expect(row.due_in).toBeGreaterThan(50_000);
    expect(row.look_in).toBeLessThan(10_500);
  });

  it('of many deliveries of one endpoint gives each the moment that was given to it', async () => {
    const ids = await givenOwed(pool, 500);
    const claims = await claimByIds(pool, ids, lease());
    const waitOf = new Map(ids.map((id, n) => [id, 60_000 + n * 100]));
    const batch = claims.map((claim) => deferral(claim, { wait: waitOf.get(claim.deliveryId)! }));
    await defer(pool, batch, PROCESS);
    const { rows } = await pool.query<{ delivery_id: string; ms: number }>(
      `select delivery_id, (date_part('epoch', due_at - min(due_at) over ()) * 1000)::float8 as ms
       from relay.queue where delivery_id = any($1::uuid[])`,
      [ids],
    );
    expect(rows.length).toBe(500);
    for (const row of rows) expect(row.ms).toBeCloseTo(waitOf.get(row.delivery_id)! - 60_000, 1);
  });

  it('changes nothing once its lease is lost', async () => {
    const ids = await givenOwed(pool, 4);
    const claims = await claimByIds(pool, ids, lease());
    const batch = claims.map((claim, n) => deferral(n % 2 ? claim : { ...claim, token: randomUUID() }));
    const written = await defer(pool, batch, PROCESS);
    expect([...written].sort()).toEqual(
      claims
        .filter((_, n) => n % 2)
        .map((claim) => claim.deliveryId)
        .sort(),
    );
    for (const [n, { deliveryId, token }] of claims.entries()) {
      const row = await queueRow(pool, deliveryId);
      expect(row.claim_token).toBe(n % 2 ? null : token);
      expect((await attemptRows(pool, deliveryId)).length).toBe(n % 2);
    }
  });

  it('of a cancelled delivery is looked at now, to be ended', async () => {
    const claim = await givenClaimOf(null);
    await requestCancel(pool, claim.deliveryId);
    await deferOne(pool, deferral(claim, { wait: 60_000 }));
    const row = await queueRow(pool, claim.deliveryId);
    expect(row).toMatchObject({ cancel_requested: true, claim_token: null, waiting: null });
    expect(row.look_in).toBeLessThanOrEqual(0);
    expect(await attemptRows(pool, claim.deliveryId)).toMatchObject([{ class: 'deferred', next_in: null }]);
  });

  it('forgets earlier reclaims', async () => {
    const claim = await givenClaimOf(null);
    await pool.query('update relay.queue set reclaims = 3 where delivery_id = $1', [claim.deliveryId]);
    await deferOne(pool, deferral(claim));
    expect((await queueRow(pool, claim.deliveryId)).reclaims).toBe(0);
  });
});

describe('a deferral that was decided by an endpoint which has changed since', () => {
  it('is due now, and was none: nothing is counted or logged', async () => {
    const claim = await givenClaimOf(SLOT_CHANGE);
    for (const wait of [60_000, 'parked'] as const) {
      const fresh = wait === 'parked' ? await givenClaimed(pool, claim.deliveryId) : claim;
      expect(await deferOne(pool, deferral(fresh, { wait }))).toBe(true);
      const row = await queueRow(pool, claim.deliveryId);
      expect(row).toMatchObject({
        waiting: null,
        slot_version: null,
        deferrals: 0,
        deferral_reason: null,
        seq: 0,
        claim_token: null,
      });
      expect(row.due_in).toBeLessThanOrEqual(0);
      expect(row.look_in).toBeLessThanOrEqual(0);
    }
    expect(await attemptRows(pool, claim.deliveryId)).toEqual([]);
  });

  it.each(['deleted', 'missing'])(
    'is due now when the endpoint is %s, to be ended by its claim',
    async (how) => {
      const claim = await givenClaimOf(null);
      if (how === 'deleted') await change(pool, claim.endpointId, 'deleted_at = now()');
      else await pool.query('delete from relay.endpoints where id = $1', [claim.endpointId]);
      await deferOne(pool, deferral(claim, { wait: 60_000 }));
      const row = await queueRow(pool, claim.deliveryId);
      expect(row.waiting).toBeNull();
      expect(row.due_in).toBeLessThanOrEqual(0);
    },
  );

  it('waits for a change that is being committed, and then sees it', async () => {
    const [changed, other] = [await givenClaimOf(null), await givenClaimOf(null)];
    const operator = await pool.connect();
    await operator.query('begin');
    await change(operator, changed.endpointId, SLOT_CHANGE);
    const batch = [changed, other].map((claim) => deferral(claim, { wait: 60_000 }));
    let done = false;
    const written = defer(pool, batch, PROCESS).finally(() => {
      done = true;
    });
    await eventually(async () => {
      const { rows } = await pool.query(
        `select from pg_stat_activity where wait_event_type = 'Lock' and query like '%held as materialized%'`,
      );
      expect(rows.length).toBe(1);
    });
    expect(done).toBe(false);
    await operator.query('commit');
    operator.release();
    expect((await written).size).toBe(2);
    expect((await queueRow(pool, changed.deliveryId)).due_in).toBeLessThanOrEqual(0);
    expect((await queueRow(pool, other.deliveryId)).due_in).toBeGreaterThan(50_000);
  });

  it('that holds its endpoint keeps a change out until it is written, so that the change finds it waiting', async () => {
    const claim = await givenClaimOf(null);
    const blocker = await pool.connect();
    await blocker.query('begin');
    // A cancellation that is not committed yet: the deferral has its endpoint and waits for the row.
    await blocker.query(
      'update relay.queue set cancel_requested = false, look_at = now() where delivery_id = $1',
      [claim.deliveryId],
    );
    const written = deferOne(pool, deferral(claim, { wait: 60_000 }));
    await eventually(async () => {
      const { rows } = await pool.query(
        `select from pg_stat_activity where wait_event_type = 'Lock' and query like '%held as materialized%'`,
      );
      expect(rows.length).toBe(1);
    });
    const seen = change(pool, claim.endpointId, SLOT_CHANGE).then(() => queueRow(pool, claim.deliveryId));
    await blocker.query('commit');
    blocker.release();
    expect(await written).toBe(true);
    expect(await seen).toMatchObject({ waiting: 'slot', slot_version: 1, deferrals: 1, seq: 1 });
    expect((await attemptRows(pool, claim.deliveryId)).length).toBe(1);
  });
});

describe('a parked delivery', () => {
  it.each([
    ['disabled', DISABLED],
    ['paused without end', PAUSED],
  ])('waits without a moment while its endpoint is %s', async (_, columns) => {
    const claim = await givenClaimOf(columns);
    await deferOne(pool, deferral(claim, { wait: 'parked', reason: 'paused' }));
    expect(await queueRow(pool, claim.deliveryId)).toMatchObject({
      waiting: 'parked',
      slot_version: 1,
      due_in: Number.POSITIVE_INFINITY,
      look_in: Number.POSITIVE_INFINITY,
      deferrals: 1,
    });
    expect(await attemptRows(pool, claim.deliveryId)).toMatchObject([{ reason: 'paused', next_in: null }]);
  });

  it.each([
    ['enabled', null],
    ['paused with an end', `paused_until = now() + interval '1 h', paused_reason = 'operator'`],
  ])('is due now instead when its endpoint is %s by then', async (_, columns) => {
    const claim = await givenClaimOf(columns);
    await deferOne(pool, deferral(claim, { wait: 'parked', reason: 'paused' }));
    const row = await queueRow(pool, claim.deliveryId);
    expect(row).toMatchObject({ waiting: null, deferrals: 0, seq: 0 });
    expect(row.due_in).toBeLessThanOrEqual(0);
  });

  it('is passed over by every sweep, until its event expires', async () => {
    const claim = await givenClaimOf(PAUSED, new Date(Date.now() + 60_000));
    await deferOne(pool, deferral(claim, { wait: 'parked', reason: 'paused' }));
    const before = await queueRow(pool, claim.deliveryId);
    expect(before.due_in).toBe(Number.POSITIVE_INFINITY);
    expect(before.look_in).toBeLessThan(60_500);
    const client = await pool.connect();
    const all = { limit: 1_000, from: null };
    const sweep = async () => {
      await postponeLooks(client, all);
      await reclaimExpired(client, all);
      const reasons = await endOwed(client, { ...all, mayReclaim: true });
      const now = new Date();
      const { ids } = await announceDue(client, { ...all, drainedUntil: { express: now, bulk: now } });
      expect([...ids.express, ...ids.bulk]).not.toContain(claim.deliveryId);
      await nextLook(client);
      return reasons;
    };
    await sweep();
    expect((await queueRow(pool, claim.deliveryId)).waiting).toBe('parked');
    await pool.query(
      `update relay.queue set expires_at = now() - interval '1 s', look_at = now() where delivery_id = $1`,
      [claim.deliveryId],
    );
    expect(await sweep()).toContain('expired');
    client.release();
    expect(await findQueueRow(pool, claim.deliveryId)).toBeNull();
    expect(await deliveryRow(pool, claim.deliveryId)).toMatchObject({ dead_reason: 'expired', attempts: 0 });
  });

  it('is not claimed', async () => {
    const claim = await givenClaimOf(PAUSED);
    await deferOne(pool, deferral(claim, { wait: 'parked', reason: 'paused' }));
    await age(pool, [claim.deliveryId], 86_400_000);
    expect(await claimByIds(pool, [claim.deliveryId], lease())).toEqual([]);
  });
});

describe('a batch of deferrals over many endpoints', () => {
  it('judges each by its own endpoint', async () => {
    const claims: Claim[] = [];
    for (let n = 0; n < 24; n += 1) claims.push(await givenClaimOf([null, SLOT_CHANGE, PAUSED][n % 3]!));
    const batch = claims.map((claim, n) =>
      deferral(claim, { wait: n % 3 === 2 ? 'parked' : 60_000, repeated: n % 2 === 0 }),
    );
    const shuffled = batch.sort(() => Math.random() - 0.5);
    expect((await defer(pool, shuffled, PROCESS)).size).toBe(24);
    for (const [n, { deliveryId }] of claims.entries()) {
      const row = await queueRow(pool, deliveryId);
      expect(row.waiting).toBe(['slot', null, 'parked'][n % 3]);
      expect(row.seq).toBe(n % 3 === 1 || n % 2 === 0 ? 0 : 1);
    }
  });

  it('never deadlocks with others that name the same endpoints in another order, or with changes of them', async () => {
    const endpoints: string[] = [];
    for (let n = 0; n < 6; n += 1) endpoints.push(await givenEndpoint(pool, { patterns: ['nothing.else'] }));
    const batches = await Promise.all(
      [0, 1, 2].map(async (k) => {
        const ids: string[] = [];
        for (const endpointId of endpoints) ids.push(...(await givenOwed(pool, 5, { endpointId })));
        return k % 2 ? ids.reverse() : ids;
      }),
    );
    const work = batches.map(async (ids) => {
      for (let round = 0; round < 10; round += 1) {
        const claims = await claimByIds(pool, ids, lease());
        await defer(
          pool,
          claims.map((claim) => deferral(claim)),
          PROCESS,
        );
      }
    });
    const changes = [...Array(40).keys()].map((n) =>
      change(pool, endpoints[n % 6]!, 'breaker_failures = breaker_failures + 1'),
    );
    await Promise.all([...work, ...changes]);
    const { rows } = await pool.query(
      'select min(deferrals) as least from relay.queue where delivery_id = any($1::uuid[])',
      [batches.flat()],
    );
    expect(rows[0].least).toBe(10);
  });
});
