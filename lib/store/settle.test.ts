import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import {
  death,
  deferOne,
  deferral,
  finishOne,
  givenClaimed,
  givenOne,
  givenOwed,
  keepOne,
  lease,
  PROCESS,
  release,
  retry,
  sendRecord,
  success,
  unsent,
} from '../../services/testing/given-queue.ts';
import {
  attemptRows,
  deadLetterReason,
  deliveryRow,
  endLeases,
  findQueueRow,
  queueRow,
  requestCancel,
} from '../../services/testing/stored-rows.ts';
import { claimByIds } from './claims.ts';
import { judgeFailure, sqlState } from './failure.ts';
import { createPool } from './pool.ts';
import { finish, keep } from './settle.ts';
import { reclaimExpired } from './sweep.ts';

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

async function reclaim(id: string): Promise<void> {
  await endLeases(pool, [id], 6_000);
  const client = await pool.connect();
  expect(await reclaimExpired(client, { limit: 1000, from: null })).toContain(id);
  client.release();
  await pool.query('update relay.queue set due_at = now() where delivery_id = $1', [id]);
}

async function snapshotOf(id: string) {
  const { rows } = await pool.query(
    `select (select to_jsonb(q) from relay.queue q where q.delivery_id = $1) as queue,
       (select to_jsonb(d) from relay.deliveries d where d.id = $1) as delivery,
       (select count(*)::int from relay.delivery_attempts a where a.delivery_id = $1) as attempts,
       (select count(*)::int from relay.dead_letters l where l.delivery_id = $1) as letters`,
    [id],
  );
  return rows[0];
}

describe('a delivery that succeeds', () => {
  it('is recorded in one stroke: its outcome, its log row, and nothing owed any more', async () => {
    const id = await givenOne(pool);
    expect(await finishOne(pool, success(await givenClaimed(pool, id)))).toBe(true);
    expect(await findQueueRow(pool, id)).toBeNull();
    expect(await deliveryRow(pool, id)).toEqual({
      status: 'succeeded',
      dead_reason: null,
      attempts: 1,
      sends: 1,
      seq: 1,
      generation: 1,
      last_class: 'success',
      last_http_status: 200,
      last_duration_ms: 12,
      finished: true,
    });
    expect(await attemptRows(pool, id)).toMatchObject([
      {
        seq: 1,
        send: 1,
        attempt: 1,
        generation: 1,
        class: 'success',
        http_status: 200,
        claimed_by: 7,
        reason: null,
      },
    ]);
    expect(await deadLetterReason(pool, id)).toBeNull();
  });
});

describe('a delivery that dies', () => {
  it('leaves a dead letter with the summary of its last send', async () => {
    const id = await givenOne(pool);
    const end = death(await givenClaimed(pool, id));
    await finishOne(pool, { ...end, send: { ...end.send!, error: 'no such hook' } });
    expect(await deliveryRow(pool, id)).toMatchObject({
      status: 'dead',
      dead_reason: 'permanent_failure',
      attempts: 1,
    });
    const { rows } = await pool.query('select * from relay.dead_letters where delivery_id = $1', [id]);
    expect(rows).toMatchObject([
      {
        reason: 'permanent_failure',
        last_class: 'permanent',
        last_http_status: 404,
        last_error: 'no such hook',
      },
    ]);
  });

  it('unsent spends nothing and logs nothing, and keeps what its last send said', async () => {
    const id = await givenOne(pool);
    await pool.query(
      `update relay.deliveries set last_class = 'retryable', last_http_status = 503, last_duration_ms = 5 where id = $1`,
      [id],
    );
    await finishOne(pool, unsent(await givenClaimed(pool, id), 'refused'));
    expect(await deliveryRow(pool, id)).toMatchObject({
      status: 'dead',
      dead_reason: 'refused',
      attempts: 0,
      sends: 0,
      seq: 0,
      last_class: 'retryable',
      last_http_status: 503,
      last_duration_ms: 5,
    });
    expect(await attemptRows(pool, id)).toEqual([]);
    expect(await deadLetterReason(pool, id)).toBe('refused');
  });

  it('is recorded in spite of a dead letter that should not be there, and so are its neighbours', async () => {
    const [id, neighbour] = await givenOwed(pool, 2);
    await pool.query(
      `insert into relay.dead_letters (delivery_id, endpoint_id, event_id, tenant_id, reason)
       select id, endpoint_id, event_id, tenant_id, 'gone' from relay.deliveries where id = $1`,
      [id],
    );
    const ends = [death(await givenClaimed(pool, id!)), success(await givenClaimed(pool, neighbour!))];
    expect((await finish(pool, ends, PROCESS)).size).toBe(2);
    expect(await deadLetterReason(pool, id!)).toBe('permanent_failure');
  });
});

