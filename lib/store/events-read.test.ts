import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import { accept, givenEndpoint, givenTenant, newEvent } from '../../services/testing/given-queue.ts';
import { createDatabase, type Database } from './database.ts';
import { type Event, type EventSearch, searchEvents } from './events-read.ts';
import { createPool } from './pool.ts';
import type { SearchPage } from './search-page.ts';

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

/** Events of these types in a tenant of their own, oldest first, of which orders match an endpoint. */
async function givenEvents(types: string[]): Promise<{ tenantId: string; ids: string[] }> {
  const tenantId = await givenTenant(pool);
  await givenEndpoint(pool, { tenantId, patterns: ['order.*'] });
  const results = await accept(
    pool,
    types.map((type) => newEvent({ tenantId, type })),
  );
  return { tenantId, ids: results.map((result) => (result.kind === 'accepted' ? result.eventId : '')) };
}

async function all(tenantId: string, options: Partial<EventSearch>): Promise<string[]> {
  const ids: string[] = [];
  for (let before: string | null = null, pages = 0; pages < 100; pages++) {
    const page: SearchPage<Event> = await searchEvents(db, tenantId, { limit: 100, ...options, before });
    ids.push(...page.items.map((one) => one.id));
    before = page.next;
    if (before === null) return ids;
  }
  throw new Error('the list does not end');
}

describe("a tenant's events", () => {
  it('stand newest first, each once, over any page size, and none of another tenant', async () => {
    const { tenantId, ids } = await givenEvents(['order.a', 'user.b', 'order.c', 'order.a', 'user.e']);
    await givenEvents(['order.a', 'user.b']);
    for (const limit of [1, 2, 4, 5, 6]) expect(await all(tenantId, { limit })).toEqual(ids.toReversed());
  });

  it('can be narrowed by type, and to those that matched nothing', async () => {
    const { tenantId, ids } = await givenEvents(['order.a', 'user.b', 'order.c', 'orders', 'user.b']);
    const of = (...places: number[]) => places.map((place) => ids[place]).toReversed();
    for (const limit of [1, 100]) {
      expect(await all(tenantId, { limit, type: 'user.b' })).toEqual(of(1, 4));
      expect(await all(tenantId, { limit, type: 'order.*' })).toEqual(of(0, 2));
      expect(await all(tenantId, { limit, type: '*' })).toEqual(of(0, 1, 2, 3, 4));
      expect(await all(tenantId, { limit, unmatched: true })).toEqual(of(1, 3, 4));
      expect(await all(tenantId, { limit, unmatched: true, type: 'user.*' })).toEqual(of(1, 4));
    }
  });

  it('say how large their payload is and how many endpoints they match', async () => {
    const { tenantId } = await givenEvents(['order.a', 'user.b']);
    const { items } = await searchEvents(db, tenantId, { before: null, limit: 10 });
    expect(items.map(({ type, matched, payloadBytes }) => [type, matched, payloadBytes])).toEqual([
      ['user.b', 0, 7],
      ['order.a', 1, 7],
    ]);
  });

  it('can be narrowed to a range of time, by the moment in their ids', async () => {
    const { tenantId, ids } = await givenEvents(['order.a']);
    const accepted = new Date(Number.parseInt(ids[0]!.replace('-', '').slice(0, 12), 16));
    const later = new Date(accepted.getTime() + 1);
    expect(await all(tenantId, { from: accepted, to: later })).toEqual(ids);
    expect(await all(tenantId, { from: later })).toEqual([]);
    expect(await all(tenantId, { to: accepted })).toEqual([]);
  });
});
