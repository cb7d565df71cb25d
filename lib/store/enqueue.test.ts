import { createHash, randomBytes, randomUUID } from 'node:crypto';
import fc from 'fast-check';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import { eventually } from '../../services/testing/eventually.ts';
import { acceptKeyed, givenEndpoint, givenTenant, keyedEvent } from '../../services/testing/given-queue.ts';
import { queueRow } from '../../services/testing/stored-rows.ts';
import { isEventType, patternCandidates } from '../domain/event-type.ts';
import { requestDigest, validateIdempotencyKey } from '../domain/idempotency-key.ts';
import { claimByIds } from './claims.ts';
import { sqlState } from './failure.ts';
import { fanOutStep } from './fan-outs.ts';
import { firstAnswersOf } from './ingest.ts';
import { createPool } from './pool.ts';
import { surfaceEnqueued } from './sweep.ts';

let database: TestDatabase;
let pool: pg.Pool;

beforeAll(async () => {
  database = await createTestDatabase();
  // As a producer has it: none of the settings of a connection of Relay's.
  pool = new pg.Pool({ connectionString: database.url, max: 6 });
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

type Queries = Pick<pg.Pool, 'query'>;

/** What `select relay.enqueue(…)` gives: the arguments as a producer would write them. */
async function enqueue(db: Queries, argumentList: string, values: unknown[] = []): Promise<string> {
  const { rows } = await db.query(`select relay.enqueue(${argumentList}) as id`, values);
  return rows[0].id;
}

/** The SQLSTATE of what a statement ends with, and the word before its colon. */
async function failure(work: Promise<unknown>): Promise<{ state: string | null; code: string } | null> {
  try {
    await work;
    return null;
  } catch (error) {
    return { state: sqlState(error), code: (error as Error).message.split(':')[0]! };
  }
}

async function stored(eventId: string) {
  const { rows } = await pool.query('select * from relay.events where id = $1', [eventId]);
  return rows[0] ?? null;
}

async function deliveriesOf(eventId: string): Promise<string[]> {
  return (await firstAnswersOf(pool, [eventId])).get(eventId)!.deliveryIds;
}

async function inTransaction<T>(work: (client: pg.PoolClient) => Promise<T>): Promise<T> {
  const client = await pool.connect();
  try {
    await client.query('begin');
    return await work(client);
  } finally {
    await client.query('rollback');
    client.release();
  }
}

const freshKey = () => `key-${randomBytes(6).toString('hex')}`;

describe('an event that a producer enqueues', () => {
  it('is what the API makes of the same: event, deliveries, and what is owed', async () => {
    const tenantId = await givenTenant(pool);
    const endpoints = [
      await givenEndpoint(pool, { tenantId, patterns: ['order.*'] }),
      await givenEndpoint(pool, { tenantId, patterns: ['order.paid'] }),
    ];
    await givenEndpoint(pool, { tenantId, patterns: ['other'] });
    await givenEndpoint(pool, { tenantId, disabled: true });
    const id = await enqueue(pool, `'order.paid', '{"n":1}', tenant => $1`, [tenantId]);
    expect(id).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-8[0-9a-f]{3}-[0-9a-f]{8}0000$/);
    expect(await stored(id)).toMatchObject({
      tenant_id: tenantId,
      type: 'order.paid',
      content_type: 'application/json',
      payload: Buffer.from('{"n":1}'),
      matched: 2,
      deliver_at: null,
      expires_at: null,
    });
    const { rows } = await pool.query(
      `select d.id, d.endpoint_id, q.endpoint_id as owed_to, q.event_id, q.look_at = '-infinity' as unseen, q.announced_at, d.tenant_id
       from relay.deliveries d join relay.queue q on q.delivery_id = d.id where d.event_id = $1 order by d.id`,
      [id],
    );
    expect(rows.map((row) => row.id.slice(-4))).toEqual(['0001', '0002']);
    expect(rows.map((row) => row.endpoint_id).sort()).toEqual([...endpoints].sort());
    for (const row of rows) {
      expect(row).toMatchObject({ owed_to: row.endpoint_id, event_id: id, unseen: true, announced_at: null });
      expect(row.tenant_id).toBe(tenantId);
    }
    expect(await deliveriesOf(id)).toEqual(rows.map((row) => row.id));
  });

  it('is found by the sweep and can be claimed', async () => {
    const id = await enqueue(pool, `'x', '{}', endpoint_id => $1`, [await givenEndpoint(pool)]);
    const [delivery] = await deliveriesOf(id);
    const leader = await pool.connect();
    expect(await surfaceEnqueued(leader, 1_000)).toBeGreaterThan(0);
    leader.release();
    expect((await queueRow(pool, delivery!)).look_in).toBeLessThanOrEqual(0);
    const [claim] = await claimByIds(pool, [delivery!], {
      token: randomUUID(),
      leaseMs: 1_000,
      processNumber: 1,
    });
    expect(claim).toMatchObject({ deliveryId: delivery, eventId: id, type: 'x', payload: Buffer.from('{}') });
  });

  it('goes to its target alone, and nowhere but to its own tenant', async () => {
    const tenantId = await givenTenant(pool);
    const target = await givenEndpoint(pool, { tenantId, patterns: ['nothing.else'] });
    await givenEndpoint(pool, { tenantId });
    const id = await enqueue(pool, `'x', '{}', tenant => $1, endpoint_id => $2`, [tenantId, target]);
    expect((await deliveriesOf(id)).length).toBe(1);
    expect((await stored(id)).matched).toBe(1);
  });

  it('that nobody subscribes to is stored, and found as such', async () => {
    const tenantId = await givenTenant(pool);
    const id = await enqueue(pool, `'x', '{}', tenant => $1`, [tenantId]);
    expect([(await stored(id)).matched, await deliveriesOf(id)]).toEqual([0, []]);
  });

  it('to very many endpoints has its first deliveries, and the rest by steps', async () => {
    const tenantId = await givenTenant(pool);
    await pool.query(
      `with made as (
         insert into relay.endpoints (tenant_id, url, secret)
         select $1, 'https://x.example.test', '\\x00' from generate_series(1, 1100) returning id
       )
       insert into relay.subscriptions (tenant_id, pattern, endpoint_id) select $1, '*', id from made`,
      [tenantId],
    );
    const id = await enqueue(pool, `'x', '{}', tenant => $1`, [tenantId]);
    expect((await firstAnswersOf(pool, [id])).get(id)).toMatchObject({ continuesTo: 1_100 });
    expect((await deliveriesOf(id)).length).toBe(1_000);
    const client = await pool.connect();
    expect(await fanOutStep(client, id, 1_000)).toEqual({ written: 100, ended: true });
    client.release();
    const { rows } = await pool.query(
      'select count(*)::int as n, count(distinct endpoint_id)::int as endpoints from relay.deliveries where event_id = $1',
      [id],
    );
    expect(rows[0]).toEqual({ n: 1_100, endpoints: 1_100 });
  });

  it('to over 65,535 endpoints is refused', async () => {
    const tenantId = await givenTenant(pool);
    await pool.query(
      `with made as (
         insert into relay.endpoints (tenant_id, url, secret)
         select $1, 'https://x.example.test', '\\x00' from generate_series(1, 65536) returning id
       )
       insert into relay.subscriptions (tenant_id, pattern, endpoint_id) select $1, '*', id from made`,
      [tenantId],
    );
    expect(await failure(enqueue(pool, `'x', '{}', tenant => $1`, [tenantId]))).toEqual({
      state: 'RL007',
      code: 'too_many_deliveries',
    });
  });

  it('has the moment of the call, not that of the transaction that it is part of', async () => {
    const endpointId = await givenEndpoint(pool);
    await inTransaction(async (client) => {
      await client.query('select now()');
      await client.query('select pg_sleep(0.3)');
      const id = await enqueue(client, `'x', '{}', endpoint_id => $1`, [endpointId]);
      const { rows } = await client.query(
        `select date_part('epoch', e.created_at - now()) * 1000 as event, date_part('epoch', d.created_at - now()) * 1000 as delivery,
           date_part('epoch', q.due_at - now()) * 1000 as due
         from relay.events e join relay.deliveries d on d.event_id = e.id join relay.queue q on q.delivery_id = d.id where e.id = $1`,
        [id],
      );
      for (const ms of Object.values(rows[0])) expect(ms).toBeGreaterThanOrEqual(300);
    });
  });

  it('has an id that rises with the clock, by itself and beside those of the API', async () => {
    const { rows } = await pool.query(
      `select relay.new_event_id() as id, clock_timestamp() as at from generate_series(1, 500)`,
    );
    const ids = rows.map((row) => row.id);
    expect(new Set(ids).size).toBe(500);
    for (const [n, { id, at }] of rows.entries()) {
      const ms = Number.parseInt(id.replaceAll('-', '').slice(0, 12), 16);
      expect(Math.abs(ms - at.getTime())).toBeLessThanOrEqual(1_000);
      // 4 microseconds a step of the fraction: two ids of one step have no order.
      if (n > 0) expect(id.slice(0, 18) >= ids[n - 1].slice(0, 18)).toBe(true);
    }
  });
});

describe('a payload', () => {
  const bytes = Buffer.from([0, 0xff, 0x5c, 0x30, 0x0d, 0x0a]);
  const odd = '{ "b":12345678901234567890,"10":1e400, "a":-0 ,"a":1.0, "nul":"\\u0000", "é":"\u{1f600}" }\n';

  it.each([
    ['bytea is kept byte for byte', '$1::bytea', bytes, bytes],
    ['text is kept as its characters in UTF-8', '$1::text', odd, Buffer.from(odd)],
    ['a literal is text', `'{"a": 1}'`, null, Buffer.from('{"a": 1}')],
    ['varchar is text', '$1::varchar', odd, Buffer.from(odd)],
    ['json is kept as it was written', '$1::json', odd, Buffer.from(odd)],
    [
      'jsonb is kept as Postgres prints it',
      `'{"b":1,"a":1.0}'::jsonb`,
      null,
      Buffer.from('{"a": 1.0, "b": 1}'),
    ],
    ['of nothing is kept', `''`, null, Buffer.alloc(0)],
  ])('%s', async (_, argument, value, expected) => {
    const id = await enqueue(pool, `'x', ${argument}`, value === null ? [] : [value]);
    expect((await stored(id)).payload.equals(expected)).toBe(true);
  });

  it('has the content type that is named', async () => {
    const id = await enqueue(pool, `'x', $1::bytea, content_type => 'image/png'`, [bytes]);
    expect((await stored(id)).content_type).toBe('image/png');
  });

  it('may be as large as the settings say, and is counted in bytes', async () => {
    const limit = 262_144;
    const big = (size: number) => randomBytes(size);
    await enqueue(pool, `'x', $1::bytea`, [big(limit)]);
    expect(await failure(enqueue(pool, `'x', $1::bytea`, [big(limit + 1)]))).toEqual({
      state: 'RL006',
      code: 'payload_too_large',
    });
    expect(await failure(enqueue(pool, `'x', repeat('é', $1)`, [limit / 2 + 1]))).toMatchObject({
      state: 'RL006',
    });
    await pool.query('update relay.enqueue_settings set max_payload_bytes = $1', [limit + 1]);
    await enqueue(pool, `'x', $1::bytea`, [big(limit + 1)]);
    await pool.query('update relay.enqueue_settings set max_payload_bytes = $1', [limit]);
  });
});

describe('what cannot be enqueued', () => {
  it.each([
    ['a type with a space', `'a b', '{}'`, 'RL001'],
    ['an empty type', `'', '{}'`, 'RL001'],
    ['a type of 129 characters', `repeat('x', 129), '{}'`, 'RL001'],
    ['a type that ends in a line break', `E'a\\n', '{}'`, 'RL001'],
    ['the mark of an operational event', `'~endpoint.disabled', '{}'`, 'RL001'],
    ['no type', `null, '{}'`, 'RL001'],
    ['no payload', `'x', null::bytea`, 'RL001'],
    ['no payload as text', `'x', null::text`, 'RL001'],
    ['an empty key', `'x', '{}', idempotency_key => ''`, 'RL001'],
    ['a key with a space', `'x', '{}', idempotency_key => 'a b'`, 'RL001'],
    ['a key of 256 characters', `'x', '{}', idempotency_key => repeat('x', 256)`, 'RL001'],
    ['an empty content type', `'x', '{}', content_type => ''`, 'RL001'],
    ['a content type with a line break', `'x', '{}', content_type => E'a\\r\\nb: c'`, 'RL001'],
    ['a content type that is not ASCII', `'x', '{}', content_type => 'é'`, 'RL001'],
    ['a moment over a year ahead', `'x', '{}', deliver_at => now() + interval '367 days'`, 'RL001'],
    ['no moment', `'x', '{}', deliver_at => 'infinity'`, 'RL001'],
    ['no moment either', `'x', '{}', deliver_at => '-infinity'`, 'RL001'],
    ['an end that is none', `'x', '{}', expires_at => 'infinity'`, 'RL001'],
    ['an end in the past', `'x', '{}', expires_at => now() - interval '1 second'`, 'RL001'],
    [
      'an end before the beginning',
      `'x', '{}', deliver_at => now() + interval '2 min', expires_at => now() + interval '1 min'`,
      'RL001',
    ],
    ['an unknown tenant', `'x', '{}', tenant => gen_random_uuid()`, 'RL002'],
    ['an unknown target', `'x', '{}', endpoint_id => gen_random_uuid()`, 'RL003'],
  ])('%s is told so', async (_, argumentList, state) => {
    expect(await failure(enqueue(pool, argumentList))).toMatchObject({ state });
  });

  it('a target that is disabled, deleted or of another tenant, or a tenant that is deleted', async () => {
    const targets: [string, string][] = [
      [await givenEndpoint(pool, { disabled: true }), 'RL004'],
      [await givenEndpoint(pool, { deleted: true }), 'RL003'],
      [await givenEndpoint(pool, { tenantId: await givenTenant(pool) }), 'RL003'],
    ];
    for (const [target, state] of targets)
      expect(await failure(enqueue(pool, `'x', '{}', endpoint_id => $1`, [target]))).toMatchObject({ state });
    const gone = await givenTenant(pool);
    await pool.query('update relay.tenants set deleted_at = now() where id = $1', [gone]);
    expect(await failure(enqueue(pool, `'x', '{}', tenant => $1`, [gone]))).toEqual({
      state: 'RL002',
      code: 'tenant_not_found',
    });
  });

  it('leaves nothing behind, and no key taken', async () => {
    const key = freshKey();
    const target = await givenEndpoint(pool, { disabled: true });
    const asked = enqueue(pool, `'x', '{}', $1, endpoint_id => $2`, [key, target]);
    expect(await failure(asked)).toEqual({ state: 'RL004', code: 'endpoint_disabled' });
    const { rowCount } = await pool.query('select from relay.idempotency_keys where key = $1', [key]);
    expect(rowCount).toBe(0);
  });

  it('are the types and keys that the API refuses', async () => {
    const characters = Array.from({ length: 0x2ff }, (_, code) => String.fromCharCode(code + 1));
    characters.push('\u0663', '\u2167', '\uff21', '\u{1f600}');
    const client = await pool.connect();
    await client.query(`create function pg_temp.refused(type text, key text) returns boolean language plpgsql as $$
      begin
        perform relay.judge_request(type, '', key, 'x', null, null, 1);
        return false;
      exception when sqlstate 'RL001' then
        return true;
      end $$`);
    const { rows } = await client.query(
      `select c as character, pg_temp.refused('t' || c || 't', 'k') as type, pg_temp.refused('t', 'k' || c || 'k') as key
       from unnest($1::text[]) c`,
      [characters],
    );
    client.release();
    expect(rows).toEqual(
      characters.map((character) => ({
        character,
        type: !isEventType(`t${character}t`),
        key: validateIdempotencyKey(`k${character}k`) !== null,
      })),
    );
  });
});

describe('the twins of what the API computes', () => {
  const types = fc.stringMatching(/^[A-Za-z0-9_.:-]{1,128}$/);
  const moments = fc.option(fc.date({ min: new Date(0), max: new Date('9999-12-31'), noInvalidDate: true }));
  const requests = fc.record({
    type: types,
    contentType: fc.stringMatching(/^[ -~]{1,60}$/),
    target: fc.option(fc.uuid()),
    payload: fc.uint8Array({ maxLength: 300 }).map((bytes) => Buffer.from(bytes)),
    deliverAt: moments,
    expiresAt: moments,
  });

  it('give a type the same candidates', async () => {
    const samples = [...fc.sample(types, 400), '.', '..', 'a.', '.a', 'a..b', '...', 'a.b.c.d', '.a.b.'];
    const { rows } = await pool.query(
      'select relay.pattern_candidates(t) as candidates from unnest($1::text[]) with ordinality u(t, n) order by n',
      [samples],
    );
    expect(rows.map((row) => row.candidates)).toEqual(samples.map(patternCandidates));
  });

  it('give a request the same digest', async () => {
    for (const request of fc.sample(requests, 200)) {
      const { type, contentType, target, payload, deliverAt, expiresAt } = request;
      const { rows } = await pool.query('select relay.request_digest($1, $2, $3, $4, $5, $6) as digest', [
        ...[type, contentType, target, payload],
        ...[deliverAt?.toISOString() ?? null, expiresAt?.toISOString() ?? null],
      ]);
      const expected = requestDigest(type, contentType, target, payload, { deliverAt, expiresAt });
      expect(rows[0].digest.toString('hex'), JSON.stringify(request)).toBe(expected.toString('hex'));
    }
  });
});

describe('an idempotency key of a producer', () => {
  const counted = async (key: string) =>
    (await pool.query('select count(*)::int as n from relay.events where type = $1', [key])).rows[0].n;
  const once = (db: Queries, key: string, payload = '{}') => enqueue(db, '$1, $2::text, $1', [key, payload]);

  it('gives the same request its first event again, and another request an error', async () => {
    const key = freshKey();
    const first = await once(pool, key);
    expect(await once(pool, key)).toBe(first);
    expect(await failure(once(pool, key, '{ }'))).toEqual({ state: 'RL005', code: 'idempotency_conflict' });
    expect(await enqueue(pool, `$1, '{}'::json, $1`, [key])).toBe(first);
    expect(await counted(key)).toBe(1);
  });

  it('belongs to its tenant', async () => {
    const key = freshKey();
    const other = await enqueue(pool, `$1, '{}', $1, tenant => $2`, [key, await givenTenant(pool)]);
    expect(await once(pool, key)).not.toBe(other);
  });

  it('is one with the keys of the API, in both directions', async () => {
    const target = await givenEndpoint(pool);
    const payload = Buffer.from('{"n":1}');
    const times = { deliverAt: new Date(Date.now() + 600_000), expiresAt: new Date(Date.now() + 900_000) };
    const digest = requestDigest('both', 'application/json', target, payload, times);
    const posted = (key: string) =>
      keyedEvent(key, { type: 'both', payload, targetEndpointId: target, digest, ...times });
    const enqueued = (key: string) =>
      enqueue(pool, `'both', $1::bytea, $2, endpoint_id => $3, deliver_at => $4, expires_at => $5`, [
        ...[payload, key, target],
        ...[times.deliverAt.toISOString(), times.expiresAt.toISOString()],
      ]);
    const ingest = createPool({ url: database.url, purpose: 'ingest', max: 2, applicationName: 'test' });
    const [here, there] = [freshKey(), freshKey()];
    const first = await enqueued(here);
    expect(await acceptKeyed(ingest, [posted(here)])).toEqual([{ kind: 'replayed', eventId: first }]);
    const [second] = await acceptKeyed(ingest, [posted(there)]);
    expect(second?.kind === 'accepted' && second.eventId).toBe(await enqueued(there));
    await ingest.end();
  });

  it('is still that of the first when its event has come to its end', async () => {
    const key = freshKey();
    const soon = new Date(Date.now() + 700).toISOString();
    const timed = () => enqueue(pool, `$1, '{}', $1, expires_at => $2`, [key, soon]);
    const first = await timed();
    await eventually(async () =>
      expect(await failure(enqueue(pool, `'x', '{}', expires_at => $1`, [soon]))).not.toBeNull(),
    );
    expect(await timed()).toBe(first);
  });

  it('counts as absent when its time has passed', async () => {
    const key = freshKey();
    const first = await once(pool, key);
    const { rows } = await pool.query(
      `update relay.idempotency_keys set expires_at = clock_timestamp() where key = $1
       returning date_part('epoch', expires_at - created_at)::int as s`,
      [key],
    );
    expect(rows[0].s).toBeGreaterThanOrEqual(0);
    const second = await once(pool, key, '{"other":true}');
    expect(second).not.toBe(first);
    expect(await once(pool, key, '{"other":true}')).toBe(second);
  });

  it('lives as long as the settings say', async () => {
    const key = freshKey();
    await pool.query(`update relay.enqueue_settings set idempotency_retention = '90 minutes'`);
    await once(pool, key);
    await pool.query(`update relay.enqueue_settings set idempotency_retention = default`);
    const { rows } = await pool.query(
      `select date_part('epoch', expires_at - now()) as s from relay.idempotency_keys where key = $1`,
      [key],
    );
    expect(Math.abs(rows[0].s - 5_400)).toBeLessThan(60);
  });

  /** A second transaction asks for a key that a first one holds, and waits; then the first one ends. */
  async function second(end: 'commit' | 'rollback', options: { payload?: string; begin?: string } = {}) {
    const key = freshKey();
    const [one, two] = [await pool.connect(), await pool.connect()];
    try {
      await one.query('begin');
      await two.query(options.begin ?? 'begin');
      await two.query('select from relay.enqueue_settings');
      const first = await once(one, key);
      const waiting = once(two, key, options.payload).then(
        (id) => ({ id }),
        (error) => ({ state: sqlState(error) }),
      );
      await eventually(async () => {
        const { rowCount } = await pool.query(
          `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
        );
        expect(rowCount).toBe(1);
      });
      await one.query(end);
      const outcome = await waiting;
      await two.query('commit');
      return { first, outcome, events: await counted(key) };
    } finally {
      one.release();
      two.release();
    }
  }

  it('that another transaction holds is waited for: its commit gives its event', async () => {
    const { first, outcome, events } = await second('commit');
    expect([outcome, events]).toEqual([{ id: first }, 1]);
  });

  it('that another transaction held is free when that rolls back', async () => {
    const { first, outcome, events } = await second('rollback');
    expect('id' in outcome && outcome.id !== first).toBe(true);
    expect(events).toBe(1);
  });

  it('that another transaction took for something else is a conflict', async () => {
    const { outcome, events } = await second('commit', { payload: '{"n":2}' });
    expect([outcome, events]).toEqual([{ state: 'RL005' }, 1]);
  });

  it('that was taken since the snapshot of a repeatable read is a serialization failure', async () => {
    const { outcome, events } = await second('commit', { begin: 'begin isolation level repeatable read' });
    expect([outcome, events]).toEqual([{ state: '40001' }, 1]);
  });

  it('makes one event of many at once', async () => {
    const key = freshKey();
    const ids = await Promise.all(Array.from({ length: 40 }, () => once(pool, key)));
    expect(new Set(ids).size).toBe(1);
    expect(await counted(key)).toBe(1);
  });
});

describe("the caller's transaction", () => {
  const everything = async (db: Queries) => {
    const { rows } = await db.query(`select (select count(*)::int from relay.events) as events,
      (select count(*)::int from relay.deliveries) as deliveries, (select count(*)::int from relay.queue) as owed,
      (select count(*)::int from relay.idempotency_keys) as keys, (select count(*)::int from relay.fan_outs) as fan_outs`);
    return rows[0];
  };

  it('is the event’s: nobody sees it before the commit, and a rollback leaves nothing', async () => {
    const endpointId = await givenEndpoint(pool);
    const before = await everything(pool);
    await inTransaction(async (client) => {
      await client.query('create table public.orders (id int)');
      await client.query('insert into public.orders values (1)');
      await enqueue(client, `'x', '{}', $1, endpoint_id => $2`, [freshKey(), endpointId]);
      expect((await everything(client)).owed).toBe(before.owed + 1);
      expect(await everything(pool)).toEqual(before);
    });
    expect(await everything(pool)).toEqual(before);
    expect((await pool.query(`select to_regclass('public.orders') as t`)).rows[0].t).toBeNull();
  });

  it('may take a part back by a savepoint, an error among it', async () => {
    const endpointId = await givenEndpoint(pool);
    const target = `'{}', endpoint_id => $1`;
    const client = await pool.connect();
    await client.query('begin');
    const kept = await enqueue(client, `'kept', ${target}`, [endpointId]);
    await client.query('savepoint s');
    const dropped = await enqueue(client, `'dropped', ${target}`, [endpointId]);
    expect(await failure(enqueue(client, `'not a type', ${target}`, [endpointId]))).toMatchObject({
      state: 'RL001',
    });
    await client.query('rollback to savepoint s');
    const after = await enqueue(client, `'after', ${target}`, [endpointId]);
    await client.query('commit');
    client.release();
    expect((await stored(kept)).type).toBe('kept');
    expect((await stored(after)).type).toBe('after');
    expect(await stored(dropped)).toBeNull();
    expect((await deliveriesOf(dropped)).length).toBe(0);
  });

  it('may hold many events, from a trigger too, with ids of their own', async () => {
    const tenantId = await givenTenant(pool);
    await givenEndpoint(pool, { tenantId, patterns: ['order.*'] });
    const client = await pool.connect();
    await client.query('begin');
    await client.query(`create table public.orders (id int primary key, total int);
      create function public.tell() returns trigger language plpgsql as $$
      begin
        perform relay.enqueue('order.made', to_jsonb(new), idempotency_key => 'order-' || new.id, tenant => '${tenantId}');
        return null;
      end $$;
      create trigger tell after insert on public.orders for each row execute function public.tell();
      insert into public.orders select n, n * 10 from generate_series(1, 300) n`);
    await client.query('commit');
    client.release();
    const { rows } = await pool.query(
      `select count(distinct e.id)::int as events, count(distinct q.delivery_id)::int as owed
       from relay.events e join relay.queue q on q.event_id = e.id where e.tenant_id = $1`,
      [tenantId],
    );
    expect(rows[0]).toEqual({ events: 300, owed: 300 });
    await pool.query('drop table public.orders; drop function public.tell()');
  });

  it('sends no notification, which would make the commits of all producers take turns', async () => {
    const listener = new pg.Client({ connectionString: database.url });
    await listener.connect();
    let heard = 0;
    listener.on('notification', () => {
      heard += 1;
    });
    await listener.query('listen relay_queue');
    await enqueue(pool, `'x', '{}', endpoint_id => $1`, [await givenEndpoint(pool)]);
    await pool.query(`select pg_notify('relay_queue', 'end')`);
    await eventually(() => expect(heard).toBeGreaterThan(0));
    expect(heard).toBe(1);
    await listener.end();
  });
});

describe('a role that may enqueue', () => {
  async function asProducer<T>(work: (client: pg.PoolClient) => Promise<T>): Promise<T> {
    return inTransaction(async (client) => {
      await client.query('set local role relay_producer');
      return work(client);
    });
  }

  it('enqueues', async () => {
    const endpointId = await givenEndpoint(pool);
    for (const payload of [`'{}'`, `'{}'::json`, `'{}'::jsonb`, `'{}'::bytea`]) {
      const id = await asProducer((client) =>
        enqueue(client, `'x', ${payload}, $1, endpoint_id => $2`, [freshKey(), endpointId]),
      );
      expect(id).toMatch(/0000$/);
    }
  });

  it('can neither read nor change any table or view', async () => {
    const { rows: tables } = await pool.query<{ name: string; kind: string }>(
      `select 'relay.' || quote_ident(c.relname) as name, c.relkind as kind from pg_class c
       where c.relnamespace = 'relay'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'S')`,
    );
    expect(tables.length).toBeGreaterThan(12);
    for (const { name, kind } of tables) {
      const changes = [`delete from ${name}`, `insert into ${name} default values`];
      const statements = [`select from ${name}`, ...(['r', 'p'].includes(kind) ? changes : [])];
      for (const statement of statements) {
        const refused = await failure(asProducer((client) => client.query(statement)));
        expect([statement, refused?.state]).toEqual([statement, '42501']);
      }
    }
  });

  it('can call nothing else that acts with the rights of its owner', async () => {
    const { rows } = await pool.query<{ name: string }>(
      `select p.proname as name from pg_proc p
       where p.pronamespace = 'relay'::regnamespace and p.prosecdef and has_function_privilege('relay_producer', p.oid, 'execute')`,
    );
    expect(rows.map((row) => row.name)).toEqual(Array(1).fill('enqueue'));
    const inner = `select relay.accept_event(null, null, null, null, null, null, null, null)`;
    expect(await failure(asProducer((client) => client.query(inner)))).toMatchObject({ state: '42501' });
  });

  it('cannot have its own functions and tables taken for those of Postgres or Relay', async () => {
    const endpointId = await givenEndpoint(pool);
    await inTransaction(async (client) => {
      await client.query(`create schema trap;
        create function trap.now() returns timestamptz language plpgsql as $$ begin raise exception 'trapped'; end $$;
        create function trap.clock_timestamp() returns timestamptz language plpgsql as $$ begin raise exception 'trapped'; end $$;
        create function trap.sha256(bytea) returns bytea language plpgsql as $$ begin raise exception 'trapped'; end $$;
        create function trap.gen_random_uuid() returns uuid language plpgsql as $$ begin raise exception 'trapped'; end $$;
        create table trap.events (id int); create table pg_temp.tenants (id int);
        set local search_path = trap, pg_temp, pg_catalog; set local standard_conforming_strings = off;
        set local enable_indexscan = off`);
      expect(await enqueue(client, `'x', '{}', $1, endpoint_id => $2`, [freshKey(), endpointId])).toMatch(
        /0000$/,
      );
    });
  });

  it('is granted what the documentation says, by name', async () => {
    const { rows } = await pool.query(
      `select count(*)::int as n from pg_proc p
       where p.pronamespace = 'relay'::regnamespace and p.proname = 'enqueue'
         and has_function_privilege('relay_producer', p.oid, 'execute') and not has_function_privilege('public', p.oid, 'execute')`,
    );
    expect(rows[0].n).toBe(4);
  });
});

describe('an event of Relay’s own', () => {
  it('goes to whom its candidates say, in the transaction that it tells of', async () => {
    const tenantId = await givenTenant(pool);
    const listening = await givenEndpoint(pool, { tenantId, patterns: ['only.this'] });
    await givenEndpoint(pool, { tenantId });
    const digest = createHash('sha256').update(randomUUID()).digest();
    const { rows } = await pool.query(
      `select relay.accept_event($1, '~told', 'application/json', $2, null, null, null, '{only.this}') as id`,
      [tenantId, digest],
    );
    const { rows: deliveries } = await pool.query(
      'select endpoint_id from relay.deliveries where event_id = $1',
      [rows[0].id],
    );
    expect(deliveries).toEqual([{ endpoint_id: listening }]);
    expect((await stored(rows[0].id)).payload.equals(digest)).toBe(true);
  });
});
