import { createHash, randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import {
  accept,
  acceptedIds,
  acceptKeyed,
  givenEndpoint,
  givenOne,
  givenOwed,
  givenTenant,
  keyedEvent,
  newEvent,
} from '../../services/testing/given-queue.ts';
import { queueRow } from '../../services/testing/stored-rows.ts';
import { claimByIds } from './claims.ts';
import { firstAnswersOf, unannounce } from './ingest.ts';
import { createPool } from './pool.ts';

let database: TestDatabase;
let pool: pg.Pool;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'ingest', max: 4, applicationName: 'test' });
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

async function endpointsOf(ids: readonly string[]): Promise<string[]> {
  const { rows } = await pool.query<{ endpoint_id: string }>(
    'select endpoint_id from relay.deliveries where id = any($1::uuid[])',
    [ids],
  );
  return rows.map((row) => row.endpoint_id).sort();
}

async function storedPayload(
  eventId: string,
): Promise<{ payload: Buffer; content_type: string; type: string }> {
  const { rows } = await pool.query('select payload, content_type, type from relay.events where id = $1', [
    eventId,
  ]);
  return rows[0];
}

const inMs = (ms: number) => new Date(Date.now() + ms);

describe('the ids of a batch', () => {
  it('are version 7 uuids on the database clock, rising in the order of the batch', async () => {
    await givenEndpoint(pool, { patterns: ['ids.*'] });
    const clock = async () =>
      (
        await pool.query<{ ms: number }>(
          'select (extract(epoch from clock_timestamp()) * 1000)::float8 as ms',
        )
      ).rows[0]!.ms;
    const before = Math.floor(await clock());
    const results = await accept(
      pool,
      Array.from({ length: 300 }, () => newEvent({ type: 'ids.one' })),
    );
    const after = await clock();
    const eventIds = results.map((result) => (result.kind === 'accepted' ? result.eventId : ''));
    for (const id of eventIds) {
      expect(id).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-8[0-9a-f]{3}-[0-9a-f]{8}0000$/);
      const minted = Number.parseInt(id.replaceAll('-', '').slice(0, 12), 16);
      expect(minted).toBeGreaterThanOrEqual(before);
      expect(minted).toBeLessThanOrEqual(after);
    }
    expect([...eventIds].sort()).toEqual(eventIds);
    expect(new Set(eventIds).size).toBe(300);
  });

  it("name an event's deliveries by a running tail, which is what is stored", async () => {
    for (let n = 0; n < 3; n += 1) await givenEndpoint(pool, { patterns: ['tails'] });
    const [result] = await accept(pool, [newEvent({ type: 'tails' })]);
    const ids = acceptedIds(result);
    expect(ids.map((id) => id.slice(-4))).toEqual(['0001', '0002', '0003']);
    if (result?.kind !== 'accepted') return;
    expect(ids.every((id) => id.slice(0, 32) === result.eventId.slice(0, 32))).toBe(true);
    const stored = await firstAnswersOf(pool, [result.eventId, randomUUID()]);
    expect(stored.get(result.eventId)).toEqual({ deliveryIds: ids, continuesTo: null });
    expect([...stored.values()].map((answer) => answer.deliveryIds.length)).toEqual([3, 0]);
  });
});

