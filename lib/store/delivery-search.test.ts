import { randomUUID } from 'node:crypto';
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
  givenEndpoint,
  givenTenant,
  newEvent,
} from '../../services/testing/given-queue.ts';
import { DEFAULT_TENANT_ID } from '../domain/limits.ts';
import type { ShownStatus } from '../domain/vocabulary.ts';
import { createDatabase, type Database } from './database.ts';
import type { Delivery } from './deliveries-read.ts';
import { type DeliveryFilter, searchEndpointDeliveries, searchTenantDeliveries } from './delivery-search.ts';
import { createPool } from './pool.ts';
import { firstIdAt, type SearchPage } from './search-page.ts';

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

type Search = Parameters<typeof searchTenantDeliveries>[2];
const search = (options: Partial<Search> = {}): Search => ({
  filter: {},
  before: null,
  limit: 100,
  ...options,
});

/** The two lists that deliveries stand in, with an endpoint and a tenant of their own. */
async function givenLists() {
  const tenantId = await givenTenant(pool);
  const endpointId = await givenEndpoint(pool, { tenantId, patterns: ['nothing.else'] });
  const make = async (type = 'order.paid') =>
    (await givenDelivery(pool, { tenantId, endpointId, type })).deliveryId;
  return {
    make,
    lists: [
      (options: Partial<Search>) => searchEndpointDeliveries(db, endpointId, search(options)),
      (options: Partial<Search>) => searchTenantDeliveries(db, tenantId, search(options)),
    ],
  };
}

/** Every page of a list. */
async function all(
  list: (options: Partial<Search>) => Promise<SearchPage<Delivery>>,
  options: Partial<Search>,
): Promise<string[]> {
  const ids: string[] = [];
  for (let before: string | null = null, pages = 0; pages < 100; pages++) {
    const page: SearchPage<Delivery> = await list({ ...options, before });
    expect(page.items.length).toBeLessThanOrEqual(options.limit ?? 100);
    ids.push(...page.items.map((one) => one.id));
    before = page.next;
    if (before === null) return ids;
  }
  throw new Error('the list does not end');
}

