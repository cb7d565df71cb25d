import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import { plainArray, quotedArray } from './array-literal.ts';
import { createPool } from './pool.ts';

let database: TestDatabase;
let pool: pg.Pool;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 1, applicationName: 'test' });
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

async function read(type: string, literal: string): Promise<unknown> {
  const { rows } = await pool.query(`select $1::${type}[] as values`, [literal]);
  return rows[0].values;
}

describe('array literals', () => {
  it('are read by Postgres as the values that they were made of', async () => {
    expect(await read('text', plainArray(['order.paid', null, 'A_b:c-1', 'nullable']))).toEqual([
      'order.paid',
      null,
      'A_b:c-1',
      'nullable',
    ]);
    expect(await read('integer', plainArray([1, null, -7]))).toEqual([1, null, -7]);
    expect(await read('float8', plainArray([0.25, 1e21]))).toEqual([0.25, 1e21]);
    expect(await read('timestamptz', plainArray([new Date(0).toISOString(), null]))).toEqual([
      new Date(0),
      null,
    ]);
    expect(await read('text', quotedArray(['* order.* order.paid', 'NULL', 'null.x *']))).toEqual([
      '* order.* order.paid',
      'NULL',
      'null.x *',
    ]);
    expect(await read('text', plainArray([]))).toEqual([]);
    expect(await read('text', quotedArray([]))).toEqual([]);
  });
});
