import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import { givenDead, givenDelivery } from '../../services/testing/given-deliveries.ts';
import { DEFAULT_TENANT_ID } from '../domain/limits.ts';
import { createDatabase, type Database } from './database.ts';
import {
  type DeadLetter,
  type DeadLetterCursor,
  type DeadLetterFilter,
  deadLettersQuery,
  listDeadLetters,
  selectDeadLetters,
} from './dead-letters.ts';
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

async function givenEndpoint(tenantId: string): Promise<string> {
  const { rows } = await pool.query(
    `insert into relay.endpoints (tenant_id, url, secret) values ($1, 'https://sink.example.test/in', '\\x00') returning id`,
    [tenantId],
  );
  return rows[0].id;
}

async function all(tenantId: string, filter: DeadLetterFilter, limit: number): Promise<DeadLetter[]> {
  const seen: DeadLetter[] = [];
  let before: DeadLetterCursor | null = null;
  do {
    const page = await listDeadLetters(db, tenantId, { filter, before, limit });
    seen.push(...page.letters);
    before = page.next;
  } while (before !== null);
  return seen;
}

const ids = (letters: readonly DeadLetter[]) => letters.map((letter) => letter.deliveryId);

describe("a tenant's dead letters", () => {
  it('are listed newest first with what is needed to judge them', async () => {
    const tenant = await createTenant(db, { name: 'one' });
    const endpointId = await givenEndpoint(tenant.id);
    const dead: string[] = [];
    for (const type of ['order.paid', 'order.lost']) {
      const { deliveryId } = await givenDelivery(pool, { endpointId, tenantId: tenant.id, type });
      await givenDead(pool, deliveryId);
      dead.push(deliveryId);
    }
    const { letters, next } = await listDeadLetters(db, tenant.id, { filter: {}, before: null, limit: 10 });
    expect(next).toBeNull();
    expect(ids(letters)).toEqual(dead.toReversed());
    expect(Object.keys(letters[0]!).sort()).toEqual(
      [
        ...['attempts', 'createdAt', 'deliveryId', 'diedAt', 'endpointId', 'eventId', 'eventType'],
        ...['generation', 'lastClass', 'lastError', 'lastHttpStatus', 'reason', 'url'],
      ].sort(),
    );
    expect(letters[0]).toMatchObject({
      eventType: 'order.lost',
      url: 'https://sink.example.test/in',
      attempts: 1,
      generation: 1,
      reason: 'permanent_failure',
      lastHttpStatus: 404,
    });
  });

  it('are passed through once by pages of any size, also when many died in one moment', async () => {
    const tenant = await createTenant(db, { name: 'many' });
    await givenDeadLetters(tenant.id, 9, `now() - (n / 4) * interval '1 us'`);
    const expected = ids(await all(tenant.id, {}, 100));
    expect(new Set(expected).size).toBe(9);
    for (const limit of [1, 2, 4, 9]) expect(ids(await all(tenant.id, {}, limit))).toEqual(expected);
  });

  it('can be narrowed by endpoint, reason, event type and time, and combinations', async () => {
    const tenant = await createTenant(db, { name: 'narrow' });
    const made: { id: string; endpointId: string; type: string; reason: 'gone' | 'expired'; at: Date }[] = [];
    for (const [n, endpointId] of [
      await givenEndpoint(tenant.id),
      await givenEndpoint(tenant.id),
    ].entries()) {
      for (const type of ['a.one', 'a.two']) {
        for (const reason of ['gone', 'expired'] as const) {
          const { deliveryId } = await givenDelivery(pool, { endpointId, tenantId: tenant.id, type });
          await givenDead(pool, deliveryId, reason);
          const at = new Date(Date.UTC(2026, 0, 1 + made.length + n));
          await pool.query('update relay.dead_letters set died_at = $2 where delivery_id = $1', [
            deliveryId,
            at,
          ]);
          made.push({ id: deliveryId, endpointId, type, reason, at });
        }
      }
    }
    const from = made[2]!.at;
    const to = made[6]!.at;
    for (const endpointId of [null, made[0]!.endpointId]) {
      for (const reason of [null, 'gone'] as const) {
        for (const eventType of [null, 'a.two']) {
          for (const range of [{}, { from }, { to }, { from, to }]) {
            const expected = made.filter(
              (one) =>
                (!endpointId || one.endpointId === endpointId) &&
                (!reason || one.reason === reason) &&
                (!eventType || one.type === eventType) &&
                (!('from' in range) || one.at >= from) &&
                (!('to' in range) || one.at < to),
            );
            const filter = { endpointId, reason, eventType, ...range };
            expect(ids(await all(tenant.id, filter, 2))).toEqual(expected.map((one) => one.id).toReversed());
            const oldestFirst = await selectDeadLetters(db, tenant.id, { filter, limit: 3 });
            expect(oldestFirst).toEqual(expected.slice(0, 3).map((one) => one.id));
          }
        }
      }
    }
  });

  it('are nobody else’s', async () => {
    const other = await createTenant(db, { name: 'stranger' });
    expect(await all(other.id, {}, 10)).toEqual([]);
    expect(await selectDeadLetters(db, other.id, { filter: {}, limit: 10 })).toEqual([]);
  });
});

