import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import { eventually } from '../../services/testing/eventually.ts';
import {
  accept,
  acceptedIds,
  death,
  finishOne,
  givenClaimed,
  givenEndpoint,
  givenOne,
  givenTenant,
  keepOne,
  lease,
  newEvent,
  retry,
  success,
} from '../../services/testing/given-queue.ts';
import { DEFAULT_TENANT_ID } from '../domain/limits.ts';
import { CANCEL_STEP, cancelDelivery, cancelEvent } from './cancel.ts';
import { claimByIds } from './claims.ts';
import { createDatabase, type Database } from './database.ts';
import { findDelivery } from './deliveries-read.ts';
import { createPool } from './pool.ts';
import { endOwed } from './sweep.ts';

let database: TestDatabase;
let pool: pg.Pool;
let db: Database;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 4, applicationName: 'test' });
  db = createDatabase(pool);
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

/** Ends what is cancelled, as the reconciler does. */
async function sweep(): Promise<string[]> {
  const client = await pool.connect();
  try {
    return await endOwed(client, { limit: 5_000, from: null, mayReclaim: true });
  } finally {
    client.release();
  }
}

const shown = async (id: string) => (await findDelivery(db, DEFAULT_TENANT_ID, id))!;
const cancel = (id: string) => cancelDelivery(db, DEFAULT_TENANT_ID, id);

describe('cancelling a delivery', () => {
  it('that waits ends it dead, cancelled, by the next sweep, whenever it was due', async () => {
    const id = await givenOne(pool);
    await pool.query(
      `update relay.queue set due_at = 'infinity', look_at = 'infinity', waiting = 'parked' where delivery_id = $1`,
      [id],
    );
    expect(await cancel(id)).toEqual({ kind: 'cancelling' });
    expect(await shown(id)).toMatchObject({ status: 'pending', cancelRequested: true });
    expect(await claimByIds(pool, [id], lease())).toEqual([]);
    expect(await sweep()).toEqual(['cancelled']);
    expect(await shown(id)).toMatchObject({ status: 'dead', deadReason: 'cancelled', sends: 0 });
  });

  it('may be asked for twice, before and after it has ended', async () => {
    const id = await givenOne(pool);
    for (let n = 0; n < 2; n++) expect(await cancel(id)).toEqual({ kind: 'cancelling' });
    await sweep();
    expect(await cancel(id)).toEqual({ kind: 'cancelling' });
    expect(await shown(id)).toMatchObject({ status: 'dead', deadReason: 'cancelled' });
  });

  it('that is being sent leaves a success a success, and makes any other end cancelled', async () => {
    const succeeds = await givenClaimed(pool, await givenOne(pool));
    const fails = await givenClaimed(pool, await givenOne(pool));
    const retries = await givenClaimed(pool, await givenOne(pool));
    for (const { deliveryId } of [succeeds, fails, retries]) {
      expect(await cancel(deliveryId)).toEqual({ kind: 'cancelling' });
      expect((await shown(deliveryId)).status).toBe('inflight');
    }
    expect(await sweep()).toEqual([]);
    expect(await finishOne(pool, success(succeeds))).toBe(true);
    expect(await finishOne(pool, death(fails))).toBe(true);
    expect(await keepOne(pool, retry(retries, 60_000))).toBe(true);
    expect(await sweep()).toEqual(['cancelled']);
    expect(await shown(succeeds.deliveryId)).toMatchObject({ status: 'succeeded', deadReason: null });
    for (const { deliveryId } of [fails, retries]) {
      expect(await shown(deliveryId)).toMatchObject({ status: 'dead', deadReason: 'cancelled', sends: 1 });
    }
  });

  it('is refused once it has ended otherwise, and unknown to another tenant', async () => {
    const done = await givenClaimed(pool, await givenOne(pool));
    await finishOne(pool, success(done));
    const gone = await givenClaimed(pool, await givenOne(pool));
    await finishOne(pool, death(gone, 'gone'));
    expect(await cancel(done.deliveryId)).toEqual({ kind: 'finished', status: 'succeeded' });
    expect(await cancel(gone.deliveryId)).toEqual({ kind: 'finished', status: 'dead' });
    const id = await givenOne(pool);
    expect(await cancelDelivery(db, await givenTenant(pool), id)).toEqual({ kind: 'not_found' });
    expect((await shown(id)).cancelRequested).toBe(false);
  });

  it('beside its settle lets one of the two win, and never both', async () => {
    for (let n = 0; n < 20; n++) {
      const claim = await givenClaimed(pool, await givenOne(pool));
      const [result, written] = await Promise.all([
        cancel(claim.deliveryId),
        finishOne(pool, death(claim, 'gone')),
      ]);
      expect(written).toBe(true);
      const reason = result.kind === 'cancelling' ? 'cancelled' : 'gone';
      expect(await shown(claim.deliveryId)).toMatchObject({ status: 'dead', deadReason: reason });
    }
  });
});

