import { Redis } from 'ioredis';
import pg from 'pg';
import { describe, expect, it } from 'vitest';
import { createEmptyDatabase, createTestDatabase } from './database.ts';
import { startPrivatePostgres, startPrivateRedis } from './private-servers.ts';

describe('a test database', () => {
  it('is migrated, and each caller has one of its own, also when many ask at once', async () => {
    const databases = await Promise.all(Array.from({ length: 4 }, createTestDatabase));
    const tables = await Promise.all(databases.map(({ url }) => tableNames(url)));
    for (const names of tables)
      expect(names).toEqual(expect.arrayContaining(['deliveries', 'events', 'queue']));
    expect(new Set(databases.map(({ url }) => url)).size).toBe(4);
    await Promise.all(databases.map((database) => database.drop()));
    await expect(tableNames(databases[0]?.url ?? '')).rejects.toMatchObject({ code: '3D000' });
  });

  it('may be empty', async () => {
    const database = await createEmptyDatabase();
    expect(await tableNames(database.url)).toEqual([]);
    await database.drop();
  });
});

describe('a private server', () => {
  it('of Postgres keeps its address and data over a crash', async () => {
    const server = await startPrivatePostgres();
    await query(server.url, 'create table kept (one int)');
    await server.stop('immediate');
    await expect(query(server.url, 'select 1')).rejects.toMatchObject({ code: 'ECONNREFUSED' });
    await server.start();
    expect(await tableNames(server.url)).toEqual(['kept']);
    await server.stop();
  });

  it('of Redis keeps its address and comes back empty', async () => {
    const server = await startPrivateRedis();
    const client = new Redis(server.url);
    client.on('error', () => undefined); // it is stopped under this client, which then reconnects
    await client.set('word', 'gone');
    await server.stop();
    await server.start();
    expect(await client.get('word')).toBeNull();
    client.disconnect();
    await server.stop();
  });
});

async function tableNames(url: string): Promise<string[]> {
  const rows = await query(
    url,
    "select tablename from pg_tables where schemaname in ('relay', 'public') order by tablename",
  );
  return rows.map((row) => String(row.tablename));
}

async function query(url: string, text: string): Promise<Record<string, unknown>[]> {
  const client = new pg.Client({ connectionString: url });
  try {
    await client.connect();
    return (await client.query(text)).rows;
  } finally {
    await client.end();
  }
}
