import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { createPool } from '../../lib/store/pool.ts';
import { startTestApi } from '../testing/api.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { Readiness } from './readiness.ts';
import { ReadinessShape } from './routes/shapes.ts';

let database: TestDatabase;
let pool: pg.Pool;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
});
beforeEach(async () => {
  await pool.query('truncate relay.queue, relay.process_heartbeats');
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

const LIMITS = { heartbeatMaxAgeMs: 20_000, maxLatenessMs: 60_000 };
const judge = (of = pool) => new Readiness(of, LIMITS).report();

async function givenBeat(role: 'dispatcher' | 'api', ageSeconds: number): Promise<void> {
  await pool.query(
    `insert into relay.process_heartbeats (id, role, wake, beat_at)
     values ($1, $2, 'stream', now() - $3 * interval '1 s')`,
    [randomUUID(), role, ageSeconds],
  );
}

async function givenOwed(row: {
  lateSeconds: number | 'never';
  leased?: boolean;
  cancelled?: boolean;
}): Promise<void> {
  await pool.query(
    `insert into relay.queue (delivery_id, endpoint_id, event_id, due_at, look_at, lease_expires_at, cancel_requested)
     values ($1, $1, $1, case when $2 = 'never' then 'infinity' else now() - $2::interval end, now(), $3, $4)`,
    [
      randomUUID(),
      row.lateSeconds === 'never' ? 'never' : `${row.lateSeconds} s`,
      row.leased ? new Date(Date.now() + 30_000) : null,
      row.cancelled ?? false,
    ],
  );
}

describe('an API is ready', () => {
  it('when dispatchers live and nothing is late', async () => {
    await givenBeat('dispatcher', 1);
    expect(await judge()).toMatchObject({
      ready: true,
      database: { status: 'pass' },
      dispatcher: { status: 'pass' },
      queue: { status: 'pass', detail: 'nothing is late' },
    });
  });

  it('although older dispatchers are gone, while one is alive', async () => {
    await givenBeat('dispatcher', 500);
    await givenBeat('dispatcher', 19);
    expect((await judge()).ready).toBe(true);
  });

  it('although deliveries are a little late, leased, cancelled, of the future, or waiting without a moment', async () => {
    await givenBeat('dispatcher', 1);
    await givenOwed({ lateSeconds: 30 });
    await givenOwed({ lateSeconds: 500, leased: true });
    await givenOwed({ lateSeconds: 500, cancelled: true });
    await givenOwed({ lateSeconds: -500 });
    await givenOwed({ lateSeconds: 'never' });
    const report = await judge();
    expect(report.ready).toBe(true);
    expect(report.queue.detail).toMatch(/30\.\d s late/);
  });
});

describe('an API is not ready', () => {
  it('when no dispatcher ever reported; an API that beats is none', async () => {
    await givenBeat('api', 1);
    expect(await judge()).toMatchObject({
      ready: false,
      dispatcher: { status: 'fail' },
      queue: { status: 'pass' },
    });
  });

  it('when the newest dispatcher is silent for too long', async () => {
    await givenBeat('dispatcher', 21);
    expect(await judge()).toMatchObject({ ready: false, dispatcher: { status: 'fail' } });
  });

  it('when a delivery is late for too long', async () => {
    await givenBeat('dispatcher', 1);
    await givenOwed({ lateSeconds: 61 });
    expect(await judge()).toMatchObject({
      ready: false,
      queue: { status: 'fail' },
      dispatcher: { status: 'pass' },
    });
  });

  it('when the question itself fails: that is never taken for a good answer', async () => {
    await givenBeat('dispatcher', 1);
    for (const [table, check] of [
      ['process_heartbeats', 'dispatcher'],
      ['queue', 'queue'],
    ] as const) {
      await pool.query(`alter table relay.${table} rename to hidden`);
      try {
        expect(await judge()).toMatchObject({ ready: false, [check]: { status: 'fail' } });
      } finally {
        await pool.query(`alter table relay.hidden rename to ${table}`);
      }
    }
  });

  it('when the database is away, and then asks nothing more', async () => {
    const nowhere = createPool({
      url: 'postgres://nobody@127.0.0.1:1/none',
      purpose: 'general',
      max: 1,
      applicationName: 'test',
    });
    expect(await judge(nowhere)).toMatchObject({
      ready: false,
      database: { status: 'fail' },
      dispatcher: { status: 'skipped' },
      queue: { status: 'skipped' },
    });
    await nowhere.end();
  });

  it('once it drains, although all is well', async () => {
    await givenBeat('dispatcher', 1);
    const readiness = new Readiness(pool, LIMITS);
    expect((await readiness.report()).ready).toBe(true);
    readiness.drain();
    expect(await readiness.report()).toMatchObject({ ready: false, draining: true });
  });
});

describe('over HTTP', () => {
  it('readiness is a status and its reasons, and health asks nothing', async () => {
    const api = await startTestApi(database.url);
    const unready = await api.call('GET', '/readyz', { key: null });
    expect([unready.status, unready.json.dispatcher.status]).toEqual([503, 'fail']);
    expect(ReadinessShape.safeParse(unready.json).success).toBe(true);
    const health = await api.call('GET', '/healthz', { key: null });
    expect([health.status, health.text]).toEqual([200, 'ok']);
    await api.stop();
    await givenBeat('dispatcher', 1);
    const other = await startTestApi(database.url);
    expect((await other.call('GET', '/readyz', { key: null })).status).toBe(200);
    await other.stop();
  });
});
