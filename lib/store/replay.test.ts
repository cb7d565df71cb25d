import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import {
  death,
  finishOne,
  givenClaimed,
  givenOne,
  givenOwed,
  keepOne,
  retry,
  success,
  unsent,
} from '../../services/testing/given-queue.ts';
import { attemptRows, deadLetterReason, deliveryRow, queueRow } from '../../services/testing/stored-rows.ts';
import { createPool } from './pool.ts';
import { LAST_GENERATION, replayDeliveries } from './replay.ts';

let database: TestDatabase;
let pool: pg.Pool;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 6, applicationName: 'test' });
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

async function givenDead(): Promise<string> {
  const id = await givenOne(pool);
  await finishOne(pool, death(await givenClaimed(pool, id)));
  return id;
}

describe('a replayed dead letter', () => {
  it('is owed again now: the same id, a generation on, a fresh budget, its history kept', async () => {
    const id = await givenOne(pool);
    await keepOne(pool, retry(await givenClaimed(pool, id)));
    await finishOne(pool, death(await givenClaimed(pool, id)));
    expect(await replayDeliveries(pool, [id])).toEqual({ replayed: [id], endpointDeleted: [] });
    expect(await deliveryRow(pool, id)).toMatchObject({
      status: 'pending',
      dead_reason: null,
      finished: false,
      generation: 2,
    });
    const row = await queueRow(pool, id);
    expect(row).toMatchObject({
      attempts: 0,
      sends: 2,
      seq: 2,
      generation: 2,
      lane: 1,
      lease_in: null,
      cancel_requested: false,
    });
    expect(row.due_in).toBeLessThanOrEqual(0);
    expect(row.look_in).toBe(row.due_in);
    expect(await deadLetterReason(pool, id)).toBeNull();

    const claim = await givenClaimed(pool, id);
    expect(claim).toMatchObject({ attempts: 0, sends: 2, payload: Buffer.from('{"a":1}') });
    await finishOne(pool, death(claim));
    expect(
      (await attemptRows(pool, id)).map(({ seq, send, attempt, generation }) => [
        seq,
        send,
        attempt,
        generation,
      ]),
    ).toEqual([
      [1, 1, 1, 1],
      [2, 2, 2, 1],
      [3, 3, 1, 2],
    ]);
  });

  it('can be replayed again and again', async () => {
    const id = await givenDead();
    for (let generation = 2; generation <= 4; generation += 1) {
      expect((await replayDeliveries(pool, [id])).replayed).toEqual([id]);
      expect((await replayDeliveries(pool, [id])).replayed).toEqual([]);
      await finishOne(pool, death(await givenClaimed(pool, id)));
      expect(await deliveryRow(pool, id)).toMatchObject({ generation, sends: generation, seq: generation });
    }
    await replayDeliveries(pool, [id]);
    await finishOne(pool, success(await givenClaimed(pool, id)));
    expect(await deliveryRow(pool, id)).toMatchObject({ status: 'succeeded', generation: 5 });
  });

  it('that was cancelled or expired may be sent after all', async () => {
    const id = await givenOne(pool, { expiresAt: new Date(Date.now() - 1_000) });
    await finishOne(pool, unsent(await givenClaimed(pool, id), 'expired'));
    expect((await replayDeliveries(pool, [id])).replayed).toEqual([id]);
    expect(await givenClaimed(pool, id)).toMatchObject({ expired: false });
  });
});

describe('a replay', () => {
  it('passes over what is not dead, and tells whose endpoint is deleted', async () => {
    const [dead, orphaned, succeeded, pending, eventless] = [
      await givenDead(),
      await givenDead(),
      await givenOne(pool),
      await givenOne(pool),
      await givenDead(),
    ];
    await finishOne(pool, success(await givenClaimed(pool, succeeded)));
    await pool.query(
      'update relay.endpoints set deleted_at = now() where id = (select endpoint_id from relay.deliveries where id = $1)',
      [orphaned],
    );
    await pool.query('delete from relay.events where id = $1', [`${eventless.slice(0, 32)}0000`]);
    const result = await replayDeliveries(pool, [
      pending,
      succeeded,
      orphaned,
      eventless,
      dead,
      randomUUID(),
    ]);
    expect(result).toEqual({ replayed: [dead], endpointDeleted: [orphaned] });
    expect(await deadLetterReason(pool, orphaned)).toBe('permanent_failure');
    expect(await deliveryRow(pool, succeeded)).toMatchObject({ status: 'succeeded', generation: 1 });
  });

  it('takes what succeeded only when it is asked to', async () => {
    const [dead, succeeded, pending] = [await givenDead(), await givenOne(pool), await givenOne(pool)];
    await finishOne(pool, success(await givenClaimed(pool, succeeded)));
    const ids = [dead, succeeded, pending];
    expect(await replayDeliveries(pool, ids, { from: ['succeeded'] })).toEqual({
      replayed: [succeeded],
      endpointDeleted: [],
    });
    expect(await deliveryRow(pool, succeeded)).toMatchObject({
      status: 'pending',
      finished: false,
      generation: 2,
    });
    expect(await queueRow(pool, succeeded)).toMatchObject({ attempts: 0, sends: 1, seq: 1, generation: 2 });
    await finishOne(pool, success(await givenClaimed(pool, succeeded)));
    const both = await replayDeliveries(pool, ids, { from: ['dead', 'succeeded'] });
    expect(both.replayed.toSorted()).toEqual([dead, succeeded].toSorted());
  });

  it('passes over what ended later than it asks for', async () => {
    const [early, late] = [await givenDead(), await givenDead()];
    const { rows } = await pool.query('select finished_at::text as at from relay.deliveries where id = $1', [
      early,
    ]);
    expect((await replayDeliveries(pool, [early, late], { endedBy: rows[0].at })).replayed).toEqual([early]);
  });

  it('is refused to a delivery whose generations are used up', async () => {
    const id = await givenDead();
    await pool.query('update relay.deliveries set generation = $2 where id = $1', [id, LAST_GENERATION]);
    expect(await replayDeliveries(pool, [id])).toEqual({ replayed: [], endpointDeleted: [] });
  });

  it('by many at once revives each delivery once', async () => {
    const ids = await givenOwed(pool, 30);
    for (const id of ids) await finishOne(pool, death(await givenClaimed(pool, id)));
    const results = await Promise.all([1, 2, 3, 4].map(() => replayDeliveries(pool, ids)));
    expect(results.flatMap(({ replayed }) => replayed).sort()).toEqual([...ids].sort());
    for (const id of ids) expect((await deliveryRow(pool, id)).generation).toBe(2);
  });
});
