import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import {
  givenClaim,
  givenDead,
  givenDelivery,
  givenSucceeded,
} from '../../services/testing/given-deliveries.ts';
import { DEFAULT_TENANT_ID } from '../domain/limits.ts';
import type { ShownStatus } from '../domain/vocabulary.ts';
import { createDatabase, type Database } from './database.ts';
import {
  type Delivery,
  filteredHistoryQuery,
  findDelivery,
  HISTORY_SCAN_ROWS,
  historyQuery,
  listAttempts,
  listEndpointDeliveries,
  listEventDeliveries,
} from './deliveries-read.ts';
import { findEvent } from './events-read.ts';
import { createPool } from './pool.ts';
import { createTenant } from './tenants.ts';

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

async function givenEndpoint(): Promise<string> {
  const { rows } = await pool.query(
    `insert into relay.endpoints (tenant_id, url, secret) values ($1, 'https://sink.example.test/in', '\\x00') returning id`,
    [DEFAULT_TENANT_ID],
  );
  return rows[0].id;
}

async function history(endpointId: string, status: ShownStatus | null, limit: number): Promise<Delivery[]> {
  const all: Delivery[] = [];
  let before: string | null = null;
  do {
    const page = await listEndpointDeliveries(db, endpointId, { status, before, limit });
    expect(page.deliveries.length).toBeLessThanOrEqual(limit);
    all.push(...page.deliveries);
    before = page.next;
  } while (before !== null);
  return all;
}

describe("an endpoint's history", () => {
  it('shows each delivery once, newest first, over any page size, while new ones arrive', async () => {
    const endpointId = await givenEndpoint();
    const made: string[] = [];
    for (let n = 0; n < 7; n++) made.push((await givenDelivery(pool, { endpointId })).deliveryId);
    for (const limit of [1, 2, 3, 7, 8]) {
      const seen = (await history(endpointId, null, limit)).map((delivery) => delivery.id);
      expect(seen).toEqual(made.toReversed());
    }
    const first = await listEndpointDeliveries(db, endpointId, { status: null, before: null, limit: 3 });
    await givenDelivery(pool, { endpointId });
    const second = await listEndpointDeliveries(db, endpointId, {
      status: null,
      before: first.next,
      limit: 10,
    });
    expect([...first.deliveries, ...second.deliveries].map((one) => one.id)).toEqual(made.toReversed());
    expect(second.next).toBeNull();
  });

  it('can be narrowed to each status that people are shown', async () => {
    const endpointId = await givenEndpoint();
    const make = async () => (await givenDelivery(pool, { endpointId })).deliveryId;
    const expected: Record<ShownStatus, string[]> = {
      pending: [await make(), await make()],
      inflight: [await make()],
      succeeded: [await make()],
      dead: [await make()],
    };
    await givenClaim(pool, expected.inflight[0]!);
    await givenSucceeded(pool, expected.succeeded[0]!);
    await givenDead(pool, expected.dead[0]!);
    for (const [status, ids] of Object.entries(expected)) {
      const seen = await history(endpointId, status as ShownStatus, 1);
      expect(seen.map((one) => one.id)).toEqual(ids.toReversed());
      expect(seen.every((one) => one.status === status)).toBe(true);
    }
  });

  it('shows a delivery whose lease has ended as pending', async () => {
    const endpointId = await givenEndpoint();
    const { deliveryId } = await givenDelivery(pool, { endpointId });
    await givenClaim(pool, deliveryId);
    await pool.query(
      `update relay.queue set lease_expires_at = now() - interval '1 s' where delivery_id = $1`,
      [deliveryId],
    );
    expect(await history(endpointId, 'inflight', 10)).toEqual([]);
    expect((await history(endpointId, 'pending', 10)).map((one) => one.id)).toEqual([deliveryId]);
  });

  it('does not show a moment for what waits without one', async () => {
    const endpointId = await givenEndpoint();
    const { deliveryId } = await givenDelivery(pool, { endpointId });
    await pool.query(`update relay.queue set due_at = 'infinity' where delivery_id = $1`, [deliveryId]);
    expect((await findDelivery(db, DEFAULT_TENANT_ID, deliveryId))!.nextAttemptAt).toBeNull();
  });
});

describe('a delivery', () => {
  it('is not found for another tenant, and neither is its event', async () => {
    const endpointId = await givenEndpoint();
    const { deliveryId, eventId } = await givenDelivery(pool, { endpointId });
    const other = await createTenant(db, { name: 'other' });
    expect(await findDelivery(db, DEFAULT_TENANT_ID, deliveryId)).toMatchObject({ id: deliveryId, eventId });
    expect(await findDelivery(db, other.id, deliveryId)).toBeNull();
    expect(await findEvent(db, DEFAULT_TENANT_ID, eventId)).toMatchObject({
      id: eventId,
      type: 'order.paid',
      payloadBytes: 7,
    });
    expect(await findEvent(db, other.id, eventId)).toBeNull();
    const deliveries = await listEventDeliveries(db, eventId, { after: null, limit: 10 });
    expect(deliveries.map((one) => one.id)).toEqual([deliveryId]);
  });

  it('has its counters from the queue while it is owed, and from the record afterwards', async () => {
    const endpointId = await givenEndpoint();
    const { deliveryId } = await givenDelivery(pool, { endpointId });
    await pool.query(`update relay.queue set attempts = 3, sends = 4 where delivery_id = $1`, [deliveryId]);
    expect(await findDelivery(db, DEFAULT_TENANT_ID, deliveryId)).toMatchObject({ attempts: 3, sends: 4 });
    await givenSucceeded(pool, deliveryId);
    expect(await findDelivery(db, DEFAULT_TENANT_ID, deliveryId)).toMatchObject({ attempts: 4, sends: 5 });
  });
});