describe('a retry', () => {
  it('is owed again after its delay by the database clock, and free', async () => {
    const id = await givenOne(pool);
    await keepOne(pool, retry(await givenClaimed(pool, id), 30_000));
    const row = await queueRow(pool, id);
    expect(row).toMatchObject({
      attempts: 1,
      sends: 1,
      seq: 1,
      reclaims: 0,
      lane: 1,
      deferrals: 0,
      waiting: null,
      claim_token: null,
      claimed_by: null,
      lease_in: null,
      announced_in: null,
    });
    expect(row.due_in).toBeGreaterThan(20_000);
    expect(row.due_in).toBeLessThanOrEqual(30_000);
    expect(row.look_in).toBe(row.due_in);
    const [logged] = await attemptRows(pool, id);
    expect(logged).toMatchObject({
      seq: 1,
      send: 1,
      attempt: 1,
      class: 'retryable',
      http_status: 503,
      response_snippet: 'busy',
    });
    expect(logged!.next_in).toBeGreaterThan(20_000);
    expect(await deliveryRow(pool, id)).toMatchObject({ status: 'pending', attempts: 0, finished: false });
  });

  it('whose delay ends in a slot waits like a deferral; its next retry without one does not', async () => {
    const id = await givenOne(pool);
    await keepOne(pool, { ...retry(await givenClaimed(pool, id)), slotVersion: 4 });
    expect(await queueRow(pool, id)).toMatchObject({
      waiting: 'slot',
      slot_version: 4,
      deferral_reason: null,
    });
    const claim = await givenClaimed(pool, id);
    expect(claim.waited).toBe(true);
    await keepOne(pool, retry(claim));
    expect(await queueRow(pool, id)).toMatchObject({ waiting: null, slot_version: null });
  });

  it('forgets why its delivery was deferred before', async () => {
    const id = await givenOne(pool);
    await deferOne(pool, deferral(await givenClaimed(pool, id)));
    await keepOne(pool, retry(await givenClaimed(pool, id)));
    expect(await queueRow(pool, id)).toMatchObject({
      deferral_reason: null,
      waiting: null,
      deferrals: 1,
      seq: 2,
    });
  });

  it('is not looked at later than its event expires', async () => {
    const id = await givenOne(pool, { expiresAt: new Date(Date.now() + 10_000) });
    await keepOne(pool, retry(await givenClaimed(pool, id), 30_000));
    const row = await queueRow(pool, id);
    expect(row.due_in).toBeGreaterThan(20_000);
    expect(row.look_in).toBeLessThan(10_500);
  });
});

describe('a release', () => {
  it('gives the row back at once, with no trace but its lane', async () => {
    const id = await givenOne(pool);
    await deferOne(pool, deferral(await givenClaimed(pool, id)));
    await keepOne(pool, release(await givenClaimed(pool, id)));
    const row = await queueRow(pool, id);
    expect(row).toMatchObject({
      attempts: 0,
      sends: 0,
      seq: 1,
      deferrals: 1,
      deferral_reason: 'concurrency',
      waiting: 'slot',
      slot_version: 1,
      claim_token: null,
    });
    expect(row.due_in).toBeLessThanOrEqual(0);
    expect(row.look_in).toBeLessThanOrEqual(0);
    expect(row.announced_in).toBeNull();
    expect((await attemptRows(pool, id)).length).toBe(1);
  });
});

