import { sqlState } from '../../../lib/store/failure.ts';
import { Problem, tryAgain } from './problem.ts';

/** What to answer when a handler threw. What is not known here is a fault of ours, and its text stays in the log. */
export function toProblem(error: unknown): Problem {
  if (error instanceof Problem) return error;
  if (databaseUnavailable(error)) {
    return tryAgain('database_unavailable', 'the database does not answer; nothing was changed', 2, error);
  }
  return new Problem(
    'internal',
    'something went wrong that is not your fault; the log has it by the request id',
    {
      cause: error,
    },
  );
}

// Connection trouble (08), out of resources (53), shutting down, cancelled or too slow (57), locked (55P03), a conflict with another
// transaction (40), or a standby that takes no writes.
const UNAVAILABLE_CLASSES = new Set(['08', '53', '57', '40']);
const UNAVAILABLE_STATES = new Set(['55P03', '25006', '25P03']);

const UNAVAILABLE_SYSTEM_CODES = new Set([
  'ECONNREFUSED',
  'ECONNRESET',
  'EPIPE',
  'ETIMEDOUT',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'ENOTFOUND',
  'EAI_AGAIN',
]);

// The driver has no codes for these.
const DRIVER_SENTENCES =
  /^(Connection terminated|timeout exceeded when trying to connect|timeout expired|Query read timeout|Client has encountered a connection error|Cannot use a pool after calling end|Client was closed)/;

/** Tells whether an error of the driver means that the database is away, rather than that a statement is wrong. */
export function databaseUnavailable(error: unknown): boolean {
  const state = sqlState(error);
  if (state !== null) return UNAVAILABLE_CLASSES.has(state.slice(0, 2)) || UNAVAILABLE_STATES.has(state);
  if (error instanceof AggregateError) return error.errors.some(databaseUnavailable);
  if (!(error instanceof Error)) return false;
  return (
    UNAVAILABLE_SYSTEM_CODES.has(String((error as NodeJS.ErrnoException).code)) ||
    DRIVER_SENTENCES.test(error.message)
  );
}
