import type pg from 'pg';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { createPool } from '../../../lib/store/pool.ts';
import { createTestDatabase, type TestDatabase } from '../../testing/database.ts';
import { type GivenAcceptor, givenAcceptor } from '../../testing/given-acceptor.ts';
import { givenEndpoint } from '../../testing/given-queue.ts';
import type { AcceptResult } from './acceptor.ts';

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

const many = <T>(count: number, make: (n: number) => T) => Array.from({ length: count }, (_, n) => make(n));
const kinds = (results: readonly AcceptResult[]) => results.map(({ kind }) => kind);
const countOf = (results: readonly AcceptResult[], kind: AcceptResult['kind']) =>
  kinds(results).filter((k) => k === kind).length;

async function eventsUnder(key: string): Promise<number> {
  const { rows } = await pool.query(
    'select count(*)::int as n from relay.events e join relay.idempotency_keys k on k.event_id = e.id where k.key = $1',
    [key],
  );
  return rows[0].n;
}

async function events(): Promise<number> {
  return (await pool.query('select count(*)::int as n from relay.events')).rows[0].n;
}

describe('a hundred requests with one key', () => {
  it('make one event, and all get the same answer', async () => {
    const before = await events();
    const results = await Promise.all(many(100, () => given.accept({ idempotencyKey: 'hundred' })));
    const answers = results.map((result) =>
      result.kind === 'accepted' ? [result.eventId, ...result.deliveryIds].join() : result.kind,
    );
    expect(new Set(answers).size).toBe(1);
    expect(results.filter((result) => result.kind === 'accepted' && !result.replayed).length).toBe(1);
    expect([await events(), await eventsUnder('hundred')]).toEqual([before + 1, 1]);
  });

  it('through several APIs too', async () => {
    const fleet = [given, givenAcceptor(database.url), givenAcceptor(database.url)];
    const before = await events();
    for (let round = 0; round < 5; round += 1) {
      const results = await Promise.all(
        many(90, (n) => fleet[n % 3]!.accept({ idempotencyKey: `fleet-${round}` })),
      );
      expect(
        new Set(results.map((result) => (result.kind === 'accepted' ? result.eventId : result.kind))).size,
      ).toBe(1);
    }
    expect(await events()).toBe(before + 5);
    await Promise.all(fleet.slice(1).map((one) => one.close()));
  });

  it('of which some ask for something else make one event and that many conflicts', async () => {
    const results = await Promise.all(
      many(100, (n) =>
        given.accept({ idempotencyKey: 'two-minds', payload: Buffer.from(n % 4 === 1 ? 'other' : 'first') }),
      ),
    );
    expect([countOf(results, 'accepted'), countOf(results, 'conflict')]).toEqual([75, 25]);
    expect(await eventsUnder('two-minds')).toBe(1);
  });
});

describe('a request that is repeated later', () => {
  it('gets the first answer, with every delivery of the first time', async () => {
    await givenEndpoint(pool);
    const first = await given.accept({ idempotencyKey: 'later' });
    await givenEndpoint(pool);
    const again = await given.accept({ idempotencyKey: 'later' });
    expect(first).toMatchObject({ kind: 'accepted', replayed: false });
    expect(again).toEqual({ ...first, replayed: true });
  });

  it.each([
    ['payload', { payload: Buffer.from('else') }],
    ['type', { type: 'order.lost' }],
    ['content type', { contentType: 'text/plain' }],
  ])('with another %s conflicts', async (name, change) => {
    await given.accept({ idempotencyKey: `changed-${name}` });
    expect(await given.accept({ idempotencyKey: `changed-${name}`, ...change })).toEqual({
      kind: 'conflict',
    });
  });

  it('after its key expired is a new one, once', async () => {
    const [first] = await Promise.all([given.accept({ idempotencyKey: 'expired' })]);
    await pool.query(`update relay.idempotency_keys set expires_at = now() where key = 'expired'`);
    const before = await events();
    const results = await Promise.all(many(20, () => given.accept({ idempotencyKey: 'expired' })));
    const ids = new Set(results.map((result) => (result.kind === 'accepted' ? result.eventId : result.kind)));
    expect(ids.size).toBe(1);
    expect(ids).not.toContain(first.kind === 'accepted' && first.eventId);
    expect(await events()).toBe(before + 1);
  });

  it('after its refusal is judged anew: a refusal takes no key', async () => {
    const targetEndpointId = await givenEndpoint(pool, { disabled: true });
    const request = { idempotencyKey: 'refused', targetEndpointId };
    expect(await given.accept(request)).toEqual({ kind: 'no_target' });
    await pool.query('update relay.endpoints set enabled = true, disabled_reason = null where id = $1', [
      targetEndpointId,
    ]);
    expect(await given.accept(request)).toMatchObject({ kind: 'accepted', replayed: false });
  });
});

