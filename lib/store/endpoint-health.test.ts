import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import { eventually } from '../../services/testing/eventually.ts';
import {
  COOLED,
  evidence,
  expectUntouched,
  givenHealth,
  healthRow,
  OPEN,
  POLICY,
  PROBE,
  success,
} from '../../services/testing/given-health.ts';
import { createExplainingPool } from '../../services/testing/query-plans.ts';
import { claimProbe, giveBackProbe, type HealthPolicy, recordEvidence } from './endpoint-health.ts';
import { createPool } from './pool.ts';

const PATIENT: HealthPolicy = { ...POLICY, breaker: { ...POLICY.breaker, threshold: 1_000 } };

let database: TestDatabase;
let pool: pg.Pool;
let other: pg.Pool;

beforeAll(async () => {
  database = await createTestDatabase();
  const open = () => createPool({ url: database.url, purpose: 'hot', max: 8, applicationName: 'test' });
  [pool, other] = [open(), open()];
});
afterAll(async () => {
  await Promise.all([pool.end(), other.end()]);
  await database.drop();
});

const given = (columns?: string) => givenHealth(pool, columns);
const stored = (id: string) => healthRow(pool, id);
const expectUnwritten = (id: string, work: () => Promise<unknown>) => expectUntouched(pool, id, work);

describe('a healthy endpoint', () => {
  it('is never written by successes', async () => {
    const id = await given();
    await expectUnwritten(id, () =>
      recordEvidence(
        pool,
        Array.from({ length: 50 }, () => success(id)),
        POLICY,
      ),
    );
  });

  it('is told as it stands', async () => {
    const id = await given();
    expect(await recordEvidence(pool, [success(id)], POLICY)).toEqual([
      {
        endpointId: id,
        state: 'closed',
        trips: 0,
        failures: 0,
        failing: false,
        breakerForMs: null,
        pausedForMs: null,
        opened: false,
        recovered: false,
        paused: false,
        disabled: false,
      },
    ]);
  });
});

describe('evidence that changes nothing', () => {
  it('costs one read, which locks nothing, however many endpoints it is about', async () => {
    const unwell = await given(`${OPEN}, failing_since = now() - interval '1 h'`);
    const wrongPath = await given(`failing_since = now() - interval '1 h'`);
    const ids = [unwell, wrongPath, await given()];
    const batch = [
      evidence(unwell),
      evidence(unwell, { trips: 3 }),
      evidence(wrongPath, { kind: 'alive' }),
      success(ids[2]!),
    ];
    const { pool: explained, plans } = await createExplainingPool(database.url, 'hot');
    const before = await Promise.all(ids.map(stored));
    await recordEvidence(explained, batch, POLICY);
    await explained.end();
    expect(plans.map(({ query }) => query.includes('for no key update'))).toEqual([false]);
    expect((await Promise.all(ids.map(stored))).map((row) => row.written)).toEqual(
      before.map((row) => row.written),
    );
  });

  it('is also what cancels itself out', async () => {
    const id = await given();
    await expectUnwritten(id, () => recordEvidence(pool, [evidence(id), success(id)], POLICY));
  });

  it('is no statement at all when there is none', async () => {
    const { pool: explained, plans } = await createExplainingPool(database.url, 'hot');
    expect(await recordEvidence(explained, [], POLICY)).toEqual([]);
    await explained.end();
    expect(plans).toEqual([]);
  });
});

