import { sql } from 'kysely';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import { givenEndpoint, givenOwed, givenTenant } from '../../services/testing/given-queue.ts';
import { createExplainingPool, type RanPlan } from '../../services/testing/query-plans.ts';
import { createDatabase, type Database } from './database.ts';
import { countEventDeliveries, listEventDeliveries } from './deliveries-read.ts';
import { searchEndpointDeliveries, searchTenantDeliveries } from './delivery-search.ts';
import { searchEvents } from './events-read.ts';
import { createPool } from './pool.ts';
import { SEARCH_ROWS, type SearchPage } from './search-page.ts';
import { readEndpointStats, readTenantStats } from './stats.ts';

const HOUR = 3_600_000;
const RECORDS = 32_000;
const PAGES = Math.ceil(RECORDS / SEARCH_ROWS);

interface Stage {
  database: TestDatabase;
  pool: pg.Pool;
  db: Database;
  plans: RanPlan[];
  tenantId: string;
  endpointId: string;
  eventId: string;
}

/** A tenant's deliveries to one endpoint, owed all of them, on connections that tell their plans. */
async function givenStage(owed: number): Promise<Stage> {
  const database = await createTestDatabase();
  const { pool, plans } = await createExplainingPool(database.url, 'search');
  const tenantId = await givenTenant(pool);
  const endpointId = await givenEndpoint(pool, { tenantId, patterns: ['nothing.else'] });
  const ids = await givenOwed(pool, owed, { endpointId, event: { tenantId } });
  const eventId = `${ids[0]!.slice(0, 32)}0000`;
  return { database, pool, db: createDatabase(pool), plans, tenantId, endpointId, eventId };
}

async function leave({ database, pool }: Stage): Promise<void> {
  await pool.end();
  await database.drop();
}

const GROWING = /^(queue|deliveries|events|delivery_attempts.*)$/;

/** What is wrong with a plan, in words; empty when every table that grows is reached by an index condition. */
function faultsOf({ query, scans }: RanPlan): string[] {
  return scans
    .filter(({ table }) => GROWING.test(table))
    .filter(({ kind, condition }) => !(kind.startsWith('Index') && condition))
    .map(({ kind, table }) => `${query.trim().slice(0, 80)}: ${kind} of ${table} without a condition`);
}

/** Every read that looks through many rows, each with the pages that it may look at. */
function reads({ db, tenantId, endpointId, eventId }: Stage): [string, number, () => Promise<unknown>][] {
  const page = { before: null, limit: 100 };
  const [all, pending, dead] = [{}, { status: 'pending' }, { status: 'dead' }] as const;
  const typed = { eventType: 'user.*' };
  const shown = 100 * 30;
  const walked = 2 * SEARCH_ROWS * 6;
  const counted = 25 * RECORDS;
  return [
    ['an endpoint', shown, () => searchEndpointDeliveries(db, endpointId, { ...page, filter: all })],
    ['its pending', shown, () => searchEndpointDeliveries(db, endpointId, { ...page, filter: pending })],
    ['its dead', walked, () => searchEndpointDeliveries(db, endpointId, { ...page, filter: dead })],
    ['its users', walked, () => searchEndpointDeliveries(db, endpointId, { ...page, filter: typed })],
    ['a tenant', shown, () => searchTenantDeliveries(db, tenantId, { ...page, filter: all })],
    ['its pending', shown, () => searchTenantDeliveries(db, tenantId, { ...page, filter: pending })],
    ['its dead', walked, () => searchTenantDeliveries(db, tenantId, { ...page, filter: dead })],
    ['its users', walked, () => searchTenantDeliveries(db, tenantId, { ...page, filter: typed })],
    ['events', shown, () => searchEvents(db, tenantId, page)],
    ['events of a type', walked, () => searchEvents(db, tenantId, { ...page, type: 'user.*' })],
    ['unmatched events', walked, () => searchEvents(db, tenantId, { ...page, unmatched: true })],
    ['an event', shown, () => listEventDeliveries(db, { eventId }, { after: null, limit: 100 })],
    ['its counts', shown, () => countEventDeliveries(db, { eventId })],
    ['statistics of an endpoint', counted, () => readEndpointStats(db, endpointId, HOUR)],
    ['statistics of a tenant', counted, () => readTenantStats(db, tenantId, HOUR)],
  ];
}

async function faultsOfEach(stage: Stage): Promise<string[]> {
  const faults: string[] = [];
  for (const [name, buffers, read] of reads(stage)) {
    stage.plans.length = 0;
    await read();
    faults.push(...stage.plans.flatMap(faultsOf));
    const looked = Math.max(...stage.plans.map((plan) => plan.buffers));
    if (looked > buffers) faults.push(`${name}: ${looked} pages, and ${buffers} are enough`);
    if (stage.plans.length !== 1) faults.push(`${name}: ${stage.plans.length} statements`);
  }
  return faults;
}

