import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../services/testing/database.ts';
import { type Database, openDatabase } from './database.ts';

let own: TestDatabase;
let client: pg.Client;
let database: Database;

beforeAll(async () => {
  own = await createTestDatabase();
  client = new pg.Client({ connectionString: own.url });
  await client.connect();
  database = await openDatabase(own.url);
});
afterAll(async () => {
  await database.close();
  await client.end();
  await own.drop();
});

const id = (n: number) => `00000000-0000-7000-8000-00000000000${n}`;

async function givenDelivery(n: number, status: 'pending' | 'succeeded'): Promise<void> {
  await client.query(
    `insert into relay.deliveries (id, event_id, endpoint_id, tenant_id, status, finished_at)
     values ($1, $1, $1, $1, $2, case when $2 = 'pending' then null else now() end)`,
    [id(n), status],
  );
}

describe('what Postgres tells a load test', () => {
  it('is where deliveries are that did not arrive', async () => {
    await givenDelivery(1, 'pending');
    await givenDelivery(2, 'succeeded');
    expect(await database.whereabouts([id(1), id(2), id(3)])).toEqual({
      pending: 1,
      succeeded: 1,
      dead: 0,
      absent: 1,
    });
    expect(await database.whereabouts([])).toEqual({ pending: 0, succeeded: 0, dead: 0, absent: 0 });
  });

  it('is how late sends began, from a moment on', async () => {
    expect(await database.lateness(0)).toBeNull();
    await client.query(
      `insert into relay.delivery_attempts (delivery_id, seq, lateness_ms, attempt, generation, class, at)
       select $1, n, n, 1, 1, 'success', now() - case when n > 100 then interval '1 hour' else interval '0' end
       from generate_series(1, 200) n`,
      [id(1)],
    );
    expect(await database.lateness(Date.now() - 60_000)).toMatchObject({
      count: 100,
      p50: 50,
      p99: 99,
      max: 100,
    });
  });

  it('is what its work cost', async () => {
    const before = await database.totals();
    await client.query('create table filler as select n from generate_series(1, 10000) n');
    // Postgres publishes a session's counts up to a second after the session turned idle.
    await expect
      .poll(async () => (await database.totals()).walBytes, { timeout: 10_000 })
      .toBeGreaterThan(before.walBytes);
    expect((await database.settings()).version).toMatch(/^\d+/);
    expect(await database.statements()).toBeNull();
  });
});