describe('fan-out', () => {
  it('meets exact types, prefixes and everything, each endpoint once, and nobody else', async () => {
    const tenantId = await givenTenant(pool);
    const own = (patterns: string[]) => givenEndpoint(pool, { tenantId, patterns });
    const exact = await own(['order.paid']);
    const prefix = await own(['order.*', 'other']);
    const every = await own(['*', 'order.paid']);
    await own(['order']);
    await own(['order.paid.late']);
    await own(['orders.*']);
    await givenEndpoint(pool, { tenantId, disabled: true });
    await givenEndpoint(pool, { tenantId, deleted: true });
    await givenEndpoint(pool); // of another tenant
    const [result] = await accept(pool, [newEvent({ tenantId })]);
    expect(await endpointsOf(acceptedIds(result))).toEqual([exact, prefix, every].sort());
  });

  it('takes every type that the grammar allows for what it is, words of SQL too', async () => {
    const endpoint = await givenEndpoint(pool, { patterns: ['NULL', 'null.*'] });
    const results = await accept(pool, [
      newEvent({ type: 'NULL' }),
      newEvent({ type: 'null.x' }),
      newEvent({ type: 'a-b_c:d.1' }),
    ]);
    expect(results.map((result) => result.kind)).toEqual(['accepted', 'accepted', 'accepted']);
    const { rows } = await pool.query(
      'select e.type from relay.deliveries d join relay.events e on e.id = d.event_id where d.endpoint_id = $1 order by 1',
      [endpoint],
    );
    expect(rows).toEqual([{ type: 'NULL' }, { type: 'null.x' }]);
  });

  it('to nobody is still an accepted event', async () => {
    const tenantId = await givenTenant(pool);
    const [result] = await accept(pool, [newEvent({ tenantId, type: 'nobody.listens' })]);
    expect(acceptedIds(result)).toEqual([]);
    expect(result?.kind === 'accepted' && (await storedPayload(result.eventId)).type).toBe('nobody.listens');
  });

  it('over 65,535 endpoints is refused and stores nothing, at no cost to its neighbours', async () => {
    const tenantId = await givenTenant(pool);
    const endpointId = await givenEndpoint(pool, { tenantId, patterns: ['calm'] });
    await pool.query(
      `insert into relay.endpoints (id, tenant_id, url, secret)
       select ('00000000-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, $1, 'https://x.example.test', '\\x00'
       from generate_series(1, 65536) n`,
      [tenantId],
    );
    await pool.query(
      `insert into relay.subscriptions (tenant_id, pattern, endpoint_id)
       select $1, 'flood', ('00000000-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::uuid from generate_series(1, 65536) n`,
      [tenantId],
    );
    const events = ['calm', 'flood', 'calm'].map((type) => newEvent({ tenantId, type }));
    const results = await accept(pool, events);
    expect(results.map((result) => result.kind)).toEqual(['accepted', 'too_many_deliveries', 'accepted']);
    expect(await endpointsOf([...acceptedIds(results[0]), ...acceptedIds(results[2])])).toEqual([
      endpointId,
      endpointId,
    ]);
    const { rows } = await pool.query('select type from relay.events where tenant_id = $1', [tenantId]);
    expect(rows).toEqual([{ type: 'calm' }, { type: 'calm' }]);

    await pool.query(
      `delete from relay.subscriptions where tenant_id = $1 and pattern = 'flood' and endpoint_id::text like '%10000'`,
      [tenantId],
    );
    const [most] = await accept(pool, [newEvent({ tenantId, type: 'flood' })]);
    expect(most).toMatchObject({ kind: 'accepted', continuesTo: 65_535 });
    expect(acceptedIds(most).length).toBe(1_000);
  });
});

