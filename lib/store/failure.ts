import pg from 'pg';

/**
 * What an error says about a statement that ran by itself:
 * `data`: Postgres reported it and committed nothing, and one row may be to blame (SQLSTATE classes 21, 22, 23, 40, 55);
 * `refused`: Postgres reported it and committed nothing, and no row is to blame;
 * `unknown`: the connection was lost, cut by the server or too slow, so it may have committed.
 */
export type StatementFailure = 'data' | 'refused' | 'unknown';

const DATA_CLASSES = new Set(['21', '22', '23', '40', '55']);

export function judgeFailure(error: unknown): StatementFailure {
  const code = sqlState(error);
  if (code === null || code.startsWith('57') || code.startsWith('08')) return 'unknown';
  return DATA_CLASSES.has(code.slice(0, 2)) ? 'data' : 'refused';
}

/** The five-character code of an error that Postgres reported; null for anything else. */
export function sqlState(error: unknown): string | null {
  return error instanceof pg.DatabaseError && error.code !== undefined ? error.code : null;
}

export const LOCK_TIMEOUT = '55P03';

/** A conflict with another transaction, not a fault of the row: the same statement may succeed at once. */
export function isTransient(error: unknown): boolean {
  const code = sqlState(error);
  return code !== null && (code.startsWith('40') || code.startsWith('55'));
}