describe('the counters of a delivery', () => {
  it('seq numbers every row of the log, sends every send, attempts the budget; all are copied to the record', async () => {
    const id = await givenOne(pool);
    await deferOne(pool, deferral(await givenClaimed(pool, id)));
    await keepOne(pool, retry(await givenClaimed(pool, id)));
    await givenClaimed(pool, id, { processNumber: 9 });
    await reclaim(id);
    await keepOne(pool, release(await givenClaimed(pool, id)));
    await finishOne(pool, death(await givenClaimed(pool, id), 'attempts_exhausted'));
    expect(await deliveryRow(pool, id)).toMatchObject({ attempts: 2, sends: 2, seq: 4 });
    expect(
      (await attemptRows(pool, id)).map((row) => [row.seq, row.class, row.send, row.attempt, row.claimed_by]),
    ).toEqual([
      [1, 'deferred', null, 0, 7],
      [2, 'retryable', 1, 1, 7],
      [3, 'lost', null, 1, 9],
      [4, 'permanent', 2, 2, 7],
    ]);
  });

  it('a settle forgets earlier reclaims', async () => {
    for (const kind of [retry, release]) {
      const id = await givenOne(pool);
      await givenClaimed(pool, id);
      await reclaim(id);
      expect((await queueRow(pool, id)).reclaims).toBe(1);
      await keepOne(pool, kind(await givenClaimed(pool, id)));
      expect((await queueRow(pool, id)).reclaims).toBe(0);
    }
  });
});

describe('a holder that lost its lease', () => {
  it.each(['finish', 'keep'])('changes nothing by %s once somebody else has claimed', async (verb) => {
    const id = await givenOne(pool);
    const stale = await givenClaimed(pool, id);
    await reclaim(id);
    const fresh = await givenClaimed(pool, id);
    const before = await snapshotOf(id);
    const written = verb === 'finish' ? finishOne(pool, success(stale)) : keepOne(pool, retry(stale));
    expect(await written).toBe(false);
    expect(await snapshotOf(id)).toEqual(before);
    expect(await finishOne(pool, success(fresh))).toBe(true);
    expect(await finishOne(pool, success(stale))).toBe(false);
    expect(await deliveryRow(pool, id)).toMatchObject({ status: 'succeeded', sends: 1, seq: 2 });
  });

  it('still counts after a reclaim, until somebody claims', async () => {
    const [done, kept] = await givenOwed(pool, 2);
    const late = [await givenClaimed(pool, done!), await givenClaimed(pool, kept!)];
    await reclaim(done!);
    await reclaim(kept!);
    expect(await finishOne(pool, success(late[0]!))).toBe(true);
    expect(await keepOne(pool, retry(late[1]!))).toBe(true);
    expect(await deliveryRow(pool, done!)).toMatchObject({ status: 'succeeded', seq: 2, sends: 1 });
    expect(await queueRow(pool, kept!)).toMatchObject({ seq: 2, sends: 1, reclaims: 0 });
  });

  it('changes nothing after its own settle', async () => {
    const id = await givenOne(pool);
    const claim = await givenClaimed(pool, id);
    await keepOne(pool, retry(claim));
    const before = await snapshotOf(id);
    expect(await keepOne(pool, retry(claim))).toBe(false);
    expect(await finishOne(pool, success(claim))).toBe(false);
    expect(await snapshotOf(id)).toEqual(before);
  });
});

describe('a cancelled delivery whose send is open', () => {
  it('that succeeds is a success', async () => {
    const id = await givenOne(pool);
    const claim = await givenClaimed(pool, id);
    await requestCancel(pool, id);
    await finishOne(pool, success(claim));
    expect(await deliveryRow(pool, id)).toMatchObject({ status: 'succeeded', dead_reason: null, sends: 1 });
  });

  it('that fails for good ends cancelled, its send logged', async () => {
    const id = await givenOne(pool);
    const claim = await givenClaimed(pool, id);
    await requestCancel(pool, id);
    await finishOne(pool, death(claim));
    expect(await deliveryRow(pool, id)).toMatchObject({
      status: 'dead',
      dead_reason: 'cancelled',
      sends: 1,
      seq: 1,
    });
    expect(await deadLetterReason(pool, id)).toBe('cancelled');
    expect(await attemptRows(pool, id)).toMatchObject([{ class: 'permanent', http_status: 404 }]);
  });

  it.each([
    ['retry', retry],
    ['release', release],
  ])('that is kept by a %s is looked at now, to be ended', async (_, kind) => {
    const id = await givenOne(pool);
    const claim = await givenClaimed(pool, id);
    await requestCancel(pool, id);
    await keepOne(pool, { ...kind(claim), delayMs: 60_000 });
    const row = await queueRow(pool, id);
    expect(row).toMatchObject({ cancel_requested: true, claim_token: null, lease_in: null });
    expect(row.look_in).toBeLessThanOrEqual(0);
    expect(await claimByIds(pool, [id], lease())).toEqual([]);
    expect((await attemptRows(pool, id)).map((logged) => logged.next_in)).toEqual(
      kind === release ? [] : [null],
    );
  });
});