describe('a key that an open transaction holds', () => {
  async function hold(keys: readonly string[]): Promise<{ end(how: 'commit' | 'rollback'): Promise<void> }> {
    const holder = await pool.connect();
    await holder.query('begin');
    await holder.query(
      `insert into relay.idempotency_keys (tenant_id, key, digest, event_id, expires_at)
       select '00000000-0000-0000-0000-000000000001', unnest($1::text[]), '\\x00', gen_random_uuid(), now() + interval '1 day'`,
      [keys],
    );
    return {
      async end(how) {
        await holder.query(how);
        holder.release();
      },
    };
  }

  it('is answered as in progress after 2 s, and holds up nobody else meanwhile', async () => {
    const held = await hold(['held']);
    let answered = false;
    const started = performance.now();
    const waiting = given.accept({ idempotencyKey: 'held' }).finally(() => {
      answered = true;
    });
    const slowest: number[] = [];
    let accepted = 0;
    while (!answered) {
      const at = performance.now();
      const results = await Promise.all(
        many(20, (n) => given.accept({ idempotencyKey: n % 2 ? `free-${at}-${n}` : null })),
      );
      accepted += countOf(results, 'accepted');
      slowest.push(performance.now() - at);
    }
    expect(await waiting).toEqual({ kind: 'in_progress' });
    expect(performance.now() - started).toBeGreaterThan(1_900);
    expect(performance.now() - started).toBeLessThan(4_000);
    expect(accepted).toBe(slowest.length * 20);
    // The batch that met the key first waits 250 ms for it; nobody does after that.
    expect(slowest.sort((a, b) => a - b)[Math.floor(slowest.length * 0.8)]).toBeLessThan(200);
    expect(slowest.length).toBeGreaterThan(15);
    await held.end('rollback');
    expect(await given.accept({ idempotencyKey: 'held' })).toMatchObject({
      kind: 'accepted',
      replayed: false,
    });
  });

  it('among three hundred others that are held holds up nobody else either', async () => {
    const keys = many(300, (n) => `held-${n}`);
    const held = await hold(keys);
    const waiting = keys.map((idempotencyKey) => given.accept({ idempotencyKey }));
    const results: AcceptResult[] = [];
    for (let round = 0; round < 5; round += 1) {
      results.push(
        ...(await Promise.all(
          many(40, (n) => given.accept({ idempotencyKey: n % 2 ? `beside-${round}-${n}` : null })),
        )),
      );
    }
    expect(countOf(results, 'accepted')).toBe(200);
    expect(new Set(kinds(await Promise.all(waiting)))).toEqual(new Set(['in_progress']));
    await held.end('rollback');
  });

  it('and then is given up by its holder is taken at once', async () => {
    const held = await hold(['given-up']);
    const waiting = given.accept({ idempotencyKey: 'given-up' });
    await someoneWaits();
    await held.end('rollback');
    expect(await waiting).toMatchObject({ kind: 'accepted', replayed: false });
    expect(await eventsUnder('given-up')).toBe(1);
  });

  it('and then is committed by its holder is that of another request', async () => {
    const held = await hold(['taken']);
    const waiting = given.accept({ idempotencyKey: 'taken' });
    await someoneWaits();
    await held.end('commit');
    expect(await waiting).toEqual({ kind: 'conflict' });
  });

  async function someoneWaits(): Promise<void> {
    await expect
      .poll(
        async () =>
          (
            await pool.query(
              `select from pg_stat_activity where application_name = 'test-acceptor' and wait_event_type = 'Lock'`,
            )
          ).rowCount,
        { interval: 2, timeout: 5_000 },
      )
      .toBeGreaterThan(0);
  }
});