/** As many deliveries of the tenant to its endpoint, the oldest of them dead and of another type, in a queue of 200,000. */
async function givenRecords(pool: pg.Pool, { tenantId, endpointId }: Stage): Promise<void> {
  await pool.query(
    `with e as (
       insert into relay.events (id, tenant_id, type, content_type, payload, matched)
       select (lpad(to_hex(m.ms + n), 12, '0') || '70008000' || lpad(to_hex(n), 8, '0') || '0000')::uuid, $1,
         case n when 1 then 'user.made' else 'order.paid' end, 'text/plain', 'x', 1
       from generate_series(1, $3::integer) n, (select (extract(epoch from now()) * 1000)::bigint - $3 as ms) m
       returning id
     ),
     d as (
       insert into relay.deliveries (id, event_id, endpoint_id, tenant_id)
       select (left(id::text, 32) || '0001')::uuid, id, $2, $1 from e
       returning id, event_id
     )
     insert into relay.queue (delivery_id, endpoint_id, event_id, due_at, look_at)
     select id, $2, event_id, now(), now() from d`,
    [tenantId, endpointId, RECORDS],
  );
  await pool.query(
    `with oldest as (delete from relay.queue where delivery_id = (select delivery_id from relay.queue order by 1 limit 1) returning *)
     update relay.deliveries d set status = 'dead', dead_reason = 'gone', finished_at = now() from oldest o where d.id = o.delivery_id`,
  );
  await pool.query(
    `insert into relay.queue (delivery_id, endpoint_id, event_id, due_at, look_at)
     select gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), now(), now() from generate_series(1, 200000 - $1::integer)`,
    [RECORDS],
  );
}

describe('on young tables that nobody has analysed', () => {
  it('every search reaches its rows by index conditions', async () => {
    const stage = await givenStage(500);
    expect(await faultsOfEach(stage)).toEqual([]);
    await leave(stage);
  });
});

// What a planner makes of a queue that was empty when it was looked at: see the plans of the hot statements.
describe('on a queue of 200,000 that was analysed empty', () => {
  let stage: Stage;

  beforeAll(async () => {
    stage = await givenStage(1);
    const writer = createPool({
      url: stage.database.url,
      purpose: 'migrate',
      max: 1,
      applicationName: 'test',
    });
    await writer.query('delete from relay.queue');
    await writer.query('analyze relay.queue');
    await givenRecords(writer, stage);
    await writer.end();
  }, 60_000);
  afterAll(() => leave(stage));

  it('every search reaches its rows by index conditions, and looks no further than its bound', async () => {
    expect(await faultsOfEach(stage)).toEqual([]);
  });

  it('a page begins where it is asked to, however much is newer', async () => {
    const { db, tenantId, endpointId, plans } = stage;
    const { rows } = await sql<{
      id: string;
    }>`select id from relay.deliveries order by id offset 2 limit 1`.execute(db);
    const before = rows[0]!.id;
    const deep = { before, limit: 1 };
    const lists: (() => Promise<unknown>)[] = [
      () => searchEndpointDeliveries(db, endpointId, { ...deep, filter: {} }),
      () => searchTenantDeliveries(db, tenantId, { ...deep, filter: {} }),
      () => searchEvents(db, tenantId, deep),
      // The records were accepted within the last seconds: a window of a millisecond has none of them.
      () => readEndpointStats(db, endpointId, 1),
      () => readTenantStats(db, tenantId, 1),
    ];
    for (const list of lists) {
      plans.length = 0;
      await list();
      expect(Math.max(...plans.map((plan) => plan.buffers))).toBeLessThan(60);
    }
  });

  it('a page of rare ones ends at its bound, and says where the next begins', async () => {
    const { db, tenantId, endpointId } = stage;
    const before = null;
    const filter = { status: 'dead' } as const;
    const lists: ((before: string | null) => Promise<SearchPage<{ id: string }>>)[] = [
      (from) => searchEndpointDeliveries(db, endpointId, { filter, before: from, limit: 10 }),
      (from) => searchTenantDeliveries(db, tenantId, { filter, before: from, limit: 10 }),
      (from) => searchEvents(db, tenantId, { type: 'user.made', before: from, limit: 10 }),
    ];
    for (const list of lists) {
      const first = await list(before);
      expect(first.items).toEqual([]);
      let pages = 1;
      let found: { id: string }[] = [];
      for (let { next } = first; next !== null; pages += 1) {
        const page = await list(next);
        found = [...found, ...page.items];
        next = page.next;
      }
      expect(found).toHaveLength(1);
      expect(pages).toBe(PAGES);
    }
  });
});
