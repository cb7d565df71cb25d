import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import { startTcpProxy } from '../../services/testing/tcp-proxy.ts';
import { isTransient, judgeFailure, sqlState } from './failure.ts';
import { createPool } from './pool.ts';

let database: TestDatabase;
let pool: pg.Pool;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'ingest', max: 2, applicationName: 'test' });
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

async function failureOf(work: Promise<unknown>): Promise<unknown> {
  return work.then(
    () => expect.fail('it worked'),
    (error: unknown) => error,
  );
}

function reported(code: string): pg.DatabaseError {
  const error = new pg.DatabaseError('reported', 8, 'error');
  error.code = code;
  return error;
}

describe('a failure of a statement', () => {
  it.each(['21000', '22021', '22P02', '23505', '23514', '40001', '40P01', '55P03'])(
    '%s may be one row’s fault',
    (code) => {
      expect(judgeFailure(reported(code))).toBe('data');
    },
  );

  it.each(['25006', '42501', '53100', '53300', '42P01', 'XX000'])(
    '%s was reported, and no row is to blame',
    (code) => {
      expect(judgeFailure(reported(code))).toBe('refused');
    },
  );

  it.each(['57014', '57P01', '57P02', '57P03', '08006'])(
    '%s leaves it unknown whether it committed',
    (code) => {
      expect(judgeFailure(reported(code))).toBe('unknown');
    },
  );

  it('that is no report of Postgres leaves it unknown', () => {
    const withCode = Object.assign(new Error('read ECONNRESET'), { code: 'ECONNRESET' });
    for (const error of [withCode, new Error('Query read timeout'), null, 'text']) {
      expect(judgeFailure(error)).toBe('unknown');
      expect(sqlState(error)).toBeNull();
      expect(isTransient(error)).toBe(false);
    }
  });

  it('is transient when another transaction is to blame', () => {
    expect(['40001', '40P01', '55P03'].map((code) => isTransient(reported(code)))).toEqual([
      true,
      true,
      true,
    ]);
    expect(['23505', '22021', '57014'].map((code) => isTransient(reported(code)))).toEqual([
      false,
      false,
      false,
    ]);
  });
});

describe('what the driver really throws', () => {
  it('for bad data', async () => {
    const error = await failureOf(pool.query('select $1::text', ['a\0b']));
    expect([sqlState(error), judgeFailure(error)]).toEqual(['22021', 'data']);
  });

  it('for a statement that ran too long', async () => {
    const client = await pool.connect();
    await client.query('set statement_timeout = 20');
    expect(judgeFailure(await failureOf(client.query('select pg_sleep(5)')))).toBe('unknown');
    client.release(true);
  });

  it('for a session that was ended under a statement', async () => {
    const client = await pool.connect();
    client.on('error', () => undefined);
    const { rows } = await client.query('select pg_backend_pid() as pid');
    const failing = failureOf(client.query('select pg_sleep(20)'));
    await pool.query('select pg_terminate_backend($1)', [rows[0].pid]);
    expect(judgeFailure(await failing)).toBe('unknown');
    client.release(true);
  });

  it('for a connection that was reset under a statement', async () => {
    const proxy = await startTcpProxy(database.url);
    const client = new pg.Client({ connectionString: proxy.url });
    client.on('error', () => undefined);
    await client.connect();
    const failing = failureOf(client.query('select pg_sleep(20)'));
    proxy.refuse();
    const error = await failing;
    expect([sqlState(error), judgeFailure(error)]).toEqual([null, 'unknown']);
    await proxy.close();
  });
});