describe('an event that matches more endpoints than are written at once', () => {
  async function givenSubscribers(count: number): Promise<string> {
    const tenantId = await givenTenant(pool);
    await pool.query(
      `with made as (
         insert into relay.endpoints (tenant_id, url, secret)
         select $1, 'https://x.example.test', '\\x00' from generate_series(1, $2) returning id
       )
       insert into relay.subscriptions (tenant_id, pattern, endpoint_id) select $1, '*', id from made`,
      [tenantId, count],
    );
    return tenantId;
  }

  async function fanOutOf(eventId: string): Promise<{ endpoint_ids: string[]; next_tail: number } | null> {
    const { rows } = await pool.query(
      'select endpoint_ids, next_tail from relay.fan_outs where event_id = $1',
      [eventId],
    );
    return rows[0] ?? null;
  }

  const matchedBy = async (eventId: string) =>
    (await pool.query('select matched from relay.events where id = $1', [eventId])).rows[0].matched;

  it('is accepted with the first, and says how many there are in all', async () => {
    const tenantId = await givenSubscribers(1_001);
    const [result] = await accept(pool, [newEvent({ tenantId })]);
    if (result?.kind !== 'accepted') throw new Error(result?.kind);
    expect(result.continuesTo).toBe(1_001);
    expect([result.deliveryIds.length, result.endpointIds.length]).toEqual([1_000, 1_000]);
    const fanOut = await fanOutOf(result.eventId);
    expect(fanOut?.next_tail).toBe(1_001);
    expect(fanOut?.endpoint_ids.slice(0, 1_000)).toEqual(result.endpointIds);
    expect(new Set(fanOut?.endpoint_ids).size).toBe(1_001);
    const { rows } = await pool.query(
      `select d.id, d.endpoint_id from relay.deliveries d join relay.queue q on q.delivery_id = d.id
       where q.event_id = $1 order by d.id`,
      [result.eventId],
    );
    expect(rows.map((row) => row.id)).toEqual(result.deliveryIds);
    expect(rows.map((row) => row.endpoint_id)).toEqual(result.endpointIds);
    expect(await matchedBy(result.eventId)).toBe(1_001);
  });

  it('is written whole when they are just as many', async () => {
    const tenantId = await givenSubscribers(1_000);
    const [result] = await accept(pool, [newEvent({ tenantId })]);
    if (result?.kind !== 'accepted') throw new Error(result?.kind);
    expect([result.deliveryIds.length, result.continuesTo]).toEqual([1_000, null]);
    expect(await fanOutOf(result.eventId)).toBeNull();
  });

  it('tells a repeated request what it told the first, whatever was written since', async () => {
    const tenantId = await givenSubscribers(1_002);
    const [first] = await acceptKeyed(pool, [keyedEvent('large', { tenantId })]);
    if (first?.kind !== 'accepted') throw new Error(first?.kind);
    await pool.query(
      `insert into relay.deliveries (id, event_id, endpoint_id, tenant_id)
       select (left($1, 32) || tail)::uuid, $1::uuid, gen_random_uuid(), $2 from unnest('{03e9,03ea}'::text[]) tail`,
      [first.eventId, tenantId],
    );
    const [again] = await acceptKeyed(pool, [keyedEvent('large', { tenantId })]);
    expect(again).toEqual({ kind: 'replayed', eventId: first.eventId });
    const { deliveryIds, continuesTo } = first;
    const answers = await firstAnswersOf(pool, [first.eventId]);
    expect(answers.get(first.eventId)).toEqual({ deliveryIds, continuesTo });
  });

  it('from before the rest was put off is told with all its deliveries', async () => {
    const tenantId = await givenSubscribers(3);
    const [result] = await accept(pool, [newEvent({ tenantId })]);
    if (result?.kind !== 'accepted') throw new Error(result?.kind);
    await pool.query('update relay.events set matched = null where id = $1', [result.eventId]);
    await pool.query(
      `insert into relay.deliveries (id, event_id, endpoint_id, tenant_id)
       select (left($1, 32) || lpad(to_hex(n), 4, '0'))::uuid, $1::uuid, gen_random_uuid(), $2 from generate_series(4, 1500) n`,
      [result.eventId, tenantId],
    );
    const answer = (await firstAnswersOf(pool, [result.eventId])).get(result.eventId);
    expect([answer?.deliveryIds.length, answer?.continuesTo]).toEqual([1_500, null]);
  });

  it('counts what it matched, and what matched nothing is found as such', async () => {
    const tenantId = await givenTenant(pool);
    const target = await givenEndpoint(pool, { tenantId, patterns: ['one'] });
    const events = [{ type: 'one' }, { type: 'none' }, { type: 'none', targetEndpointId: target }];
    const results = await accept(
      pool,
      events.map((event) => newEvent({ tenantId, ...event })),
    );
    const ids = results.map((result) => (result.kind === 'accepted' ? result.eventId : ''));
    expect(await Promise.all(ids.map(matchedBy))).toEqual([1, 0, 1]);
    const { rows } = await pool.query('select id from relay.events where tenant_id = $1 and matched = 0', [
      tenantId,
    ]);
    expect(rows).toEqual([{ id: ids[1] }]);
  });
});

