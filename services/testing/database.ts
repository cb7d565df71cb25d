import { createHash, randomBytes } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import pg from 'pg';
import { inject } from 'vitest';
import { projectRoot } from '../../lib/local/home.ts';
import { migrate } from '../../lib/store/migrate.ts';

const TEMPLATE_LOCK = 7_203_118; // any number that no other advisory lock of the server uses

export interface TestDatabase {
  url: string;
  /** Ends every connection to it and drops it. */
  drop(): Promise<void>;
}

/**
 * A migrated database of the caller's own, copied in some 15 ms from a template that the first caller of a
 * run migrates. Call once per test file, and drop it in `afterAll`.
 */
export function createTestDatabase(): Promise<TestDatabase> {
  return create('test', async (client, name) => {
    const template = await ensureTemplate(client, inject('postgresUrl'));
    await client.query(`create database ${name} template ${template} strategy file_copy`);
  });
}

/** A database with nothing in it, for tests of the migrations themselves. */
export function createEmptyDatabase(): Promise<TestDatabase> {
  return create('empty', async (client, name) => void (await client.query(`create database ${name}`)));
}

async function create(
  prefix: string,
  make: (client: pg.Client, name: string) => Promise<void>,
): Promise<TestDatabase> {
  const server = inject('postgresUrl');
  const name = `${prefix}_${process.pid}_${randomBytes(4).toString('hex')}`;
  await withClient(server, (client) => make(client, name));
  const drop = (client: pg.Client) => client.query(`drop database if exists ${name} with (force)`);
  return { url: databaseUrl(server, name), drop: async () => void (await withClient(server, drop)) };
}

/** Renamed when migrated to the end, so that a name that exists is a template that is whole. */
async function ensureTemplate(client: pg.Client, server: string): Promise<string> {
  const template = `relay_template_${migrationsHash()}`;
  if (await exists(client, template)) return template;
  await client.query('select pg_advisory_lock($1)', [TEMPLATE_LOCK]);
  try {
    if (await exists(client, template)) return template;
    const draft = `${template}_draft`;
    await client.query(`drop database if exists ${draft} with (force)`);
    await client.query(`create database ${draft}`);
    await migrate(databaseUrl(server, draft));
    await client.query(`alter database ${draft} rename to ${template}`);
    return template;
  } finally {
    await client.query('select pg_advisory_unlock($1)', [TEMPLATE_LOCK]);
  }
}

async function exists(client: pg.Client, name: string): Promise<boolean> {
  const { rowCount } = await client.query('select 1 from pg_database where datname = $1', [name]);
  return rowCount === 1;
}

function migrationsHash(): string {
  const folder = join(projectRoot(), 'migrations');
  const hash = createHash('sha256');
  for (const file of readdirSync(folder).sort()) hash.update(file).update(readFileSync(join(folder, file)));
  return hash.digest('hex').slice(0, 16);
}

function databaseUrl(server: string, name: string): string {
  const url = new URL(server);
  url.pathname = `/${name}`;
  return url.href;
}

async function withClient<T>(url: string, work: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    return await work(client);
  } finally {
    await client.end();
  }
}
