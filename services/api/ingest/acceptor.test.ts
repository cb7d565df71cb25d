import type pg from 'pg';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { RedisLink } from '../../../lib/broker/link.ts';
import { createPool } from '../../../lib/store/pool.ts';
import { listenQueue } from '../../../lib/store/wake.ts';
import { createTestDatabase, type TestDatabase } from '../../testing/database.ts';
import { eventually } from '../../testing/eventually.ts';
import { type GivenAcceptor, givenAcceptor, newRequest } from '../../testing/given-acceptor.ts';
import { givenBroker, givenConsumer, givenLink } from '../../testing/given-broker.ts';
import { givenEndpoint } from '../../testing/given-queue.ts';
import { createTestRedis } from '../../testing/redis.ts';
import { queueRow } from '../../testing/stored-rows.ts';
import { startTcpProxy } from '../../testing/tcp-proxy.ts';
import type { AcceptResult, EventRequest } from './acceptor.ts';

let database: TestDatabase;
let pool: pg.Pool;
let given: GivenAcceptor;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 6, applicationName: 'test' });
  await givenEndpoint(pool);
});
beforeEach(() => {
  given = givenAcceptor(database.url);
});
afterEach(async () => {
  await given.close();
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

async function events(type: string): Promise<number> {
  return (await pool.query('select from relay.events where type = $1', [type])).rowCount ?? 0;
}

function requireAccepted(result: AcceptResult | undefined): {
  eventId: string;
  deliveryIds: string[];
  replayed: boolean;
} {
  if (result?.kind !== 'accepted') throw new Error(`not accepted: ${result?.kind}`);
  return result;
}

const kinds = (results: readonly AcceptResult[]) => results.map(({ kind }) => kind);
const many = <T>(count: number, make: (n: number) => T) => Array.from({ length: count }, (_, n) => make(n));

describe('requests in flight at the same moment', () => {
  it('share statements, and each is answered with its own event', async () => {
    const results = await Promise.all(
      many(200, (n) => given.accept({ type: 'shared', payload: Buffer.from(`${n}`) })),
    );
    expect(await given.metric('relay_ingest_batch_size')).toBeLessThan(10);
    for (const [n, result] of results.entries()) {
      const { eventId, deliveryIds } = requireAccepted(result);
      const { rows } = await pool.query(
        'select e.payload from relay.events e join relay.deliveries d on d.event_id = e.id where e.id = $1 and d.id = any($2)',
        [eventId, deliveryIds],
      );
      expect(rows).toEqual([{ payload: Buffer.from(`${n}`) }]);
    }
  });

  it('with keys and without never share one', async () => {
    await Promise.all(many(20, (n) => given.accept({ idempotencyKey: n % 2 ? `apart-${n}` : null })));
    const { rows } = await pool.query(
      `select count(distinct xmin::text)::int as n from relay.idempotency_keys where key like 'apart-%'`,
    );
    const { rows: shared } = await pool.query(
      `select count(*)::int as n from relay.events e where e.xmin::text in (select xmin::text from relay.idempotency_keys)
       and not exists (select from relay.idempotency_keys k where k.event_id = e.id)`,
    );
    expect([rows[0].n, shared[0].n]).toEqual([1, 0]);
  });

  it('are refused past the bound, at once, and taken again later', async () => {
    const small = givenAcceptor(database.url, { maxQueued: 5 });
    const results = await Promise.all(many(9, () => small.accept({ type: 'bounded' })));
    expect(kinds(results).sort()).toEqual([...Array(5).fill('accepted'), ...Array(4).fill('overloaded')]);
    expect(requireAccepted(await small.accept({ type: 'bounded' })).deliveryIds.length).toBe(1);
    expect(small.acceptor.queued).toBe(0);
    await small.close();
    expect(await events('bounded')).toBe(6);
  });

  it('are all answered before a close ends', async () => {
    const closing = givenAcceptor(database.url);
    const results = Promise.all(
      many(50, (n) => closing.accept({ idempotencyKey: n % 2 ? `close-${n}` : null })),
    );
    await closing.close();
    expect(new Set(kinds(await results))).toEqual(new Set(['accepted']));
  });
});

describe('requests that come together', () => {
  const all = (count: number, make: (n: number) => Partial<EventRequest>) =>
    given.acceptor.acceptAll(many(count, (n) => newRequest(make(n))));

  it.each(['plain', 'keyed'])('share one commit, however many: %s ones', async (kind) => {
    const type = `together.${kind}`;
    const results = await all(700, (n) => ({
      type,
      payload: Buffer.from(`${n}`),
      idempotencyKey: kind === 'keyed' ? `together-${n}` : null,
    }));
    const { rows } = await pool.query(
      'select count(distinct xmin::text)::int as commits, count(*)::int as n from relay.events where type = $1',
      [type],
    );
    expect(rows).toEqual([{ commits: 1, n: 700 }]);
    const ids = results.map((result) => requireAccepted(result).eventId);
    const stored = await pool.query('select id, payload from relay.events where id = any($1)', [ids]);
    const payloads = new Map(stored.rows.map((row) => [row.id, String(row.payload)]));
    expect(ids.map((id) => payloads.get(id))).toEqual(many(700, String));
  });

  it('share one for those with keys and one for those without', async () => {
    await all(40, (n) => ({ type: 'mixed', idempotencyKey: n % 2 ? `mixed-${n}` : null }));
    const { rows } = await pool.query(
      `select count(*)::int as n from relay.events where type = 'mixed' group by xmin::text`,
    );
    expect(rows).toEqual([{ n: 20 }, { n: 20 }]);
  });

  it('with one key are one event, and those that ask for something else conflict', async () => {
    const results = await all(9, (n) => ({
      idempotencyKey: 'folded',
      payload: Buffer.from(n % 3 === 2 ? 'other' : 'first'),
    }));
    expect(kinds(results)).toEqual(many(9, (n) => (n % 3 === 2 ? 'conflict' : 'accepted')));
    const accepted = results.filter((result) => result.kind === 'accepted');
    expect(new Set(accepted.map((result) => result.eventId)).size).toBe(1);
    expect(accepted.map((result) => result.replayed)).toEqual([false, ...Array(5).fill(true)]);
  });

  it.each([50, 700])('lose nobody to a key that an open transaction holds: %i of them', async (count) => {
    const holder = await pool.connect();
    await holder.query('begin');
    await holder.query(
      `insert into relay.idempotency_keys (tenant_id, key, digest, event_id, expires_at)
       values ('00000000-0000-0000-0000-000000000001', 'kept-3', '\\x00', gen_random_uuid(), now() + interval '1 day')`,
    );
    const before = await given.metric('relay_ingest_batch_size');
    const results = await all(count, (n) => ({ idempotencyKey: n === 3 ? 'kept-3' : `kept-${count}-${n}` }));
    await holder.query('rollback');
    holder.release();
    expect(kinds(results)).toEqual(many(count, (n) => (n === 3 ? 'in_progress' : 'accepted')));
    // Whoever waits looks some fifteen times.
    expect((await given.metric('relay_ingest_batch_size')) - before).toBeLessThan(100);
  });

  it('are refused as one when too much waits already, and taken as one when it does not', async () => {
    const small = givenAcceptor(database.url, { maxQueued: 5 });
    const batch = (count: number) => small.acceptor.acceptAll(many(count, () => newRequest()));
    const results = await Promise.all([batch(20), batch(3)]);
    expect(results.map((of) => new Set(kinds(of)))).toEqual([new Set(['accepted']), new Set(['overloaded'])]);
    expect(small.acceptor.queued).toBe(0);
    await small.close();
  });
});

describe('a target', () => {
  it('that cannot be is answered so, and costs its neighbours nothing', async () => {
    const [aimless, neighbour] = await Promise.all([
      given.accept({ targetEndpointId: '00000000-0000-4000-8000-000000000000' }),
      given.accept(),
    ]);
    expect(kinds([aimless, neighbour])).toEqual(['no_target', 'accepted']);
  });
});

describe('an event that the database refuses', () => {
  beforeAll(async () => {
    await pool.query(`
      create function relay.refuse_poison() returns trigger language plpgsql as $$
      begin
        if new.type = 'poison' then raise exception 'poison' using errcode = '22023'; end if;
        return new;
      end $$;
      create trigger refuse_poison before insert on relay.events for each row execute function relay.refuse_poison()`);
  });
  afterAll(async () => {
    await pool.query('drop function relay.refuse_poison() cascade');
  });

  it.each(['plain', 'keyed'])('fails alone among %s ones', async (kind) => {
    const key = (n: number) => (kind === 'keyed' ? `poisoned-${n}` : null);
    const results = await Promise.all(
      many(20, (n) => given.accept({ type: n === 7 ? 'poison' : `beside.${kind}`, idempotencyKey: key(n) })),
    );
    expect(results[7]).toEqual({ kind: 'rejected', message: 'poison' });
    for (const [n, result] of results.entries()) if (n !== 7) requireAccepted(result);
    expect([await events(`beside.${kind}`), await events('poison')]).toEqual([19, 0]);
    const together = await given.acceptor.acceptAll(
      many(20, (n) =>
        newRequest({
          type: n === 7 ? 'poison' : `together.beside.${kind}`,
          idempotencyKey: kind === 'keyed' ? `poisoned-together-${n}` : null,
        }),
      ),
    );
    expect(kinds(together)).toEqual(many(20, (n) => (n === 7 ? 'rejected' : 'accepted')));
    expect(await events(`together.beside.${kind}`)).toBe(19);
  });

  it.each(['plain', 'keyed'])('is found among seven hundred %s ones without trying each', async (kind) => {
    const results = await given.acceptor.acceptAll(
      many(700, (n) =>
        newRequest({
          type: n === 431 ? 'poison' : `many.beside.${kind}`,
          idempotencyKey: kind === 'keyed' ? `poisoned-many-${n}` : null,
        }),
      ),
    );
    expect(kinds(results)).toEqual(many(700, (n) => (n === 431 ? 'rejected' : 'accepted')));
    expect(await given.metric('relay_ingest_batch_size')).toBeLessThan(60);
    expect((await pool.query(`select from relay.idempotency_keys where key = 'poisoned-7'`)).rowCount).toBe(
      0,
    );
  });
});

describe('a table that somebody locks', () => {
  it('is waited for a little, then everybody is told that nothing was stored, and soon', async () => {
    const locker = await pool.connect();
    await locker.query('begin');
    await locker.query('lock table relay.events in share mode');
    const started = performance.now();
    const results = await Promise.all(many(100, () => given.accept({ type: 'locked.out' })));
    expect(performance.now() - started).toBeLessThan(4_000);
    expect(new Set(kinds(results))).toEqual(new Set(['unavailable']));
    await locker.query('rollback');
    locker.release();
    requireAccepted(await given.accept({ type: 'locked.out' }));
    expect(await events('locked.out')).toBe(1);
  });
});

describe('what was committed', () => {
  let link: RedisLink;
  const redis = createTestRedis();

  beforeEach(async () => {
    link = await givenLink(givenBroker(redis.url));
  });
  afterEach(async () => {
    await link.stop();
  });

  it('is announced after its commit', async () => {
    const announcing = givenAcceptor(database.url, { link });
    const results = await Promise.all(many(30, () => announcing.accept()));
    await announcing.close();
    const reader = givenConsumer(link);
    const read = (await reader.read(100)).flatMap(({ deliveryIds }) => deliveryIds);
    expect(read.sort()).toEqual(results.flatMap((result) => requireAccepted(result).deliveryIds).sort());
    expect(await announcing.metric('relay_ingest_announced_total')).toBe(30);
    await reader.leave();
  });

  it('is announced only when its commit is done, and what rolls back late never', async () => {
    await pool.query(`
      create function relay.commit_when_let() returns trigger language plpgsql as $$
      begin
        if new.type like 'slow.%' then perform pg_advisory_xact_lock_shared(77); end if;
        if new.type = 'slow.failing' then raise exception 'too late' using errcode = '53100'; end if;
        return null;
      end $$;
      create constraint trigger commit_when_let after insert on relay.events deferrable initially deferred
        for each row execute function relay.commit_when_let()`);
    const gate = await pool.connect();
    const announcing = givenAcceptor(database.url, { link });
    const reader = givenConsumer(link);

    await gate.query('select pg_advisory_lock(77)');
    const failing = announcing.accept({ type: 'slow.failing' });
    expect(await reader.read(10)).toEqual([]);
    await gate.query('select pg_advisory_unlock(77)');
    expect(await failing).toEqual({ kind: 'unavailable' });

    await gate.query('select pg_advisory_lock(77)');
    const good = announcing.accept({ type: 'slow.good' });
    expect(await reader.read(10)).toEqual([]);
    await gate.query('select pg_advisory_unlock(77)');
    const { deliveryIds } = requireAccepted(await good);
    await announcing.close();
    expect((await reader.read(10)).flatMap((entry) => entry.deliveryIds)).toEqual(deliveryIds);
    expect(await events('slow.failing')).toBe(0);
    await reader.leave();
    gate.release();
    await pool.query('drop function relay.commit_when_let() cascade');
  });

  it('for later is not announced', async () => {
    const announcing = givenAcceptor(database.url, { link });
    requireAccepted(await announcing.accept({ deliverAt: new Date(Date.now() + 60_000) }));
    await announcing.close();
    expect(await announcing.metric('relay_ingest_announced_total')).toBe(0);
  });

  it('in poll mode is due to be found, and whoever polls is woken', async () => {
    let wakes = 0;
    const listener = await listenQueue(database.url, 'test', () => {
      wakes += 1;
    });
    const polled = givenAcceptor(database.url, { link, pollMode: () => true });
    const results = await Promise.all(many(50, () => polled.accept()));
    await eventually(() => expect(wakes).toBeGreaterThan(0));
    expect(wakes).toBeLessThan(10);
    const row = await queueRow(pool, requireAccepted(results[0]).deliveryIds[0]!);
    expect([row.announced_in, row.look_in]).toEqual([null, row.due_in]);
    await polled.close();
    expect(await polled.metric('relay_ingest_announced_total')).toBe(0);
    await listener.close();
  });

  it('and could not be announced is set back to be found, and whoever polls is woken', async () => {
    let wakes = 0;
    const listener = await listenQueue(database.url, 'test', () => {
      wakes += 1;
    });
    const proxy = await startTcpProxy(redis.url);
    const far = await givenLink(givenBroker(proxy.url));
    const losing = givenAcceptor(database.url, { link: far });
    proxy.refuse();
    const started = performance.now();
    const [id] = requireAccepted(await losing.accept()).deliveryIds;
    expect(performance.now() - started).toBeLessThan(1_000);
    await eventually(async () => {
      const row = await queueRow(pool, id!);
      expect([row.announced_in, row.look_in <= 0]).toEqual([null, true]);
    });
    await eventually(() => expect(wakes).toBeGreaterThan(0));
    expect(await losing.metric('relay_ingest_announce_failed_total')).toBe(1);
    await losing.close();
    await far.stop();
    await proxy.close();
    await listener.close();
  });

  it('is answered though nobody can be told of it: a Redis that never was', async () => {
    const nowhere = new RedisLink(givenBroker('redis://127.0.0.1:1'));
    const losing = givenAcceptor(database.url, { link: nowhere });
    requireAccepted(await losing.accept());
    await losing.close();
    await nowhere.stop();
  });
});