describe('a targeted event', () => {
  it('goes to its target alone, whatever that subscribes to', async () => {
    const target = await givenEndpoint(pool, { patterns: ['unrelated'] });
    await givenEndpoint(pool, { patterns: ['*'] });
    const [result] = await accept(pool, [newEvent({ targetEndpointId: target })]);
    expect(await endpointsOf(acceptedIds(result))).toEqual([target]);
  });

  it('has no target when that is absent, foreign, disabled or deleted', async () => {
    const foreign = await givenEndpoint(pool, { tenantId: await givenTenant(pool) });
    const disabled = await givenEndpoint(pool, { disabled: true });
    const deleted = await givenEndpoint(pool, { deleted: true });
    const targets = [randomUUID(), foreign, disabled, deleted];
    const results = await accept(
      pool,
      targets.map((targetEndpointId) => newEvent({ targetEndpointId, type: 'aimless' })),
    );
    expect(results.map((result) => result.kind)).toEqual(Array(4).fill('no_target'));
    const { rowCount } = await pool.query(`select from relay.events where type = 'aimless'`);
    expect(rowCount).toBe(0);
  });
});

describe('the moments of an accepted delivery', () => {
  it('announced: due now, looked at 30 s later', async () => {
    const row = await queueRow(pool, await givenOne(pool));
    expect(row.due_in).toBeLessThanOrEqual(0);
    expect(row.announced_in).toBe(row.due_in);
    expect(row.look_in - row.due_in).toBeCloseTo(30_000, 0);
  });

  it('in poll mode: looked at now', async () => {
    const [id] = await givenOwed(pool, 1, { announced: false });
    const row = await queueRow(pool, id!);
    expect(row.announced_in).toBeNull();
    expect(row.look_in).toBe(row.due_in);
  });

  it('deliver_at ahead: not announced, looked at and due then, not to be had before', async () => {
    const targetEndpointId = await givenEndpoint(pool);
    const [result] = await accept(pool, [newEvent({ targetEndpointId, deliverAt: inMs(60_000) })]);
    expect(result).toMatchObject({ kind: 'accepted', announce: false });
    const [id] = acceptedIds(result);
    const row = await queueRow(pool, id!);
    expect(row.announced_in).toBeNull();
    expect(row.due_in).toBeGreaterThan(55_000);
    expect(row.look_in).toBe(row.due_in);
    expect(await claimByIds(pool, [id!], { token: randomUUID(), leaseMs: 1000, processNumber: 1 })).toEqual(
      [],
    );
  });

  it('deliver_at behind: due now', async () => {
    const targetEndpointId = await givenEndpoint(pool);
    const [result] = await accept(pool, [newEvent({ targetEndpointId, deliverAt: inMs(-3_600_000) })]);
    expect(result).toMatchObject({ announce: true });
    const row = await queueRow(pool, acceptedIds(result)[0]!);
    expect(row.due_in).toBeGreaterThan(-5_000);
    expect(row.announced_in).toBe(row.due_in);
  });

  it('expires_at behind: refused, by the clock of the database', async () => {
    const targetEndpointId = await givenEndpoint(pool);
    const late = [{ expiresAt: inMs(-1_000) }, { expiresAt: inMs(-1_000), targetEndpointId }];
    const results = await accept(
      pool,
      late.map((event) => newEvent({ type: 'too.late', ...event })),
    );
    expect(results.map((result) => result.kind)).toEqual(['already_expired', 'already_expired']);
    const { rowCount } = await pool.query(`select from relay.events where type = 'too.late'`);
    expect(rowCount).toBe(0);
  });

  it('expires_at: never looked at later than that', async () => {
    const soon = await queueRow(pool, await givenOne(pool, { expiresAt: inMs(10_000) }));
    expect(soon.look_in).toBeLessThan(10_500);
    const late = await queueRow(pool, await givenOne(pool, { expiresAt: inMs(600_000) }));
    expect(late.look_in).toBeLessThan(30_500);
    const scheduled = await givenOne(pool, { expiresAt: inMs(10_000), deliverAt: inMs(600_000) });
    expect((await queueRow(pool, scheduled)).look_in).toBeLessThan(10_500);
  });
});

