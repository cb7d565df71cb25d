import pg from 'pg';
import { describe, expect, it } from 'vitest';
import { databaseUnavailable, toProblem } from './failure.ts';
import { Problem } from './problem.ts';

function reported(code: string): Error {
  const error = new pg.DatabaseError('relation "secret_table" does not exist', 0, 'error');
  error.code = code;
  return error;
}

const withCode = (code: string) => Object.assign(new Error('it failed'), { code });

describe('what a database that is away looks like', () => {
  it.each<readonly [string, Error]>([
    ...[
      '57P01',
      '57P02',
      '57P03',
      '57014',
      '53300',
      '53200',
      '08006',
      '08003',
      '40001',
      '40P01',
      '55P03',
      '25006',
    ].map((code) => [code, reported(code)] as const),
    ...['ECONNREFUSED', 'ECONNRESET', 'EPIPE', 'ETIMEDOUT', 'ENOTFOUND', 'EAI_AGAIN'].map(
      (code) => [code, withCode(code)] as const,
    ),
    ['several addresses', new AggregateError([withCode('ECONNREFUSED'), withCode('ECONNREFUSED')])],
    ...[
      'Connection terminated unexpectedly',
      'Connection terminated due to connection timeout',
      'timeout exceeded when trying to connect',
      'Query read timeout',
      'Client has encountered a connection error and is not queryable',
    ].map((message) => [message, new Error(message)] as const),
  ])('%s: 503 with the time to wait', (_, error) => {
    expect(databaseUnavailable(error)).toBe(true);
    expect(toProblem(error)).toMatchObject({
      code: 'database_unavailable',
      status: 503,
      headers: { 'retry-after': '2' },
    });
  });
});

describe('a fault of ours', () => {
  it.each([
    ['a wrong statement', reported('42P01')],
    ['a broken rule of the schema', reported('23514')],
    ['a bug', new TypeError('x is not a function')],
    ['a thing that is no error', 'a string'],
  ])('is a 500 that tells nothing: %s', (_, error) => {
    const problem = toProblem(error);
    expect(problem).toMatchObject({ code: 'internal', status: 500, cause: error });
    expect(problem.message).not.toMatch(/secret_table|not a function/);
  });
});

it('a problem is answered as it is', () => {
  const problem = new Problem('forbidden', 'no');
  expect(toProblem(problem)).toBe(problem);
});
