import {
  CompiledQuery,
  type DatabaseConnection,
  Kysely,
  PostgresDialect,
  type PostgresDialectConfig,
  PostgresDriver,
} from 'kysely';
import type { Pool, PoolClient } from 'pg';
import type { Database } from './database.ts';
import type { Queryable } from './pool.ts';
import type { Tables } from './tables.ts';

/** One transaction, in both forms in which statements are run. */
export interface Bound {
  db: Database;
  pool: Queryable;
}

/**
 * Runs `work` in one transaction, committed when it returns and rolled back when it throws. What it calls may open transactions of its own
 * on `db`, as it does on any other: they become steps of this one, so that several changes are one change without knowing of each other.
 */
export async function inOneTransaction<T>(pool: Pool, work: (bound: Bound) => Promise<T>): Promise<T> {
  const client = await pool.connect();
  let broken = true;
  try {
    await client.query('begin');
    const result = await work({ db: joined(client), pool: client });
    const { command } = await client.query('commit');
    broken = false;
    // A statement that failed and was not heard of: Postgres then answers COMMIT with ROLLBACK.
    if (command !== 'COMMIT') throw new Error('the transaction was rolled back by a failure inside it');
    return result;
  } catch (error) {
    if (broken) broken = !(await rolledBack(client));
    throw error;
  } finally {
    client.release(broken);
  }
}

async function rolledBack(client: PoolClient): Promise<boolean> {
  try {
    await client.query('rollback');
    return true;
  } catch {
    return false;
  }
}

/** The query builder on one connection that is in a transaction already. */
function joined(client: PoolClient): Database {
  const borrowed = { query: client.query.bind(client), release: () => undefined };
  const pool = { connect: async () => borrowed, end: async () => undefined } as PostgresDialectConfig['pool'];
  return new Kysely<Tables>({ dialect: new JoiningDialect({ pool }) }).withSchema('relay');
}

class JoiningDialect extends PostgresDialect {
  readonly #config: PostgresDialectConfig;

  constructor(config: PostgresDialectConfig) {
    super(config);
    this.#config = config;
  }

  override createDriver(): PostgresDriver {
    return new JoiningDriver(this.#config);
  }
}

/** A transaction inside the transaction is a savepoint. The builder allows one at a time, so they need one name. */
class JoiningDriver extends PostgresDriver {
  override beginTransaction(connection: DatabaseConnection): Promise<void> {
    return run(connection, 'savepoint step');
  }

  override commitTransaction(connection: DatabaseConnection): Promise<void> {
    return run(connection, 'release savepoint step');
  }

  override rollbackTransaction(connection: DatabaseConnection): Promise<void> {
    return run(connection, 'rollback to savepoint step');
  }
}

async function run(connection: DatabaseConnection, command: string): Promise<void> {
  await connection.executeQuery(CompiledQuery.raw(command));
}
