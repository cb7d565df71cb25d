import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import {
  accept,
  acceptedIds,
  givenEndpoint,
  givenTenant,
  newEvent,
} from '../../services/testing/given-queue.ts';
import { createExplainingPool, type RanPlan } from '../../services/testing/query-plans.ts';
import { DEFAULT_TENANT_ID } from '../domain/limits.ts';
import { createDatabase, type Database } from './database.ts';
import { findEvent } from './events-read.ts';
import { AHEAD_LIMIT, readDeliveryFacts } from './explain.ts';
import { findMatch, listMatches } from './explain-event.ts';

let database: TestDatabase;
let pool: pg.Pool;
let db: Database;
let plans: RanPlan[];

beforeAll(async () => {
  database = await createTestDatabase();
  ({ pool, plans } = await createExplainingPool(database.url, 'general'));
  db = createDatabase(pool);
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

async function buffersOf<T>(work: () => Promise<T>): Promise<{ result: T; buffers: number; plan: RanPlan }> {
  plans.length = 0;
  const result = await work();
  const [plan] = plans;
  if (!plan) throw new Error('nothing ran');
  return { result, buffers: plan.buffers, plan };
}

/** What reads a table whole. A bitmap's condition is its index's, which the plan names apart. */
const unconditional = ({ scans }: RanPlan) =>
  scans.filter(({ kind, condition }) => !condition && kind !== 'Bitmap Heap Scan');

/** Rows that wait for one endpoint, a second apart from `fromSeconds` on; the delivery of each is its own. */
async function givenWaiting(endpointId: string, count: number, fromSeconds: number): Promise<string[]> {
  const { rows } = await pool.query<{ id: string }>(
    `with made as (
       insert into relay.queue (delivery_id, endpoint_id, event_id, due_at, look_at, waiting, slot_version)
       select gen_random_uuid(), $1, gen_random_uuid(), m.at, m.at, 'slot', 1
       from generate_series($3::integer, $3::integer + $2::integer - 1) n, lateral (select now() + n * interval '1 s' as at) m
       returning delivery_id, event_id, endpoint_id, due_at
     ),
     recorded as (
       insert into relay.deliveries (id, event_id, endpoint_id, tenant_id)
       select delivery_id, event_id, endpoint_id, $4 from made
     )
     select delivery_id as id from made order by due_at`,
    [endpointId, count, fromSeconds, DEFAULT_TENANT_ID],
  );
  return rows.map((row) => row.id);
}

describe('the place of a delivery among those that wait', () => {
  it('counts the earlier slots of its own endpoint', async () => {
    const [endpointId, other] = [await givenEndpoint(pool), await givenEndpoint(pool)];
    const ids = await givenWaiting(endpointId, 4, 100);
    await givenWaiting(other, 9, 1);
    const places = [];
    for (const id of ids) {
      places.push((await readDeliveryFacts(db, DEFAULT_TENANT_ID, id))!.owed!.ahead);
    }
    expect(places).toEqual([0, 1, 2, 3]);
  });

  // What a planner makes of a queue that was empty when it was looked at: see the plans of the hot statements.
  it('is read by index, up to its limit, from a backlog of 20,000 in a queue that was analysed empty', async () => {
    await givenWaiting(await givenEndpoint(pool), 20_000, 1);
    await pool.query('delete from relay.queue');
    await pool.query('analyze relay.queue');
    const endpointId = await givenEndpoint(pool);
    const ids = await givenWaiting(endpointId, 20_000, 1);
    const deep = await buffersOf(() => readDeliveryFacts(db, DEFAULT_TENANT_ID, ids.at(-1)!));
    expect(deep.result!.owed!.ahead).toBe(AHEAD_LIMIT);
    expect(unconditional(deep.plan)).toEqual([]);
    expect(deep.buffers).toBeLessThan(2 * AHEAD_LIMIT);
    const shallow = await buffersOf(() => readDeliveryFacts(db, DEFAULT_TENANT_ID, ids[3]!));
    expect(shallow.result!.owed!.ahead).toBe(3);
    expect(shallow.buffers).toBeLessThan(200);
  });
});

describe('the facts of a delivery', () => {
  it('are null for another tenant and for what does not exist', async () => {
    const [id] = await givenWaiting(await givenEndpoint(pool), 1, 1);
    expect(await readDeliveryFacts(db, await givenTenant(pool), id!)).toBeNull();
    expect(await readDeliveryFacts(db, DEFAULT_TENANT_ID, randomUUID())).toBeNull();
  });

  it('know an endpoint and an event that are missing', async () => {
    const [id] = await givenWaiting(randomUUID(), 1, 1);
    expect(await readDeliveryFacts(db, DEFAULT_TENANT_ID, id!)).toMatchObject({
      endpoint: null,
      eventMissing: true,
      owed: { waiting: 'slot' },
    });
  });
});

describe('what an event was matched to', () => {
  it('is read by index for a page of 1,000 endpoints among 5,000 of other tenants', async () => {
    const tenantId = await givenTenant(pool);
    for (const [tenant, count] of [
      [DEFAULT_TENANT_ID, 5_000],
      [tenantId, 1_000],
    ] as const) {
      await pool.query(
        `with made as (
           insert into relay.endpoints (tenant_id, url, secret)
           select $1, 'https://sink.example.test', '\\x00' from generate_series(1, $2::integer)
           returning id, tenant_id
         )
         insert into relay.subscriptions (tenant_id, pattern, endpoint_id) select tenant_id, '*', id from made`,
        [tenant, count],
      );
    }
    await pool.query('analyze relay.endpoints');
    const [accepted] = await accept(pool, [newEvent({ tenantId })]);
    expect(acceptedIds(accepted)).toHaveLength(1_000);
    const event = (await findEvent(db, tenantId, `${acceptedIds(accepted)[0]!.slice(0, -4)}0000`))!;
    const of = { tenantId, event };
    const { result, buffers, plan } = await buffersOf(() => listMatches(db, of, { after: null, limit: 100 }));
    expect(unconditional(plan)).toEqual([]);
    expect(result).toHaveLength(100);
    expect(result.every(({ deliveryStatus }) => deliveryStatus === 'pending')).toBe(true);
    expect(buffers).toBeLessThan(4_000);

    const last = await listMatches(db, of, { after: result.at(-1)!.endpointId, limit: 1_000 });
    expect(last).toHaveLength(900);
    const one = await buffersOf(() => findMatch(db, of, result[0]!.endpointId));
    expect(one.result).toEqual(result[0]);
    expect(one.buffers).toBeLessThan(100);
  });

  it('knows which of very many endpoints the fan-out has not come to yet', async () => {
    const tenantId = await givenTenant(pool);
    const endpoints = await Promise.all([1, 2, 3].map(() => givenEndpoint(pool, { tenantId })));
    const [accepted] = await accept(pool, [newEvent({ tenantId })]);
    const event = (await findEvent(db, tenantId, `${acceptedIds(accepted)[0]!.slice(0, -4)}0000`))!;
    const other = await givenEndpoint(pool, { tenantId });
    // As a step left it that came to the first only.
    const { rows } = await pool.query(
      `with gone as (delete from relay.deliveries where event_id = $1 and right(id::text, 4) > '0001' returning id, endpoint_id)
       select array_agg(endpoint_id order by id) as later from gone`,
      [event.id],
    );
    const later: string[] = rows[0].later;
    const first = endpoints.find((id) => !later.includes(id));
    await pool.query(
      'insert into relay.fan_outs (event_id, tenant_id, endpoint_ids, next_tail) values ($1, $2, $3, 2)',
      [event.id, tenantId, [first, ...later]],
    );
    const matches = await listMatches(db, { tenantId, event }, { after: null, limit: 10 });
    const facts = Object.fromEntries(
      matches.map((match) => [match.endpointId, [match.deliveryId !== null, match.stillToCome]]),
    );
    expect(facts).toEqual({
      [first!]: [true, false],
      ...Object.fromEntries(later.map((id) => [id, [false, true]])),
      [other]: [false, false],
    });
    expect(await findMatch(db, { tenantId, event }, later[0]!)).toMatchObject({ stillToCome: true });
    expect(await findMatch(db, { tenantId, event }, other)).toMatchObject({ stillToCome: false });
  });

  it('still names an endpoint that is missing, by its delivery', async () => {
    const tenantId = await givenTenant(pool);
    const endpointId = await givenEndpoint(pool, { tenantId });
    const [accepted] = await accept(pool, [newEvent({ tenantId })]);
    const [deliveryId] = acceptedIds(accepted);
    await pool.query('delete from relay.endpoints where id = $1', [endpointId]);
    const event = (await findEvent(db, tenantId, `${deliveryId!.slice(0, -4)}0000`))!;
    expect(await listMatches(db, { tenantId, event }, { after: null, limit: 10 })).toEqual([
      { endpointId, url: null, deliveryId, deliveryStatus: 'pending', stillToCome: false, endpoint: null },
    ]);
    expect(await findMatch(db, { tenantId, event }, endpointId)).toBeNull();
  });
});
