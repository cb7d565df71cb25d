import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import {
  givenClaim,
  givenDead,
  givenDelivery,
  givenSucceeded,
} from '../../services/testing/given-deliveries.ts';
import {
  accept,
  givenClaimed,
  givenEndpoint,
  givenTenant,
  keepOne,
  newEvent,
  retry,
} from '../../services/testing/given-queue.ts';
import { createDatabase, type Database } from './database.ts';
import { createPool } from './pool.ts';
import { firstIdAt } from './search-page.ts';
import { readEndpointStats, readTenantStats, STATS_DELIVERIES } from './stats.ts';

const HOUR = 3_600_000;

let database: TestDatabase;
let pool: pg.Pool;
let db: Database;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'search', max: 2, applicationName: 'test' });
  db = createDatabase(pool);
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

async function givenLists() {
  const tenantId = await givenTenant(pool);
  const endpointId = await givenEndpoint(pool, { tenantId, patterns: ['nothing.else'] });
  const make = async () => (await givenDelivery(pool, { tenantId, endpointId })).deliveryId;
  const stats = () =>
    Promise.all([readEndpointStats(db, endpointId, HOUR), readTenantStats(db, tenantId, HOUR)]);
  return { tenantId, endpointId, make, stats };
}

/** A finished delivery that was accepted so long ago, with one attempt. */
async function givenOld(of: { tenantId: string; endpointId: string }, agoMs: number): Promise<void> {
  const id = `${firstIdAt(new Date(Date.now() - agoMs)).slice(0, 32)}0001`;
  await pool.query(
    `with e as (
       insert into relay.events (id, tenant_id, type, content_type, payload, matched)
       values ((left($1::text, 32) || '0000')::uuid, $3, 'order.paid', 'text/plain', '', 1)
     ),
     a as (
       insert into relay.delivery_attempts (delivery_id, at, seq, attempt, generation, class, duration_ms)
       values ($1::uuid, now() - $4::integer * interval '1 ms', 1, 1, 1, 'success', 1)
     )
     insert into relay.deliveries (id, event_id, endpoint_id, tenant_id, created_at, finished_at, status)
     select $1::uuid, (left($1::text, 32) || '0000')::uuid, $2, $3, m.at, m.at, 'succeeded'
     from (select now() - $4::integer * interval '1 ms' as at) m`,
    [id, of.endpointId, of.tenantId, agoMs],
  );
}

describe('statistics', () => {
  it('count deliveries by status and their attempts by outcome, of an endpoint and of its tenant', async () => {
    const { tenantId, make, stats } = await givenLists();
    await make();
    await givenClaim(pool, await make());
    const retried = await make();
    await keepOne(pool, retry(await givenClaimed(pool, retried), 0, { durationMs: 112, latenessMs: 3 }));
    await givenSucceeded(pool, retried);
    await givenDead(pool, await make());
    await accept(pool, [newEvent({ tenantId, type: 'user.made' })]);
    for (const read of await stats()) {
      expect(read).toMatchObject({
        deliveries: { pending: 1, inflight: 1, succeeded: 1, dead: 1 },
        attempts: { success: 1, retryable: 1, permanent: 1, deferred: 0, lost: 0 },
        duration: { p50: 12, p95: 102 },
        lateness: { p50: 1, p95: 3 },
        truncated: false,
      });
      expect(read.to.getTime() - read.from.getTime()).toBe(HOUR);
    }
  });

  it('are empty, without percentiles, where nothing happened', async () => {
    const { stats } = await givenLists();
    for (const read of await stats()) {
      expect(read).toMatchObject({
        deliveries: { pending: 0, inflight: 0, succeeded: 0, dead: 0 },
        attempts: { success: 0, retryable: 0, permanent: 0, deferred: 0, lost: 0 },
        duration: { p50: null, p95: null },
        lateness: { p50: null, p95: null },
        truncated: false,
      });
    }
  });

  it('leave out what was accepted before the window, and what is of others', async () => {
    const lists = await givenLists();
    await givenOld(lists, HOUR - 60_000);
    await givenOld(lists, HOUR + 60_000);
    const others = await givenLists();
    await givenSucceeded(pool, await others.make());
    for (const read of await lists.stats()) {
      expect(read.deliveries).toMatchObject({ succeeded: 1 });
      expect(read.attempts).toMatchObject({ success: 1 });
    }
  });

  it('say so, and since when they hold, when there is more than is looked at', async () => {
    const lists = await givenLists();
    const { rows } = await pool.query<{ first: Date; second: Date }>(
      `with moment as (select extract(epoch from now()) * 1000 - 60000 as ms),
       e as (
         insert into relay.events (id, tenant_id, type, content_type, payload, matched)
         select (lpad(to_hex(m.ms::bigint + n / 1000), 12, '0') || '70008000' || lpad(to_hex(n), 8, '0') || '0000')::uuid, $1,
           'order.paid', 'text/plain', '', 1
         from generate_series(1, $3::integer) n, moment m
         returning id
       ),
       d as (
         insert into relay.deliveries (id, event_id, endpoint_id, tenant_id, created_at, finished_at, status)
         select (left(id::text, 32) || '0001')::uuid, id, $2, $1, now() - interval '2 minutes' + row_number() over (order by id) * interval '1 ms',
           now(), 'succeeded'
         from e
         returning created_at
       )
       select min(created_at) as first from d`,
      [lists.tenantId, lists.endpointId, STATS_DELIVERIES + 1],
    );
    const oldest = rows[0]!.first.getTime() + 1;
    for (const read of await lists.stats()) {
      expect(read.deliveries.succeeded).toBe(STATS_DELIVERIES);
      expect(read.truncated).toBe(true);
      expect(Math.abs(read.from.getTime() - oldest)).toBeLessThanOrEqual(1);
    }
  });
});