describe('failures in a row', () => {
  it('are all counted when two dispatchers record them at once', async () => {
    const id = await given();
    const record = (by: pg.Pool) => recordEvidence(by, [evidence(id)], PATIENT);
    await Promise.all(Array.from({ length: 80 }, (_, n) => record(n % 2 === 0 ? pool : other)));
    expect(await stored(id)).toMatchObject({ state: 'closed', failures: 80, trips: 0 });
  });

  it('open the breaker once, whoever records the last one', async () => {
    const id = await given();
    const record = (by: pg.Pool) => recordEvidence(by, [evidence(id)], POLICY);
    const changes = await Promise.all(
      Array.from({ length: 20 }, (_, n) => record(n % 2 === 0 ? pool : other)),
    );
    expect(changes.flat().filter((change) => change.opened)).toHaveLength(1);
    const row = await stored(id);
    expect(row).toMatchObject({ state: 'open', failures: 5, trips: 1, streak: 1, probe: null });
    expect(row.until_in).toBeGreaterThan(20_000);
    expect(row.until_in).toBeLessThanOrEqual(30_000);
  });

  it('are judged in the order of the batch', async () => {
    const [spared, opened] = [await given(), await given()];
    const failures = (id: string, count: number) => Array.from({ length: count }, () => evidence(id));
    const batch = [...failures(spared, 4), success(spared), ...failures(spared, 4), ...failures(opened, 6)];
    const changes = await recordEvidence(pool, batch, POLICY);
    const changeOf = (id: string) => changes.find((change) => change.endpointId === id);
    expect(changeOf(spared)).toMatchObject({ state: 'closed', failures: 4, opened: false, failing: true });
    expect(changeOf(opened)).toMatchObject({ state: 'open', failures: 5, trips: 1, opened: true });
    expect(changeOf(opened)?.breakerForMs).toBe(30_000);
    expect(await stored(spared)).toMatchObject({ state: 'closed', failures: 4 });
    expect(await stored(opened)).toMatchObject({ state: 'open', failures: 5 });
  });

  it('bump neither version: what is cached and timed stays valid', async () => {
    const id = await given('version = 4, slot_version = 6');
    await recordEvidence(
      pool,
      Array.from({ length: 5 }, () => evidence(id, { retryAfterMs: 5_000 })),
      POLICY,
    );
    expect(await stored(id)).toMatchObject({ state: 'open', version: 4, slot_version: 6 });
  });

  it('of another era are ignored', async () => {
    const id = await given(`breaker_trips = 3, failing_since = now()`);
    await expectUnwritten(id, () =>
      recordEvidence(
        pool,
        Array.from({ length: 9 }, (_, n) => evidence(id, { trips: n % 2 === 0 ? 2 : 4 })),
        POLICY,
      ),
    );
  });

  it('leave the breaker alone when it is switched off', async () => {
    const id = await given();
    const off = { ...POLICY, breaker: { ...POLICY.breaker, enabled: false } };
    await recordEvidence(
      pool,
      Array.from({ length: 9 }, () => evidence(id)),
      off,
    );
    const row = await stored(id);
    expect(row).toMatchObject({ state: 'closed', failures: 0, trips: 0 });
    expect(row.failing_for).not.toBeNull();
  });
});

describe('two batches about the same endpoints', () => {
  it('never wait for each other in a circle, whatever their order', async () => {
    const ids = await Promise.all(Array.from({ length: 40 }, () => given()));
    const forth = ids.map((id) => evidence(id));
    const back = [...forth].reverse();
    for (let round = 0; round < 15; round += 1) {
      await Promise.all([
        recordEvidence(pool, forth, PATIENT),
        recordEvidence(other, back, PATIENT),
        recordEvidence(pool, back, PATIENT),
        recordEvidence(other, forth, PATIENT),
      ]);
    }
    const rows = await Promise.all(ids.map(stored));
    expect(new Set(rows.map((row) => row.failures))).toEqual(new Set([60]));
  });
});