describe('a list of deliveries', () => {
  it('shows each once, newest first, over any page size, while new ones arrive', async () => {
    const { make, lists } = await givenLists();
    const made: string[] = [];
    for (let n = 0; n < 7; n++) made.push(await make());
    for (const list of lists) {
      for (const limit of [1, 2, 3, 7, 8]) expect(await all(list, { limit })).toEqual(made.toReversed());
      const first = await list({ limit: 3 });
      await make();
      const second = await list({ before: first.next });
      expect([...first.items, ...second.items].map((one) => one.id)).toEqual(made.toReversed());
      expect(second.next).toBeNull();
      made.push((await list({ limit: 1 })).items[0]!.id);
    }
  });

  it('goes on inside an event that goes to many, past events that go to nobody', async () => {
    const tenantId = await givenTenant(pool);
    for (let n = 0; n < 5; n++) await givenEndpoint(pool, { tenantId, patterns: ['order.*'] });
    const events = ['order.a', 'nothing.b', 'order.c', 'nothing.d'].map((type) =>
      newEvent({ tenantId, type }),
    );
    const made = (await accept(pool, events)).flatMap(acceptedIds);
    expect(made).toHaveLength(10);
    const list = (options: Partial<Search>) => searchTenantDeliveries(db, tenantId, search(options));
    for (const limit of [1, 3, 4, 5, 9, 10, 11]) {
      expect(await all(list, { limit })).toEqual(made.toSorted().toReversed());
    }
  });

  it('can be narrowed to each status that people are shown', async () => {
    const { make, lists } = await givenLists();
    const expected: Record<ShownStatus, string[]> = {
      pending: [await make(), await make()],
      inflight: [await make()],
      succeeded: [await make()],
      dead: [await make()],
    };
    await givenClaim(pool, expected.inflight[0]!);
    await givenSucceeded(pool, expected.succeeded[0]!);
    await givenDead(pool, expected.dead[0]!);
    for (const list of lists) {
      for (const [status, ids] of Object.entries(expected)) {
        const filter = { status: status as ShownStatus };
        expect(await all(list, { filter, limit: 1 })).toEqual(ids.toReversed());
        expect((await list({ filter })).items.every((one) => one.status === status)).toBe(true);
      }
    }
  });

  it('shows a delivery whose lease has ended as pending, and no moment for what waits without one', async () => {
    const { make, lists } = await givenLists();
    const id = await make();
    await givenClaim(pool, id);
    await pool.query(
      `update relay.queue set lease_expires_at = now() - interval '1 s', due_at = 'infinity' where delivery_id = $1`,
      [id],
    );
    for (const list of lists) {
      expect(await all(list, { filter: { status: 'inflight' } })).toEqual([]);
      expect(await all(list, { filter: { status: 'pending' } })).toEqual([id]);
      expect((await list({})).items[0]).toMatchObject({ status: 'pending', nextAttemptAt: null });
    }
  });

  it.each<[string, DeliveryFilter, number[]]>([
    ['an exact type', { eventType: 'order.paid' }, [0, 3]],
    ['a prefix', { eventType: 'order.*' }, [0, 1, 3]],
    ['everything', { eventType: '*' }, [0, 1, 2, 3]],
    ['a type whose underscore is no wildcard', { eventType: 'order_paid' }, []],
    ['a reason', { reason: 'gone' }, [1]],
    ['a reason and a type', { reason: 'gone', eventType: 'user.made' }, []],
    ['a status and a type', { status: 'pending', eventType: 'order.*' }, [0, 3]],
  ])('can be narrowed to %s', async (_, filter, places) => {
    const { make, lists } = await givenLists();
    const made: string[] = [];
    for (const type of ['order.paid', 'order.void', 'user.made', 'order.paid']) made.push(await make(type));
    await givenDead(pool, made[1]!, 'gone');
    const expected = places.map((place) => made[place]!).toReversed();
    for (const list of lists) {
      expect(await all(list, { filter })).toEqual(expected);
      expect(await all(list, { filter, limit: 1 })).toEqual(expected);
    }
  });

  it('can be narrowed to a range of time: from a moment on, up to another', async () => {
    const tenantId = await givenTenant(pool);
    const endpointId = await givenEndpoint(pool, { tenantId });
    const at = (second: number) => new Date(Date.UTC(2026, 0, 1, 0, 0, second));
    const ids = [1, 2, 3].map((second) => `${firstIdAt(at(second)).slice(0, 32)}0001`);
    for (const id of ids) await givenRecorded({ id, endpointId, tenantId });
    for (const list of [
      (options: Partial<Search>) => searchEndpointDeliveries(db, endpointId, search(options)),
      (options: Partial<Search>) => searchTenantDeliveries(db, tenantId, search(options)),
    ]) {
      expect(await all(list, { from: at(2) })).toEqual([ids[2], ids[1]]);
      expect(await all(list, { to: at(2) })).toEqual([ids[0]]);
      expect(await all(list, { from: at(2), to: at(3) })).toEqual([ids[1]]);
      expect(await all(list, { from: at(3), to: at(2) })).toEqual([]);
      expect(await all(list, { from: at(1), to: at(3), limit: 1 })).toEqual([ids[1], ids[0]]);
      expect(await all(list, { from: new Date(-8.64e15), to: new Date(8.64e15) })).toHaveLength(3);
    }
  });

  it("holds nothing of another tenant's or endpoint's", async () => {
    const { make, lists } = await givenLists();
    const id = await make();
    const other = await givenLists();
    await other.make();
    await givenDelivery(pool, { endpointId: await givenEndpoint(pool), tenantId: DEFAULT_TENANT_ID });
    for (const list of lists) expect(await all(list, {})).toEqual([id]);
  });
});

/** An event with one finished delivery, both as records alone. */
async function givenRecorded(of: { id: string; endpointId: string; tenantId: string }): Promise<void> {
  await pool.query(
    `with e as (
       insert into relay.events (id, tenant_id, type, content_type, payload)
       values ((left($1::text, 32) || '0000')::uuid, $3, 'order.paid', 'text/plain', '') returning id
     )
     insert into relay.deliveries (id, event_id, endpoint_id, tenant_id, status, finished_at)
     select $1::uuid, id, $2, $3, 'succeeded', now() from e`,
    [of.id, of.endpointId, of.tenantId],
  );
}

describe('an id bound', () => {
  it('stays an id for moments that no id can be made at', () => {
    expect(firstIdAt(new Date(-1))).toBe('00000000-0000-0000-0000-000000000000');
    expect(firstIdAt(new Date(8.64e15))).toBe('ffffffff-ffff-0000-0000-000000000000');
    const now = new Date();
    expect(firstIdAt(now) < randomUUID().replace(/^.{13}/, firstIdAt(now).slice(0, 13))).toBe(true);
  });
});