describe('a batch', () => {
  it('writes each row by its own values, and leaves out what was lost', async () => {
    const ids = await givenOwed(pool, 40);
    const claims = await Promise.all(ids.map((id) => givenClaimed(pool, id)));
    const ends = claims.map((claim, n) => {
      if (n % 4 === 0) return { ...success(claim), token: randomUUID() };
      const send = sendRecord({
        durationMs: n,
        httpStatus: 200 + n,
        latenessMs: n * 2,
        snippet: `s${n}`,
        error: `e${n}`,
      });
      return n % 4 === 1 ? { ...death(claim), send } : { ...success(claim), send };
    });
    const shuffled = [...ends].sort(() => Math.random() - 0.5);
    const written = await finish(pool, shuffled, { processNumber: 3 });
    expect([...written].sort()).toEqual(ids.filter((_, n) => n % 4 !== 0).sort());
    for (const [n, id] of ids.entries()) {
      const record = await deliveryRow(pool, id);
      const log = await attemptRows(pool, id);
      if (n % 4 === 0) {
        expect([record.status, log]).toEqual(['pending', []]);
        continue;
      }
      expect(record).toMatchObject({
        status: n % 4 === 1 ? 'dead' : 'succeeded',
        last_http_status: 200 + n,
        last_duration_ms: n,
      });
      expect(log).toMatchObject([{ http_status: 200 + n, response_snippet: `s${n}`, claimed_by: 3 }]);
    }
  });

  it('of keeps likewise', async () => {
    const ids = await givenOwed(pool, 40);
    const claims = await Promise.all(ids.map((id) => givenClaimed(pool, id)));
    const keeps = claims.map((claim, n) => {
      if (n % 4 === 0) return { ...release(claim), token: randomUUID() };
      if (n % 4 === 1) return { ...release(claim), delayMs: n * 1_000 };
      const kept = retry(claim, n * 1_000, { httpStatus: 500 + n, durationMs: n });
      return n % 4 === 2 ? { ...kept, slotVersion: n } : kept;
    });
    const written = await keep(
      pool,
      [...keeps].sort(() => Math.random() - 0.5),
      PROCESS,
    );
    expect([...written].sort()).toEqual(ids.filter((_, n) => n % 4 !== 0).sort());
    for (const [n, id] of ids.entries()) {
      const row = await queueRow(pool, id);
      if (n % 4 === 0) {
        expect(row.claim_token).toBe(claims[n]!.token);
        continue;
      }
      expect(row.due_in).toBeGreaterThan(n * 1_000 - 20_000);
      expect(row.due_in).toBeLessThanOrEqual(n * 1_000);
      const log = (await attemptRows(pool, id)).map((logged) => [logged.class, logged.http_status]);
      expect(log).toEqual(n % 4 === 1 ? [] : [['retryable', 500 + n]]);
      expect(row).toMatchObject(
        n % 4 === 2 ? { waiting: 'slot', slot_version: n } : { waiting: null, slot_version: null },
      );
    }
  });

  it('that an answer was lost of can be written again: it is told that nothing is its own any more', async () => {
    const ids = await givenOwed(pool, 3);
    const ends = (await Promise.all(ids.map((id) => givenClaimed(pool, id)))).map(success);
    expect((await finish(pool, ends, PROCESS)).size).toBe(3);
    expect((await finish(pool, ends, PROCESS)).size).toBe(0);
    for (const id of ids) expect((await attemptRows(pool, id)).length).toBe(1);
  });

  it.each(['finish', 'keep'])(
    'of %s in which one row cannot be stored fails whole, reported as the fault of data',
    async (verb) => {
      const ids = await givenOwed(pool, 3);
      const claims = await Promise.all(ids.map((id) => givenClaimed(pool, id)));
      const before = await Promise.all(ids.map(snapshotOf));
      const bad = sendRecord({ class: 'retryable', snippet: 'a\0b' });
      const written =
        verb === 'finish'
          ? finish(
              pool,
              claims.map((claim, n) => (n === 1 ? { ...death(claim), send: bad } : success(claim))),
              PROCESS,
            )
          : keep(
              pool,
              claims.map((claim, n) => retry(claim, 0, n === 1 ? bad : {})),
              PROCESS,
            );
      const error = await written.catch((reason: unknown) => reason);
      expect(sqlState(error)).toMatch(/^22/);
      expect(judgeFailure(error)).toBe('data');
      expect(await Promise.all(ids.map(snapshotOf))).toEqual(before);
    },
  );
});