describe('the lane of an accepted delivery', () => {
  const laneOf = async (id: string) => (await queueRow(pool, id)).lane;

  it('is express, and bulk for the endpoints that the caller names', async () => {
    const tenantId = await givenTenant(pool);
    const patterns = ['lanes.*'];
    const endpoints = await Promise.all([1, 2, 3].map(() => givenEndpoint(pool, { patterns, tenantId })));
    const bulkEndpoints = [endpoints[1]!];
    const events = [{ type: 'lanes.a' }, { targetEndpointId: endpoints[1]! }, { type: 'other' }].map(
      (event) => newEvent({ ...event, tenantId }),
    );
    const results = await accept(pool, events, { announced: true, bulkEndpoints });
    for (const result of results) {
      if (result.kind !== 'accepted') throw new Error(result.kind);
      expect(result.endpointIds).toHaveLength(result.deliveryIds.length);
      for (const [place, id] of result.deliveryIds.entries()) {
        expect(await endpointsOf([id])).toEqual([result.endpointIds[place]]);
        expect(await laneOf(id)).toBe(bulkEndpoints.includes(result.endpointIds[place]!) ? 1 : 0);
      }
    }
    expect(results.map((result) => result.kind === 'accepted' && result.endpointIds.length)).toEqual([
      3, 1, 0,
    ]);
  });

  it('is told for a keyed event too, and only by the one that made it', async () => {
    const endpointId = await givenEndpoint(pool, { patterns: ['lanes.keyed'] });
    const event = keyedEvent(randomUUID(), { type: 'lanes.keyed', targetEndpointId: endpointId });
    const [first] = await acceptKeyed(pool, [event], { bulkEndpoints: [endpointId] });
    expect(first).toMatchObject({ kind: 'accepted', endpointIds: [endpointId] });
    expect(await laneOf(acceptedIds(first)[0]!)).toBe(1);
    expect(await acceptKeyed(pool, [event])).toMatchObject([{ kind: 'replayed' }]);
  });
});

describe('an announcement that failed', () => {
  it('leaves its rows to be found now', async () => {
    const [free, leased] = await givenOwed(pool, 2);
    await claimByIds(pool, [leased!], { token: randomUUID(), leaseMs: 30_000, processNumber: 1 });
    await unannounce(pool, [free!, leased!, randomUUID()]);
    const row = await queueRow(pool, free!);
    expect(row.announced_in).toBeNull();
    expect(row.look_in).toBeLessThanOrEqual(0);
    expect((await queueRow(pool, leased!)).announced_in).not.toBeNull();
  });

  it('does not make a row look later than it expires', async () => {
    const id = await givenOne(pool, { expiresAt: inMs(-1_000) });
    await unannounce(pool, [id]);
    expect((await queueRow(pool, id)).look_in).toBeLessThanOrEqual(-1_000);
  });
});

describe('a payload', () => {
  const everyByte = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte));
  const mebibyte = Buffer.concat(
    Array.from({ length: 32_768 }, (_, n) => createHash('sha256').update(`${n}`).digest()),
  );
  it.each([
    ['with NUL and 0xFF', Buffer.from([0, 0xff, 0, 0xff, 0x5c, 0x30, 0x30])],
    ['of every byte', everyByte],
    ['of one mebibyte', mebibyte],
    ['without a byte', Buffer.alloc(0)],
    ['that escapes U+0000 in a key and a value', Buffer.from('{"\\u0000k":{"a":["\\u0000"]}}')],
  ])('%s is kept byte for byte', async (_, payload) => {
    await givenEndpoint(pool, { patterns: ['bytes'] });
    const contentType = 'application/octet-stream; x="\\u0000"';
    const [result] = await accept(pool, [newEvent({ type: 'bytes', contentType, payload })]);
    if (result?.kind !== 'accepted') throw new Error(result?.kind);
    const stored = await storedPayload(result.eventId);
    expect(stored.payload.equals(payload)).toBe(true);
    expect(stored.content_type).toBe(contentType);
  });
});
