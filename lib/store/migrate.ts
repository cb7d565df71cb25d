import { existsSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Kysely, type Migration, Migrator, PostgresDialect, sql } from 'kysely';
import { createPool } from './pool.ts';

/**
 * Brings the schema up to date: forward only, all or nothing, under the migrator's advisory lock, so that any number of
 * processes may call it at once. Returns the names of the migrations that ran. Throws what Postgres reported.
 */
export async function migrate(databaseUrl: string): Promise<string[]> {
  return withMigrator(databaseUrl, async (migrator) => {
    // Nothing to do is also right for a database that a newer version has already taken further.
    if ((await migrator.getMigrations()).every((migration) => migration.executedAt)) return [];
    const { error, results } = await migrator.migrateToLatest();
    if (error) throw error;
    return (results ?? []).map((result) => result.migrationName);
  });
}

/** The names of the migrations that this version of Relay needs and the database lacks; a newer database lacks none. */
export async function pendingMigrations(databaseUrl: string): Promise<string[]> {
  return withMigrator(databaseUrl, async (migrator) => {
    const known = await migrator.getMigrations();
    return known.filter((migration) => !migration.executedAt).map((migration) => migration.name);
  });
}

/** Throws, saying what to do, when the schema is behind this version of Relay. */
export async function requireCurrentSchema(databaseUrl: string): Promise<void> {
  const missing = await pendingMigrations(databaseUrl);
  if (missing.length > 0) {
    throw new SchemaBehindError(`the schema lacks ${missing.join(', ')}: run \`npm run migrate\` first`);
  }
}

export class SchemaBehindError extends Error {
  override readonly name = 'SchemaBehindError';
}

async function withMigrator<T>(databaseUrl: string, use: (migrator: Migrator) => Promise<T>): Promise<T> {
  const pool = createPool({ url: databaseUrl, purpose: 'migrate', max: 2, applicationName: 'relay-migrate' });
  const db = new Kysely<unknown>({ dialect: new PostgresDialect({ pool }) });
  try {
    return await use(
      new Migrator({
        db,
        provider: { getMigrations: readMigrations },
        migrationTableSchema: 'relay',
        migrationTableName: 'migrations',
        migrationLockTableName: 'migrations_lock',
        // A database that is a version ahead of this process is normal during a roll-out.
        allowUnorderedMigrations: true,
      }),
    );
  } finally {
    await db.destroy();
  }
}

async function readMigrations(): Promise<Record<string, Migration>> {
  const folder = migrationsFolder();
  const files = (await readdir(folder)).filter((file) => file.endsWith('.sql')).sort();
  const migrations: Record<string, Migration> = {};
  for (const file of files) {
    const text = await readFile(join(folder, file), 'utf8');
    migrations[file.replace(/\.sql$/, '')] = {
      up: async (db) => {
        await sql.raw(text).execute(db);
      },
    };
  }
  return migrations;
}

/** The folder beside package.json, whether this runs from the sources or from dist. */
export function migrationsFolder(): string {
  let folder = dirname(fileURLToPath(import.meta.url));
  while (!existsSync(join(folder, 'package.json'))) {
    const parent = dirname(folder);
    if (parent === folder)
      throw new Error('no package.json above the migrator: the migrations cannot be found');
    folder = parent;
  }
  return join(folder, 'migrations');
}
