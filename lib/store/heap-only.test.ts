import type pg from 'pg';
import { describe, expect, it, onTestFinished } from 'vitest';
import { createTestDatabase } from '../../services/testing/database.ts';
import { acceptedIds, death, lease, newEvent, PROCESS, success } from '../../services/testing/given-queue.ts';
import { claimByIds } from './claims.ts';
import { acceptEvents } from './ingest.ts';
import { createPool } from './pool.ts';
import { finish } from './settle.ts';

const BATCH = 128;
const ROWS = 20_480;

interface Updates {
  all: number;
  hot: number;
}

async function givenDatabase(): Promise<{ url: string; observer: pg.Pool }> {
  const database = await createTestDatabase();
  const observer = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
  onTestFinished(async () => {
    await observer.end();
    await database.drop();
  });
  await observer.query(`insert into relay.endpoints (tenant_id, url, secret)
    select id, 'https://sink.example.test', '\\x00' from relay.tenants, generate_series(1, 100)`);
  return { url: database.url, observer };
}

/** Accepts, claims and ends, each in batches that cut across those of the step before. */
async function runThrough(url: string): Promise<void> {
  const pool = createPool({ url, purpose: 'hot', max: 4, applicationName: 'test' });
  const { rows: endpoints } = await pool.query<{ id: string }>('select id from relay.endpoints');
  const producer = await pool.connect();
  for (let done = 0; done < ROWS; done += 10 * BATCH) {
    const ids: string[] = [];
    for (let n = 0; n < 10; n += 1) {
      const events = Array.from({ length: BATCH }, (_, i) =>
        newEvent({ targetEndpointId: endpoints[(i * 7) % endpoints.length]!.id }),
      );
      ids.push(...(await acceptEvents(producer, events, { announced: true })).flatMap(acceptedIds));
    }
    const batches = Array.from({ length: 10 }, (_, n) => ids.slice(n * BATCH, (n + 1) * BATCH));
    const claims = (await Promise.all(batches.map((batch) => claimByIds(pool, batch, lease())))).flat();
    expect(claims.length).toBe(ids.length);
    // Every page whole, one in ten rows as wide as an end can be.
    const ends = claims.map((claim, n) =>
      n % 10 === 0 ? death(claim, 'permanent_failure') : success(claim),
    );
    await Promise.all(batches.map((_, n) => finish(pool, ends.slice(n * BATCH, (n + 1) * BATCH), PROCESS)));
  }
  producer.release();
  // A session that ends reports what it did; an idle one takes ten seconds.
  await pool.end();
}

async function updatesOf(pool: pg.Pool, table: string): Promise<Updates> {
  const read = async () => {
    const { rows } = await pool.query<Updates>(
      `select n_tup_upd::int as all, n_tup_hot_upd::int as hot from pg_stat_user_tables where relid = $1::regclass`,
      [`relay.${table}`],
    );
    return rows[0]!;
  };
  await expect.poll(async () => (await read()).all, { timeout: 20_000 }).toBe(ROWS);
  return read();
}

const share = ({ hot, all }: Updates) => hot / all;

describe('the one update of a delivery and the claim of its queue row', () => {
  it('are heap-only', async () => {
    const { url, observer } = await givenDatabase();
    await runThrough(url);
    expect(share(await updatesOf(observer, 'deliveries'))).toBeGreaterThanOrEqual(0.98);
    expect(share(await updatesOf(observer, 'queue'))).toBeGreaterThanOrEqual(0.98);
  });

  it('are heap-only while an old snapshot keeps every dead row', async () => {
    const { url, observer } = await givenDatabase();
    const old = await observer.connect();
    onTestFinished(() => old.release(true));
    await old.query('begin isolation level repeatable read');
    await old.query('select from relay.queue');
    await runThrough(url);
    expect(share(await updatesOf(observer, 'deliveries'))).toBeGreaterThanOrEqual(0.98);
    expect(share(await updatesOf(observer, 'queue'))).toBeGreaterThanOrEqual(0.98);
  });
});