describe('cancelling an event', () => {
  async function givenWide(count: number): Promise<{ tenantId: string; eventId: string; ids: string[] }> {
    const tenantId = await givenTenant(pool);
    await pool.query(
      `with made as (
         insert into relay.endpoints (tenant_id, url, secret)
         select $1, 'https://sink.example.test', '\\x00' from generate_series(1, $2::integer) returning id
       )
       insert into relay.subscriptions (tenant_id, pattern, endpoint_id) select $1, '*', id from made`,
      [tenantId, count],
    );
    const ids = acceptedIds((await accept(pool, [newEvent({ tenantId })]))[0]);
    return { tenantId, eventId: `${ids[0]!.slice(0, 32)}0000`, ids };
  }

  it('stops what is owed of it, more than one step of it, and leaves what has ended', async () => {
    const { tenantId, eventId, ids } = await givenWide(CANCEL_STEP);
    const [first, second] = ids as [string, string];
    await finishOne(pool, success(await givenClaimed(pool, first)));
    await cancelDelivery(db, tenantId, second);
    const neighbour = await givenOne(pool, {
      tenantId,
      targetEndpointId: await givenEndpoint(pool, { tenantId }),
    });
    expect(await cancelEvent(db, tenantId, eventId)).toEqual({
      cancelled: CANCEL_STEP - 2,
      fanOutStopped: false,
    });
    expect(await cancelEvent(db, tenantId, eventId)).toMatchObject({ cancelled: 0 });
    expect(await sweep()).toHaveLength(CANCEL_STEP - 1);
    expect(await findDelivery(db, tenantId, first)).toMatchObject({ status: 'succeeded' });
    expect(await findDelivery(db, tenantId, neighbour)).toMatchObject({
      status: 'pending',
      cancelRequested: false,
    });
  });

  it('stops its fan-out too: what has no delivery yet gets none', async () => {
    const { tenantId, eventId } = await givenWide(CANCEL_STEP + 300);
    const { rows: unfinished } = await pool.query('select event_id from relay.fan_outs');
    expect(unfinished).toEqual([{ event_id: eventId }]);
    expect(await cancelEvent(db, tenantId, eventId)).toEqual({ cancelled: CANCEL_STEP, fanOutStopped: true });
    expect((await pool.query('select event_id from relay.fan_outs')).rows).toEqual([]);
    expect(await sweep()).toHaveLength(CANCEL_STEP);
  });

  it('waits for a step of its fan-out that runs, and stops what that made', async () => {
    const { tenantId, eventId } = await givenWide(CANCEL_STEP + 300);
    const late = `${eventId.slice(0, 32)}0500`;
    const step = await pool.connect();
    await step.query('begin');
    await step.query('select from relay.fan_outs where event_id = $1 for update', [eventId]);
    const cancelling = cancelEvent(db, tenantId, eventId);
    await eventually(async () => {
      const { rows } = await pool.query(
        `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
      );
      expect(rows).toHaveLength(1);
    });
    await step.query(
      `insert into relay.queue (delivery_id, endpoint_id, event_id, due_at, look_at)
       values ($1, gen_random_uuid(), $2, now(), now())`,
      [late, eventId],
    );
    await step.query('commit');
    step.release();
    expect(await cancelling).toEqual({ cancelled: CANCEL_STEP + 1, fanOutStopped: true });
    await pool.query('delete from relay.queue where delivery_id = $1', [late]);
    expect(await sweep()).toHaveLength(CANCEL_STEP);
  });

  it('is unknown to another tenant, whose call changes nothing', async () => {
    const { eventId, ids } = await givenWide(1);
    expect(await cancelEvent(db, DEFAULT_TENANT_ID, eventId)).toBeNull();
    const { rows } = await pool.query('select cancel_requested from relay.queue where delivery_id = $1', ids);
    expect(rows).toEqual([{ cancel_requested: false }]);
  });
});