describe('an endpoint that somebody else holds', () => {
  async function held(id: string): Promise<pg.PoolClient> {
    const holder = await other.connect();
    await holder.query('begin');
    await holder.query('update relay.endpoints set description = description where id = $1', [id]);
    return holder;
  }

  it('keeps no neighbour from being recorded, and is recorded when it is let go', async () => {
    const [stuck, neighbour] = [await given(), await given()];
    const holder = await held(stuck);
    const recording = recordEvidence(pool, [evidence(stuck), evidence(neighbour)], POLICY);
    await eventually(async () => expect(await stored(neighbour)).toMatchObject({ failures: 1 }), 1_500);
    await holder.query('commit');
    holder.release();
    expect(await recording).toHaveLength(2);
    expect(await stored(stuck)).toMatchObject({ failures: 1 });
  });

  it('is judged by what its holder made of it', async () => {
    const id = await given();
    const holder = await held(id);
    const recording = recordEvidence(pool, [evidence(id)], POLICY);
    await eventually(async () => {
      const { rows } = await pool.query(
        `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
      );
      expect(rows).toHaveLength(1);
    }, 1_500);
    await holder.query('update relay.endpoints set breaker_failures = 4 where id = $1', [id]);
    await holder.query('commit');
    holder.release();
    expect(await recording).toMatchObject([{ state: 'open', opened: true }]);
  });

  it('is left out when it is not let go', async () => {
    const [stuck, neighbour] = [await given(), await given()];
    const holder = await held(stuck);
    const changes = await recordEvidence(pool, [evidence(stuck), evidence(neighbour)], POLICY);
    expect(changes.map((change) => change.endpointId)).toEqual([neighbour]);
    await holder.query('rollback');
    holder.release();
    expect(await stored(stuck)).toMatchObject({ failures: 0 });
  });

  it('is let go by a dispatcher that freezes', async () => {
    const id = await given();
    const frozen = new Proxy(other, {
      get: (target, name) =>
        name === 'connect'
          ? async () => freezing(await target.connect())
          : Reflect.get(target, name).bind(target),
    });
    const lost = expect(recordEvidence(frozen, [evidence(id)], POLICY)).rejects.toThrow();
    await eventually(async () => {
      const { rows } = await pool.query(
        `select from pg_stat_activity where datname = current_database() and state = 'idle in transaction'`,
      );
      expect(rows).toHaveLength(1);
    });
    expect(await recordEvidence(pool, [evidence(id)], POLICY)).toMatchObject([{ failures: 1 }]);
    await lost;
  });
});

/** A connection on which nothing is sent after the lock until the server has cut it. */
function freezing(client: pg.PoolClient): pg.PoolClient {
  const cut = new Promise<void>((resolve) => client.once('error', () => resolve()));
  return new Proxy(client, {
    get: (target, name) => {
      const value = Reflect.get(target, name);
      if (name !== 'query') return typeof value === 'function' ? value.bind(target) : value;
      return async (statement: pg.QueryConfig) => {
        if (statement.name === 'relay_health_write') await cut;
        return target.query(statement);
      };
    },
  });
}

describe('an endpoint that is disabled, deleted or missing', () => {
  it('is left alone and left out', async () => {
    const ids = [
      await given(`enabled = false, disabled_reason = 'operator', failing_since = now() - interval '9 days'`),
      await given(`deleted_at = now()`),
    ];
    for (const id of ids) {
      await expectUnwritten(id, async () => {
        const batch = [evidence(id, { retryAfterMs: 60_000 }), evidence(randomUUID())];
        expect(await recordEvidence(pool, batch, POLICY)).toEqual([]);
      });
    }
  });
});

describe('each statement', () => {
  it('finds its endpoints by their ids among 10,000', async () => {
    await pool.query(
      `insert into relay.endpoints (tenant_id, url, secret)
       select id, 'https://sink.example.test', '\\x00' from relay.tenants, generate_series(1, 10000)`,
    );
    const [failed, cooled] = [await given(`failing_since = now() - interval '9 days'`), await given(COOLED)];
    const { pool: explained, plans } = await createExplainingPool(database.url, 'hot');
    await recordEvidence(explained, [evidence(failed), evidence(cooled)], POLICY);
    await claimProbe(explained, { endpointId: cooled, trips: 3, token: PROBE, probeMs: 1_000 });
    await giveBackProbe(explained, { endpointId: cooled, token: PROBE });
    await explained.end();
    const scans = plans.flatMap((plan) => plan.scans);
    expect(scans.filter((scan) => scan.kind !== 'Index Scan' || scan.condition === null)).toEqual([]);
    expect(new Set(scans.map((scan) => scan.index))).toEqual(
      new Set(['endpoints_pkey', 'endpoints_unwell', 'subscriptions_endpoint']),
    );
    expect(plans).toHaveLength(6);
  });
});
