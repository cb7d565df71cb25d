import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import { plainArray } from './array-literal.ts';
import { byteaArray } from './binary-array.ts';
import { deliveryId, eventIdTail } from './event-ids.ts';
import { createPool, type PoolPurpose } from './pool.ts';

let database: TestDatabase;

beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(async () => {
  await database.drop();
});

describe('a connection of a pool', () => {
  const expected: Record<PoolPurpose, Record<string, string>> = {
    ingest: {
      lock_timeout: '250ms',
      statement_timeout: '10s',
      enable_seqscan: 'off',
      enable_hashjoin: 'off',
    },
    ingest_alone: { lock_timeout: '20ms', statement_timeout: '10s', enable_seqscan: 'off' },
    hot: { lock_timeout: '0', statement_timeout: '15s', enable_mergejoin: 'off', enable_bitmapscan: 'off' },
    sweep: {
      statement_timeout: '5s',
      plan_cache_mode: 'force_generic_plan',
      idle_in_transaction_session_timeout: '10s',
    },
    general: { statement_timeout: '15s', idle_in_transaction_session_timeout: '30s', enable_seqscan: 'on' },
    search: { statement_timeout: '5s', enable_seqscan: 'off', plan_cache_mode: 'auto' },
    migrate: { statement_timeout: '0', lock_timeout: '10s', enable_seqscan: 'on' },
  };

  it.each(Object.keys(expected) as PoolPurpose[])(
    'for %s has its settings from its first statement',
    async (purpose) => {
      const pool = createPool({ url: database.url, purpose, max: 1, applicationName: 'named' });
      const names = ['TimeZone', 'jit', 'application_name', ...Object.keys(expected[purpose])];
      const { rows } = await pool.query(
        'select name, current_setting(name) as value from unnest($1::text[]) name',
        [names],
      );
      const settings = Object.fromEntries(rows.map((row) => [row.name, row.value]));
      expect(settings).toEqual({
        TimeZone: 'UTC',
        jit: 'off',
        application_name: 'named',
        ...expected[purpose],
      });
      await pool.end();
    },
  );

  it('that dies while idle is reported, and replaced', async () => {
    const errors: Error[] = [];
    const onIdleError = (error: Error) => errors.push(error);
    const pool = createPool({
      url: database.url,
      purpose: 'hot',
      max: 1,
      applicationName: 'idle-victim',
      onIdleError,
    });
    const other = createPool({ url: database.url, purpose: 'general', max: 1, applicationName: 'test' });
    await pool.query('select 1');
    await other.query(
      `select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'idle-victim' and datname = current_database()`,
    );
    await expect.poll(() => errors.length).toBeGreaterThan(0);
    expect((await pool.query('select 2 as two')).rows).toEqual([{ two: 2 }]);
    await Promise.all([pool.end(), other.end()]);
  });
});

describe('parameters in a form of our own', () => {
  it('bytes come back as they went, in any number, absent ones too', async () => {
    const pool = createPool({ url: database.url, purpose: 'hot', max: 1, applicationName: 'test' });
    const payloads = fc.array(fc.option(fc.uint8Array({ maxLength: 300 }), { nil: null }), { maxLength: 20 });
    await fc.assert(
      fc.asyncProperty(payloads, async (arrays) => {
        const values = arrays.map((bytes) => bytes && Buffer.from(bytes));
        const { rows } = await pool.query(
          'select v from unnest($1::bytea[]) with ordinality u(v, n) order by n',
          [byteaArray(values)],
        );
        expect(rows.map((row) => row.v)).toEqual(values);
      }),
      { numRuns: 60 },
    );
    await pool.end();
  });

  it('uuids likewise', async () => {
    const pool = createPool({ url: database.url, purpose: 'hot', max: 1, applicationName: 'test' });
    await fc.assert(
      fc.asyncProperty(fc.array(fc.uuid(), { maxLength: 20 }), async (ids) => {
        const { rows } = await pool.query('select $1::uuid[] as ids', [plainArray(ids)]);
        expect(rows[0].ids).toEqual(ids);
      }),
      { numRuns: 30 },
    );
    await pool.end();
  });
});

describe('the names of an event and its deliveries', () => {
  it('have a tail of twenty hex digits that rises with the place in the batch', () => {
    const tails = Array.from({ length: 1_000 }, (_, place) => eventIdTail(place, 'fffffffffff'));
    for (const tail of tails) expect(tail).toMatch(/^7[0-9a-f]{3}8f{11}0{4}$/);
    expect([...tails].sort()).toEqual(tails);
  });

  it('number deliveries from 1 to 65,535 in the order of their ids', () => {
    const event = '01a22fb6-474a-7000-89bf-180a53390000';
    expect([1, 255, 65_535].map((n) => deliveryId(event, n).slice(-4))).toEqual(['0001', '00ff', 'ffff']);
    expect(deliveryId(event, 1).slice(0, 32)).toBe(event.slice(0, 32));
  });
});
