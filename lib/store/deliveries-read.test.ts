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
  acceptedIds,
  givenEndpoint as givenSubscriber,
  givenTenant,
  newEvent,
} from '../../services/testing/given-queue.ts';
import { DEFAULT_TENANT_ID } from '../domain/limits.ts';
import { createDatabase, type Database } from './database.ts';
import { countEventDeliveries, findDelivery, listAttempts, listEventDeliveries } from './deliveries-read.ts';
import { findEvent, findPayload } from './events-read.ts';
import { createPool } from './pool.ts';
import { createTenant } from './tenants.ts';

let database: TestDatabase;
let pool: pg.Pool;
let db: Database;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'search', max: 4, applicationName: 'test' });
  db = createDatabase(pool);
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

const givenEndpoint = (tenantId = DEFAULT_TENANT_ID) => givenSubscriber(pool, { tenantId });

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
    expect(await findPayload(db, DEFAULT_TENANT_ID, eventId)).toEqual({
      contentType: 'application/json',
      payload: Buffer.from('{"a":1}'),
    });
    expect(await findPayload(db, other.id, eventId)).toBeNull();
    const deliveries = await listEventDeliveries(db, { eventId }, { after: null, limit: 10 });
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

describe("an event's deliveries", () => {
  it('are listed in order and counted by status, all of them or those to some endpoints', async () => {
    const tenantId = await givenTenant(pool);
    const endpoints = [];
    for (let n = 0; n < 5; n++) endpoints.push(await givenEndpoint(tenantId));
    const [result] = await accept(pool, [newEvent({ tenantId })]);
    const ids = acceptedIds(result);
    expect(ids).toHaveLength(5);
    const eventId = `${ids[0]!.slice(0, 32)}0000`;
    await givenClaim(pool, ids[0]!);
    await givenSucceeded(pool, ids[1]!);
    await givenDead(pool, ids[2]!);
    expect(await countEventDeliveries(db, { eventId })).toEqual({
      counts: { pending: 2, inflight: 1, succeeded: 1, dead: 1 },
      capped: false,
    });
    const all = await listEventDeliveries(db, { eventId }, { after: null, limit: 10 });
    expect(all.map(({ id, status }) => [id, status])).toEqual([
      [ids[0], 'inflight'],
      [ids[1], 'succeeded'],
      [ids[2], 'dead'],
      [ids[3], 'pending'],
      [ids[4], 'pending'],
    ]);
    const rest = await listEventDeliveries(db, { eventId }, { after: ids[2]!, limit: 1 });
    expect(rest.map((one) => one.id)).toEqual([ids[3]]);

    const some = { eventId, endpointIds: [all[1]!.endpointId, all[4]!.endpointId, endpoints[0]!] };
    const seen = await listEventDeliveries(db, some, { after: null, limit: 10 });
    expect(new Set(seen.map((one) => one.endpointId))).toEqual(new Set(some.endpointIds));
    const { counts } = await countEventDeliveries(db, some);
    expect(Object.values(counts).reduce((sum, n) => sum + n)).toBe(seen.length);
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