async function givenDeadLetters(tenantId: string, count: number, diedAt: string): Promise<string> {
  const endpointId = await givenEndpoint(tenantId);
  await pool.query(
    `with d as (
       insert into relay.deliveries (id, event_id, endpoint_id, tenant_id, status, finished_at, dead_reason)
       select gen_random_uuid(), gen_random_uuid(), $1, $2, 'dead', now(), 'gone' from generate_series(1, $3::integer)
       returning id, event_id, endpoint_id, tenant_id
     ), numbered as (select d.*, row_number() over () as n from d)
     insert into relay.dead_letters (delivery_id, endpoint_id, event_id, tenant_id, reason, died_at)
     select id, endpoint_id, event_id, tenant_id, case when n = 1 then 'expired' else 'gone' end, ${diedAt} from numbered`,
    [endpointId, tenantId, count],
  );
  return endpointId;
}

describe('dead letters in a large table', () => {
  it('are paged by index, and a rare reason is looked for in bounded steps', async () => {
    const tenant = await createTenant(db, { name: 'large' });
    await givenDeadLetters(DEFAULT_TENANT_ID, 20_000, `now() - n * interval '1 ms'`);
    const endpointId = await givenDeadLetters(tenant.id, 30_000, `now() - (100000 - n) * interval '1 ms'`);
    await pool.query('analyze relay.dead_letters, relay.deliveries, relay.events, relay.endpoints');

    for (const filter of [{}, { endpointId }, { reason: 'expired' as const }]) {
      const { sql, parameters } = deadLettersQuery(tenant.id, { filter, before: null, limit: 100 }).compile(
        db,
      );
      const { rows } = await pool.query(`explain (analyze, buffers, format json) ${sql}`, [...parameters]);
      const [{ Plan }] = rows[0]['QUERY PLAN'];
      const text = JSON.stringify(Plan);
      expect(text).toContain('endpointId' in filter ? 'dead_letters_endpoint' : 'dead_letters_tenant');
      expect(text).not.toMatch(/"Seq Scan"[^}]*"Relation Name":"(dead_letters|deliveries)"/);
      if (!('reason' in filter)) {
        expect(Plan['Shared Hit Blocks'] + Plan['Shared Read Blocks']).toBeLessThan(1_500);
      }
    }

    const page = await listDeadLetters(db, tenant.id, {
      filter: { reason: 'expired' },
      before: null,
      limit: 100,
    });
    expect(page.letters).toEqual([]);
    expect(page.next).not.toBeNull();
    expect(await all(tenant.id, { reason: 'expired' }, 100)).toHaveLength(1);
  });
});
