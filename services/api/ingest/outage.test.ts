import type pg from 'pg';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { createPool, type PoolPurpose } from '../../../lib/store/pool.ts';
import { createTestDatabase, type TestDatabase } from '../../testing/database.ts';
import { eventually } from '../../testing/eventually.ts';
import { type GivenAcceptor, givenAcceptor } from '../../testing/given-acceptor.ts';
import { givenEndpoint } from '../../testing/given-queue.ts';
import { startTcpProxy, type TcpProxy } from '../../testing/tcp-proxy.ts';
import type { AcceptResult } from './acceptor.ts';

let database: TestDatabase;
let pool: pg.Pool;
let proxy: TcpProxy;
let given: GivenAcceptor;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 3, applicationName: 'test' });
  await givenEndpoint(pool);
});
beforeEach(async () => {
  proxy = await startTcpProxy(database.url);
  given = givenAcceptor(proxy.url);
});
afterEach(async () => {
  await given.close();
  await proxy.close();
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

const many = <T>(count: number, make: (n: number) => T) => Array.from({ length: count }, (_, n) => make(n));
const kinds = (results: readonly AcceptResult[]) => new Set(results.map(({ kind }) => kind));

async function events(type: string): Promise<number> {
  return (await pool.query('select from relay.events where type = $1', [type])).rowCount ?? 0;
}

/** Sessions of the acceptor that are inside a statement. */
async function nobodyIsBusy(): Promise<void> {
  await eventually(async () => {
    const { rowCount } = await pool.query(
      `select from pg_stat_activity where application_name = 'test-acceptor' and state = 'active'`,
    );
    expect(rowCount).toBe(0);
  });
}

describe('a session that is ended inside its commit', () => {
  beforeAll(async () => {
    await pool.query(`
      create function relay.end_session() returns trigger language plpgsql as $$
      begin
        if new.type = 'cut' then perform pg_terminate_backend(pg_backend_pid()); end if;
        return null;
      end $$;
      create constraint trigger end_session after insert on relay.events deferrable initially deferred
        for each row execute function relay.end_session()`);
  });
  afterAll(async () => {
    await pool.query('drop function relay.end_session() cascade');
  });

  it.each(['plain', 'keyed'])(
    'leaves every %s member of the batch without a promise, and nobody tries again',
    async (kind) => {
      const key = (n: number) => (kind === 'keyed' ? `cut-${n}` : null);
      const results = await Promise.all(
        many(10, (n) => given.accept({ type: n === 4 ? 'cut' : `beside.${kind}`, idempotencyKey: key(n) })),
      );
      expect(kinds(results)).toEqual(new Set(['commit_unknown']));
      expect(await given.metric('relay_ingest_commit_unknown_total')).toBe(10);
      expect(await given.metric('relay_ingest_batch_size')).toBe(1);
      await nobodyIsBusy();
      expect([await events(`beside.${kind}`), await events('cut')]).toEqual([0, 0]);
      expect(await given.accept({ type: `after.${kind}` })).toMatchObject({ kind: 'accepted' });
    },
  );
});

describe('a wire that breaks after the statement was sent', () => {
  const cutAt = (marker: string) => proxy.cutAfter((bytes) => bytes.includes(marker));

  it('leaves the outcome unknown; what was committed stands once', async () => {
    await given.accept();
    cutAt('cut here');
    const results = await Promise.all(
      many(10, () => given.accept({ type: 'wire', payload: Buffer.from('cut here') })),
    );
    expect(kinds(results)).toEqual(new Set(['commit_unknown']));
    await eventually(async () => expect(await events('wire')).toBe(10));
    await nobodyIsBusy();
    expect(await events('wire')).toBe(10);
  });

  it('leaves keyed requests safe to send again', async () => {
    await given.accept({ idempotencyKey: 'warm' });
    cutAt('cut keyed');
    const request = { type: 'wire.keyed', idempotencyKey: 'again', payload: Buffer.from('cut keyed') };
    expect(await given.accept(request)).toEqual({ kind: 'commit_unknown' });
    await eventually(async () => expect(await events('wire.keyed')).toBe(1));
    expect(await given.accept(request)).toMatchObject({ kind: 'accepted', replayed: true });
    expect(await events('wire.keyed')).toBe(1);
  });

  it('under the first of many with one key leaves all of them without a promise', async () => {
    await given.accept({ idempotencyKey: 'warm' });
    cutAt('cut many');
    const request = { type: 'wire.many', idempotencyKey: 'many', payload: Buffer.from('cut many') };
    const results = await Promise.all(many(20, () => given.accept(request)));
    expect(kinds(results)).toEqual(new Set(['commit_unknown']));
    await eventually(async () => expect(await events('wire.many')).toBe(1));
  });
});

describe('a database that is away', () => {
  it('accepts nothing, says so soon, and everything again when it is back', async () => {
    await given.accept();
    proxy.refuse();
    const started = performance.now();
    const results = await Promise.all(
      many(50, (n) => given.accept({ type: 'away', idempotencyKey: n % 2 ? `away-${n}` : null })),
    );
    expect(performance.now() - started).toBeLessThan(6_000);
    expect(kinds(results)).toEqual(new Set(['unavailable']));
    proxy.pass();
    expect(await given.accept({ type: 'away' })).toMatchObject({ kind: 'accepted' });
    expect(await events('away')).toBe(1);
  });

  it('does not answer a connection attempt: requests end within their limit, unanswered by a yes', {
    timeout: 20_000,
  }, async () => {
    proxy.swallow();
    const started = performance.now();
    const results = await Promise.all(many(20, () => given.accept({ type: 'silent' })));
    expect(performance.now() - started).toBeLessThan(12_000);
    for (const { kind } of results) expect(['unavailable', 'overloaded']).toContain(kind);
    proxy.pass();
    await eventually(
      async () => expect(await given.accept({ type: 'silent' })).toMatchObject({ kind: 'accepted' }),
      8_000,
    );
    expect(await events('silent')).toBe(1);
  });

  it('and cuts idle sessions costs at most a promise: whoever is told yes is stored', async () => {
    await Promise.all(many(30, (n) => given.accept({ idempotencyKey: n % 2 ? `idle-${n}` : null })));
    await pool.query(
      `select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'test-acceptor' and datname = current_database()`,
    );
    const results = await Promise.all(many(30, () => given.accept({ type: 'after.idle' })));
    for (const { kind } of results) expect(['accepted', 'commit_unknown', 'unavailable']).toContain(kind);
    await eventually(async () => {
      const later = await Promise.all(many(30, () => given.accept({ type: 'after.idle' })));
      expect(kinds(later)).toEqual(new Set(['accepted']));
      results.push(...later);
    });
    for (const result of results) {
      if (result.kind !== 'accepted') continue;
      expect((await pool.query('select from relay.events where id = $1', [result.eventId])).rowCount).toBe(1);
    }
  });
});

describe('fewer connections than requests', () => {
  it('hold nobody up for ever', async () => {
    const one = (purpose: PoolPurpose) =>
      createPool({ url: database.url, purpose, max: 1, applicationName: 'narrow' });
    const [ingest, general] = [one('ingest'), one('general')];
    const shared = { plainPool: ingest, keyedPool: ingest, alonePool: ingest, generalPool: general };
    const narrow = givenAcceptor(database.url, { ...shared, maxBatch: 4 });
    const results = await Promise.all(
      many(60, (n) => narrow.accept({ idempotencyKey: n % 2 ? `narrow-${n % 8}` : null })),
    );
    expect(kinds(results)).toEqual(new Set(['accepted']));
    await narrow.close();
    await Promise.all([ingest.end(), general.end()]);
  });
});
