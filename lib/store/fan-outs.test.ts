import type pg from 'pg';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import { accept, givenTenant, newEvent } from '../../services/testing/given-queue.ts';
import { queueRow } from '../../services/testing/stored-rows.ts';
import { fanOutStep, nextFanOut } from './fan-outs.ts';
import type { NewEvent } from './ingest.ts';
import { createPool } from './pool.ts';

let database: TestDatabase;
let pool: pg.Pool;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'sweep', max: 6, applicationName: 'test' });
});
beforeEach(async () => {
  await pool.query('truncate relay.fan_outs, relay.queue');
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

interface Large {
  eventId: string;
  tenantId: string;
  /** Those that it matched, in the order of its deliveries. */
  endpointIds: string[];
}

/** An event that matched so many endpoints, more than 1,000. */
async function givenLarge(count: number, event: Partial<NewEvent> = {}): Promise<Large> {
  const tenantId = await givenTenant(pool);
  await pool.query(
    `with made as (
       insert into relay.endpoints (tenant_id, url, secret)
       select $1, 'https://x.example.test', '\\x00' from generate_series(1, $2) returning id
     )
     insert into relay.subscriptions (tenant_id, pattern, endpoint_id) select $1, '*', id from made`,
    [tenantId, count],
  );
  const [result] = await accept(pool, [newEvent({ tenantId, ...event })]);
  if (result?.kind !== 'accepted') throw new Error(result?.kind);
  const { rows } = await pool.query('select endpoint_ids from relay.fan_outs where event_id = $1', [
    result.eventId,
  ]);
  return { eventId: result.eventId, tenantId, endpointIds: rows[0].endpoint_ids };
}

async function workToTheEnd(eventId: string, limit: number): Promise<number> {
  for (let steps = 1; ; steps += 1) {
    const step = await fanOutStep(pool, eventId, limit);
    if (!step || step.ended) return steps;
  }
}

/** Endpoints of an event's deliveries in the order of these; each is owed too. */
async function delivered(eventId: string): Promise<string[]> {
  const { rows } = await pool.query<{ endpoint_id: string; n: number; owed: boolean }>(
    `select d.endpoint_id, ('x' || right(d.id::text, 4))::bit(16)::int as n,
       exists (select from relay.queue q where q.delivery_id = d.id and q.endpoint_id = d.endpoint_id and q.event_id = d.event_id) as owed
     from relay.deliveries d where d.event_id = $1 order by d.id`,
    [eventId],
  );
  expect(rows.map((row) => row.n)).toEqual(rows.map((_, place) => place + 1));
  expect(rows.every((row) => row.owed)).toBe(true);
  return rows.map((row) => row.endpoint_id);
}

describe('a fan-out that continues', () => {
  it('goes on where it was, in steps of a bounded size, until every endpoint has its delivery', async () => {
    const { eventId, endpointIds } = await givenLarge(1_250);
    expect(await fanOutStep(pool, eventId, 100)).toEqual({ written: 100, ended: false });
    expect((await delivered(eventId)).length).toBe(1_100);
    expect(await fanOutStep(pool, eventId, 100)).toEqual({ written: 100, ended: false });
    expect(await fanOutStep(pool, eventId, 100)).toEqual({ written: 50, ended: true });
    expect(await delivered(eventId)).toEqual(endpointIds);
    expect(await fanOutStep(pool, eventId, 100)).toBeNull();
    expect(await nextFanOut(pool, null)).toBeNull();
  });

  it('ends with a step that is just full', async () => {
    const { eventId } = await givenLarge(1_200);
    expect(await fanOutStep(pool, eventId, 100)).toEqual({ written: 100, ended: false });
    expect(await fanOutStep(pool, eventId, 100)).toEqual({ written: 100, ended: true });
  });

  it('leaves out what was made, enabled or subscribed after its event, and keeps what it matched', async () => {
    const { eventId, tenantId, endpointIds } = await givenLarge(1_010);
    await pool.query('delete from relay.subscriptions where endpoint_id = $1', [endpointIds.at(-1)]);
    await pool.query(
      `with made as (
         insert into relay.endpoints (tenant_id, url, secret) values ($1, 'https://late.example.test', '\\x00') returning id
       )
       insert into relay.subscriptions (tenant_id, pattern, endpoint_id) select $1, '*', id from made`,
      [tenantId],
    );
    await workToTheEnd(eventId, 1_000);
    expect(await delivered(eventId)).toEqual(endpointIds);
  });

  it('reaches the last number that a delivery may have', { timeout: 60_000 }, async () => {
    const { eventId, endpointIds } = await givenLarge(65_535);
    expect(await workToTheEnd(eventId, 10_000)).toBe(7);
    expect(await delivered(eventId)).toEqual(endpointIds);
  });

  it('writes what is to be found now, by whoever looks, on the bulk lane', async () => {
    const { eventId } = await givenLarge(1_001);
    await fanOutStep(pool, eventId, 1_000);
    const row = await queueRow(pool, `${eventId.slice(0, 32)}03e9`);
    expect([row.announced_in, row.lane]).toEqual([null, 1]);
    expect(row.due_in).toBeLessThanOrEqual(0);
    expect(row.look_in).toBe(row.due_in);
  });

  it('keeps to the times of its event', async () => {
    const inMs = (ms: number) => new Date(Date.now() + ms);
    const times = { deliverAt: inMs(600_000), expiresAt: inMs(900_000) };
    const { eventId } = await givenLarge(1_001, times);
    await fanOutStep(pool, eventId, 1_000);
    const [first, last] = await Promise.all(
      ['0001', '03e9'].map((tail) => queueRow(pool, eventId.slice(0, 32) + tail)),
    );
    expect(last!.due_in - first!.due_in).toBeLessThan(5_000);
    const { rows } = await pool.query(
      'select distinct due_at, expires_at from relay.queue where event_id = $1',
      [eventId],
    );
    expect(rows).toEqual([{ due_at: times.deliverAt, expires_at: times.expiresAt }]);
  });

  it('whose event is gone still owes what it promised', async () => {
    const { eventId, endpointIds } = await givenLarge(1_001);
    await pool.query('delete from relay.events where id = $1', [eventId]);
    await workToTheEnd(eventId, 1_000);
    expect(await delivered(eventId)).toEqual(endpointIds);
  });

  it('that is cut off in a step has not done it', async () => {
    const { eventId, endpointIds } = await givenLarge(1_100);
    const client = await pool.connect();
    await client.query('begin');
    expect(await fanOutStep(client, eventId, 60)).toEqual({ written: 60, ended: false });
    await client.query('rollback');
    client.release();
    expect((await delivered(eventId)).length).toBe(1_000);
    await workToTheEnd(eventId, 60);
    expect(await delivered(eventId)).toEqual(endpointIds);
  });
});

describe('two leaders at once', () => {
  it('pass by what the other is at', async () => {
    const { eventId } = await givenLarge(1_100);
    const client = await pool.connect();
    await client.query('begin');
    await fanOutStep(client, eventId, 10);
    expect(await fanOutStep(pool, eventId, 10)).toBeNull();
    await client.query('commit');
    client.release();
    expect(await fanOutStep(pool, eventId, 1_000)).toEqual({ written: 90, ended: true });
  });

  it('write each delivery once', async () => {
    const { eventId, endpointIds } = await givenLarge(1_600);
    const work = async () => {
      while ((await nextFanOut(pool, null)) !== null) await fanOutStep(pool, eventId, 7);
    };
    await Promise.all([work(), work(), work(), work()]);
    expect(await delivered(eventId)).toEqual(endpointIds);
  });
});

describe('unfinished fan-outs', () => {
  it('are found in turns, from any place in their order', async () => {
    const ids = [(await givenLarge(1_001)).eventId, (await givenLarge(1_001)).eventId].sort();
    expect(await nextFanOut(pool, null)).toBe(ids[0]);
    expect(await nextFanOut(pool, ids[0]!)).toBe(ids[1]);
    expect(await nextFanOut(pool, ids[1]!)).toBeNull();
  });
});