describe("a delivery's log", () => {
  it('is in order, newest rows kept, and says when older ones were left out', async () => {
    const endpointId = await givenEndpoint();
    const { deliveryId } = await givenDelivery(pool, { endpointId });
    await pool.query(
      `insert into relay.delivery_attempts (delivery_id, seq, attempt, generation, class, next_attempt_at)
       select $1, n, n, 1, 'retryable', 'infinity' from generate_series(1, 6) n`,
      [deliveryId],
    );
    const delivery = (await findDelivery(db, DEFAULT_TENANT_ID, deliveryId))!;
    const all = await listAttempts(db, delivery, 6);
    expect(all.attempts.map((attempt) => attempt.seq)).toEqual([1, 2, 3, 4, 5, 6]);
    expect(all.attempts[0]!.nextAttemptAt).toBeNull();
    expect(all.truncated).toBe(false);
    const some = await listAttempts(db, delivery, 2);
    expect(some.attempts.map((attempt) => attempt.seq)).toEqual([5, 6]);
    expect(some.truncated).toBe(true);
  });
});

describe('history on a large table', () => {
  const LARGE = 50_000;
  let busy: string;

  beforeAll(async () => {
    busy = await givenEndpoint();
    const quiet = await givenEndpoint();
    // Every 100th belongs to the quiet endpoint; the newest of the busy one's are pending, and one old one is dead.
    await pool.query(
      `insert into relay.deliveries (id, event_id, endpoint_id, tenant_id, status, finished_at, dead_reason)
       select lpad(to_hex(n), 32, '0')::uuid, lpad(to_hex(n), 32, '0')::uuid,
         (case when n % 100 = 0 then $2 else $1 end)::uuid, $3,
         case when n = 5 then 'dead' when n > $4 - 2000 then 'pending' else 'succeeded' end,
         case when n <= $4 - 2000 then now() end, case when n = 5 then 'gone' end
       from generate_series(1, $4::integer) n`,
      [busy, quiet, DEFAULT_TENANT_ID, LARGE],
    );
    await pool.query(
      `insert into relay.queue (delivery_id, endpoint_id, event_id, due_at, look_at)
       select id, endpoint_id, event_id, now(), now() from relay.deliveries
       where status = 'pending' and id < '00000000-0000-0000-0000-000000100000'`,
    );
    await pool.query('analyze relay.deliveries, relay.queue');
  });

  async function plan(query: ReturnType<typeof historyQuery> | ReturnType<typeof filteredHistoryQuery>) {
    const { sql, parameters } = query.compile(db);
    const { rows } = await pool.query(`explain (analyze, buffers, format json) ${sql}`, [...parameters]);
    const [{ Plan }] = rows[0]['QUERY PLAN'];
    return { text: JSON.stringify(Plan), buffers: Plan['Shared Hit Blocks'] + Plan['Shared Read Blocks'] };
  }

  it('reads a page by the index of endpoint and id, and no more than the page', async () => {
    for (const before of ['ffffffff-ffff-ffff-ffff-ffffffffffff', '00000000-0000-0000-0000-000000005000']) {
      const { text, buffers } = await plan(historyQuery(busy, before, 101));
      expect(text).toContain('deliveries_endpoint');
      expect(text).not.toContain('Seq Scan');
      expect(buffers).toBeLessThan(1_500);
    }
  });

  it('looks no further than its bound for a rare status, and finds it page by page', async () => {
    const { text } = await plan(
      filteredHistoryQuery(busy, 'ffffffff-ffff-ffff-ffff-ffffffffffff', { status: 'dead', limit: 100 }),
    );
    expect(text).toContain('deliveries_endpoint');
    const first = await listEndpointDeliveries(db, busy, { status: 'dead', before: null, limit: 100 });
    expect(first.deliveries).toEqual([]);
    expect(first.next).not.toBeNull();
    let pages = 1;
    let found: Delivery[] = [];
    for (let before = first.next; before !== null && found.length === 0; pages++) {
      const page = await listEndpointDeliveries(db, busy, { status: 'dead', before, limit: 100 });
      found = page.deliveries;
      before = page.next;
    }
    expect(found).toHaveLength(1);
    expect(pages).toBe(Math.ceil((LARGE * 0.99) / HISTORY_SCAN_ROWS));
  });

  it('finds what is common in one page', async () => {
    for (const status of ['pending', 'succeeded'] as const) {
      const page = await listEndpointDeliveries(db, busy, { status, before: null, limit: 100 });
      expect(page.deliveries).toHaveLength(100);
      expect(page.next).toBe(page.deliveries.at(-1)!.id);
    }
  });
});
