import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import { eventually } from '../../services/testing/eventually.ts';
import {
  death,
  finishOne,
  givenClaimed,
  givenEndpoint,
  givenOne,
  givenOwed,
  keepOne,
  retry,
  success,
} from '../../services/testing/given-queue.ts';
import {
  deadLetterReason,
  findQueueRow,
  givenWaiting,
  queueRow,
  requestCancel,
} from '../../services/testing/stored-rows.ts';
import { eventIdOf } from './event-ids.ts';
import { fanOutStep } from './fan-outs.ts';
import { checkInvariants, type InvariantReport, violations } from './invariants.ts';
import { createPool } from './pool.ts';

let database: TestDatabase;
let pool: pg.Pool;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 4, applicationName: 'test' });
});
beforeEach(async () => {
  await pool.query(
    'truncate relay.deliveries, relay.queue, relay.dead_letters, relay.events, relay.endpoint_jobs, relay.fan_outs',
  );
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

const HEALTHY: InvariantReport = {
  deliveriesChecked: 0,
  pendingWithoutQueueRow: 0,
  queueRowWithoutPending: 0,
  deadWithoutDeadLetter: 0,
  deadLetterWithoutDead: 0,
  parkedForNobody: 0,
  fanOutsAstray: 0,
  orphans: 0,
};

/** Counts, counts again to see that counting changes nothing, repairs, and finds nothing left. */
async function expectFoundAndRepaired(fault: keyof InvariantReport, checked = 1): Promise<void> {
  const found = { ...HEALTHY, deliveriesChecked: checked, [fault]: 1 };
  expect(await checkInvariants(pool, { repair: false })).toEqual(found);
  expect(await checkInvariants(pool, { repair: true })).toEqual(found);
  expect(await checkInvariants(pool, { repair: true })).toEqual({ ...HEALTHY, deliveriesChecked: checked });
}

async function givenEnded(end = death): Promise<string> {
  const id = await givenOne(pool);
  await finishOne(pool, end(await givenClaimed(pool, id)));
  return id;
}

const insertLetter = (id: string) =>
  pool.query(
    `insert into relay.dead_letters (delivery_id, endpoint_id, event_id, tenant_id, reason)
     values ($1, gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'gone')`,
    [id],
  );

const insertQueueRow = (id: string) =>
  pool.query(
    `insert into relay.queue (delivery_id, endpoint_id, event_id, due_at, look_at)
     values ($1, gen_random_uuid(), gen_random_uuid(), now(), now())`,
    [id],
  );

describe('a healthy record', () => {
  it('of every state has no violation', async () => {
    await givenEnded(death);
    await givenEnded(success);
    await givenClaimed(pool, await givenOne(pool));
    await keepOne(pool, retry(await givenClaimed(pool, await givenOne(pool))));
    const report = await checkInvariants(pool, { repair: true });
    expect(report).toEqual({ ...HEALTHY, deliveriesChecked: 4 });
    expect(violations(report)).toBe(0);
  });

  it('is walked to its end in slices', async () => {
    await givenOwed(pool, 5_200);
    expect(await checkInvariants(pool, { repair: false })).toEqual({ ...HEALTHY, deliveriesChecked: 5_200 });
  });

  it('is walked in slices that wait for their turn, until it is told to stop', async () => {
    await givenOwed(pool, 3);
    const stop = new AbortController();
    let slices = 0;
    const report = await checkInvariants(pool, {
      repair: false,
      signal: stop.signal,
      async pace(slice) {
        slices += 1;
        await slice();
        stop.abort();
      },
    });
    expect([slices, report.deliveriesChecked]).toEqual([1, 3]);
  });
});

describe('a fault', () => {
  it('a pending delivery that nothing would send is owed again, with its counters', async () => {
    const id = await givenOne(pool, { expiresAt: new Date(Date.now() + 3_600_000) });
    await pool.query('delete from relay.queue');
    await pool.query('update relay.deliveries set seq = 4, sends = 3, attempts = 2, generation = 2');
    await expectFoundAndRepaired('pendingWithoutQueueRow');
    const row = await queueRow(pool, id);
    expect(row).toMatchObject({ seq: 4, sends: 3, attempts: 2, generation: 2, lane: 1, lease_in: null });
    expect(row.look_in).toBeLessThanOrEqual(0);
    const { rows } = await pool.query('select expires_at from relay.queue');
    expect(rows[0].expires_at).not.toBeNull();
    await finishOne(pool, success(await givenClaimed(pool, id)));
  });

  it('a queue row of a delivery that has ended is removed', async () => {
    const id = await givenEnded(success);
    await insertQueueRow(id);
    await expectFoundAndRepaired('queueRowWithoutPending');
    expect(await findQueueRow(pool, id)).toBeNull();
  });

  it('a queue row of no delivery at all is removed', async () => {
    await insertQueueRow(randomUUID());
    await expectFoundAndRepaired('queueRowWithoutPending', 0);
  });

  it('a dead delivery without its letter gets one that tells why and when', async () => {
    const id = await givenEnded(death);
    await pool.query(`update relay.deliveries set finished_at = '2026-01-02T03:04:05Z'`);
    await pool.query('delete from relay.dead_letters');
    await expectFoundAndRepaired('deadWithoutDeadLetter');
    expect(await deadLetterReason(pool, id)).toBe('permanent_failure');
    const { rows } = await pool.query('select died_at, last_http_status from relay.dead_letters');
    expect(rows).toEqual([{ died_at: new Date('2026-01-02T03:04:05Z'), last_http_status: 404 }]);
  });

  it('a dead letter of a delivery that lives is removed', async () => {
    const id = await givenOne(pool);
    await insertLetter(id);
    await expectFoundAndRepaired('deadLetterWithoutDead');
    expect(await deadLetterReason(pool, id)).toBeNull();
  });

  it('a dead letter of no delivery at all is removed', async () => {
    await insertLetter(randomUUID());
    await expectFoundAndRepaired('deadLetterWithoutDead', 0);
  });

  it('a delivery whose event or endpoint is missing is counted, and left to its claim', async () => {
    const [noEvent, noEndpoint] = [await givenOne(pool), await givenOne(pool)];
    await pool.query('delete from relay.events where id = $1', [`${noEvent.slice(0, 32)}0000`]);
    await pool.query('update relay.deliveries set endpoint_id = gen_random_uuid() where id = $1', [
      noEndpoint,
    ]);
    const report = await checkInvariants(pool, { repair: true });
    expect(report).toEqual({ ...HEALTHY, deliveriesChecked: 2, orphans: 2 });
    expect(violations(report)).toBe(2);
    expect(await findQueueRow(pool, noEvent)).not.toBeNull();
  });
});

describe('a delivery that is being settled at this moment', () => {
  it('is no fault, and waits for nobody', async () => {
    const id = await givenOne(pool);
    const claim = await givenClaimed(pool, id);
    const settling = await pool.connect();
    await settling.query('begin');
    await settling.query(
      `update relay.deliveries set status = 'succeeded', finished_at = now() where id = $1`,
      [id],
    );
    // What a snapshot between two statements could show: the queue row gone and the record not yet written.
    await pool.query('delete from relay.queue where delivery_id = $1 and claim_token = $2', [
      id,
      claim.token,
    ]);
    expect(await checkInvariants(pool, { repair: true })).toEqual({ ...HEALTHY, deliveriesChecked: 1 });
    await settling.query('commit');
    settling.release();
    expect(await checkInvariants(pool, { repair: true })).toEqual({ ...HEALTHY, deliveriesChecked: 1 });
    expect(await findQueueRow(pool, id)).toBeNull();
  });

  it('and whose queue row is held keeps a repair from waiting', async () => {
    const id = await givenEnded(success);
    await insertQueueRow(id);
    const settling = await pool.connect();
    await settling.query('begin');
    await settling.query('select from relay.queue where delivery_id = $1 for update', [id]);
    expect((await checkInvariants(pool, { repair: true })).queueRowWithoutPending).toBe(1);
    await settling.query('rollback');
    settling.release();
    await expectFoundAndRepaired('queueRowWithoutPending');
  });
});

describe('a parked delivery', () => {
  async function givenParked(columns: string): Promise<{ id: string; endpointId: string }> {
    const endpointId = await givenEndpoint(pool, { patterns: ['nothing.else'] });
    const id = await givenOne(pool, { targetEndpointId: endpointId });
    await givenWaiting(pool, [id], { parked: true });
    await pool.query(`update relay.endpoints set ${columns} where id = $1`, [endpointId]);
    return { id, endpointId };
  }

  it.each([
    ['is enabled', 'enabled = true'],
    ['is paused with an end', `paused_until = now() + interval '1 h', paused_reason = 'operator'`],
    ['is deleted', 'deleted_at = now()'],
    [
      'is deleted while it was paused',
      `deleted_at = now(), paused_until = 'infinity', paused_reason = 'operator'`,
    ],
  ])('whose endpoint %s is due now', async (_, columns) => {
    const { id } = await givenParked(columns);
    await expectFoundAndRepaired('parkedForNobody');
    const row = await queueRow(pool, id);
    expect(row).toMatchObject({ waiting: null, slot_version: null });
    expect(row.due_in).toBeLessThanOrEqual(0);
    expect(row.look_in).toBeLessThanOrEqual(0);
    await givenClaimed(pool, id);
  });

  it('whose endpoint is missing is due now, to be refused', async () => {
    const { id, endpointId } = await givenParked('enabled = true');
    await pool.query('delete from relay.endpoints where id = $1', [endpointId]);
    expect(await checkInvariants(pool, { repair: true })).toMatchObject({ parkedForNobody: 1, orphans: 1 });
    expect((await queueRow(pool, id)).due_in).toBeLessThanOrEqual(0);
  });

  it.each([
    ['disabled', `enabled = false, disabled_reason = 'operator'`],
    ['paused without end', `paused_until = 'infinity', paused_reason = 'operator'`],
  ])('of an endpoint that is %s is no fault', async (_, columns) => {
    await givenParked(columns);
    expect(await checkInvariants(pool, { repair: true })).toEqual({ ...HEALTHY, deliveriesChecked: 1 });
  });

  it.each(['retime', 'cancel'])('that a %s job will come to is no fault', async (kind) => {
    const { endpointId } = await givenParked('enabled = true');
    await pool.query('insert into relay.endpoint_jobs (endpoint_id, kind) values ($1, $2)', [
      endpointId,
      kind,
    ]);
    expect(await checkInvariants(pool, { repair: true })).toEqual({ ...HEALTHY, deliveriesChecked: 1 });
  });

  it('that is being cancelled is no fault', async () => {
    const { id } = await givenParked('deleted_at = now()');
    await requestCancel(pool, id);
    expect(await checkInvariants(pool, { repair: true })).toEqual({ ...HEALTHY, deliveriesChecked: 1 });
  });

  it('whose endpoint is just being paused is judged when that is committed', async () => {
    const { id, endpointId } = await givenParked('enabled = true');
    const operator = await pool.connect();
    await operator.query('begin');
    await operator.query(
      `update relay.endpoints set paused_until = 'infinity', paused_reason = 'operator' where id = $1`,
      [endpointId],
    );
    const checked = checkInvariants(pool, { repair: true });
    await eventually(async () => {
      const { rows } = await pool.query(
        `select from pg_stat_activity where wait_event_type = 'Lock' and query like '%for share%'`,
      );
      expect(rows.length).toBe(1);
    });
    await operator.query('commit');
    operator.release();
    expect(await checked).toEqual({ ...HEALTHY, deliveriesChecked: 1 });
    expect((await queueRow(pool, id)).waiting).toBe('parked');
  });

  it('is found among many, and all of them are repaired in slices', async () => {
    const endpointId = await givenEndpoint(pool, { patterns: ['nothing.else'] });
    const ids = await givenOwed(pool, 5_200, { endpointId });
    await givenWaiting(pool, ids, { parked: true });
    const found = { ...HEALTHY, deliveriesChecked: 5_200, parkedForNobody: 5_200 };
    expect(await checkInvariants(pool, { repair: true })).toEqual(found);
    expect(await checkInvariants(pool, { repair: true })).toEqual({ ...HEALTHY, deliveriesChecked: 5_200 });
  });
});

describe('an unfinished fan-out', () => {
  /** Of an event to so many endpoints, of which the first has its delivery. */
  async function givenFanOut(endpoints: number, nextTail: number): Promise<string> {
    const eventId = eventIdOf(await givenOne(pool));
    await pool.query(
      `insert into relay.fan_outs (event_id, tenant_id, endpoint_ids, next_tail)
       select $1, gen_random_uuid(), array(select gen_random_uuid() from generate_series(1, $2::integer)), $3`,
      [eventId, endpoints, nextTail],
    );
    return eventId;
  }

  const nextTails = async () =>
    (await pool.query('select next_tail from relay.fan_outs')).rows.map((row) => row.next_tail);

  it('that goes on after the last delivery that was made is no fault', async () => {
    await givenFanOut(3, 2);
    expect(await checkInvariants(pool, { repair: true })).toEqual({ ...HEALTHY, deliveriesChecked: 1 });
  });

  it.each([
    ['again with one that was made', 1],
    ['past one that was not', 3],
  ])('that would go on %s is put where it belongs', async (_, nextTail) => {
    await givenFanOut(3, nextTail);
    await expectFoundAndRepaired('fanOutsAstray');
    expect(await nextTails()).toEqual([2]);
  });

  it('that has nothing left to make is ended', async () => {
    await givenFanOut(1, 1);
    await expectFoundAndRepaired('fanOutsAstray');
    expect(await nextTails()).toEqual([]);
  });

  it('whose step runs is looked at when that is done', async () => {
    const eventId = await givenFanOut(60, 2);
    const client = await pool.connect();
    await client.query('begin');
    await fanOutStep(client, eventId, 10);
    const check = checkInvariants(pool, { repair: true });
    await eventually(async () => {
      const { rowCount } = await pool.query(
        `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
      );
      expect(rowCount).toBe(1);
    });
    await client.query('commit');
    client.release();
    expect((await check).fanOutsAstray).toBe(0);
    expect(await nextTails()).toEqual([12]);
  });
});
