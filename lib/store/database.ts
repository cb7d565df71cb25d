import { Kysely, PostgresDialect, type Transaction } from 'kysely';
import type { Pool } from 'pg';
import type { Tables } from './tables.ts';

export type Database = Kysely<Tables>;
export type Connection = Kysely<Tables> | Transaction<Tables>;

/** The query builder over a pool, for the reads and writes that are not hot. The pool stays its owner's to end. */
export function createDatabase(pool: Pool): Database {
  return new Kysely<Tables>({ dialect: new PostgresDialect({ pool }) }).withSchema('relay');
}
