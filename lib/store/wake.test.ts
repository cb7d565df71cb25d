import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import { startTcpProxy } from '../../services/testing/tcp-proxy.ts';
import { createPool } from './pool.ts';
import { listenQueue, notifyQueue } from './wake.ts';

let database: TestDatabase;
let pool: pg.Pool;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

describe('a listener', () => {
  it('is woken by a notification from any process', async () => {
    let wakes = 0;
    const listener = await listenQueue(database.url, 'test-listen', () => {
      wakes += 1;
    });
    await notifyQueue(pool);
    await expect.poll(() => wakes).toBe(1);
    await listener.close();
    await listener.ended;
  });

  it('learns that its session was ended', async () => {
    const listener = await listenQueue(database.url, 'test-listen', () => undefined);
    await pool.query(
      `select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'test-listen' and datname = current_database()`,
    );
    await listener.ended;
    await listener.close();
  });

  it('can be closed when nothing is at the other end any more', async () => {
    const proxy = await startTcpProxy(database.url);
    const listener = await listenQueue(proxy.url, 'test-listen', () => undefined);
    proxy.swallow();
    const started = performance.now();
    await listener.close();
    expect(performance.now() - started).toBeLessThan(3_000);
    await proxy.close();
  });

  it('cannot be had when nobody answers', async () => {
    const proxy = await startTcpProxy(database.url);
    proxy.refuse();
    await expect(listenQueue(proxy.url, 'test-listen', () => undefined)).rejects.toThrow();
    await proxy.close();
  });
});
