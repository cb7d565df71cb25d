import type { Database } from '../../../lib/store/database.ts';
import { sqlState } from '../../../lib/store/failure.ts';
import { SEARCH_LIMIT_MS } from '../../../lib/store/pool.ts';
import type { ApiContext } from '../context.ts';
import { tryAgain } from './problem.ts';

const STATEMENT_TIMEOUT = '57014';

/**
 * Runs a read that looks through many rows, on connections that are for nothing else: however many ask, keys are still looked up. Throws the
 * 503 Problem `search_timeout` when it takes too long.
 */
export async function search<T>(
  { searchDb }: Pick<ApiContext, 'searchDb'>,
  read: (db: Database) => Promise<T>,
): Promise<T> {
  try {
    return await read(searchDb);
  } catch (error) {
    if (sqlState(error) !== STATEMENT_TIMEOUT) throw error;
    const seconds = SEARCH_LIMIT_MS / 1_000;
    throw tryAgain(
      'search_timeout',
      `it was not found within ${seconds} s: narrow the range of time, or ask again when less is going on`,
      seconds,
      error,
    );
  }
}
