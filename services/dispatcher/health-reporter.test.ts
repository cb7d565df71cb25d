import type pg from 'pg';
import pino from 'pino';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { SendResult } from '../../lib/domain/send-result.ts';
import { deliveryMetrics } from '../../lib/metrics/delivery.ts';
import { Metrics } from '../../lib/metrics/registry.ts';
import type { Claim } from '../../lib/store/claims.ts';
import { createPool } from '../../lib/store/pool.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { givenHealth, POLICY } from '../testing/given-health.ts';
import { EndpointStates } from './endpoint-state.ts';
import { HealthReporter } from './health-reporter.ts';

let database: TestDatabase;
let pool: pg.Pool;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'hot', max: 2, applicationName: 'test-health' });
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

function givenReporter(): HealthReporter {
  const zero = () => 0;
  const state = { inFlight: zero, ready: zero, readAhead: zero, oldestUnsettledMs: zero, idleClients: zero };
  return new HealthReporter({
    pool,
    states: new EndpointStates({ breakerEnabled: true }),
    policy: POLICY,
    probeMs: 1_000,
    metrics: deliveryMetrics(new Metrics({ processMetrics: false }), state),
    log: pino({ enabled: false }),
  });
}

function answered(status: number): SendResult {
  return {
    kind: 'response',
    status,
    retryAfter: [],
    snippet: Buffer.alloc(0),
    firstByteMs: 1,
    durationMs: 1,
  };
}

/** Reports answers in the order in which they came, all of one claim. */
function report(reporter: HealthReporter, endpointId: string, statuses: readonly number[]): void {
  const claim = { endpointId, trips: 0, token: '00000000-0000-4000-8000-000000000001' } as Claim;
  for (const status of statuses) {
    const success = status < 300;
    reporter.report({ claim, result: answered(status), success, probe: false, retryAfterMs: null });
  }
}

async function rowOf(endpointId: string) {
  const { rows } = await pool.query<{ state: string; failures: number; version: string }>(
    `select breaker_state as state, breaker_failures as failures, xmin::text || ctid::text as version
     from relay.endpoints where id = $1`,
    [endpointId],
  );
  return rows[0]!;
}

describe('what a dispatcher tells of an endpoint', () => {
  it('is nothing while it answers', async () => {
    const id = await givenHealth(pool);
    const before = await rowOf(id);
    const reporter = givenReporter();
    report(reporter, id, Array(200).fill(200));
    await reporter.drain();
    expect(await rowOf(id)).toEqual(before);
  });

  it('is five failures in a row, which open its breaker', async () => {
    const id = await givenHealth(pool);
    const reporter = givenReporter();
    report(reporter, id, [200, 500, 500, 500, 500, 500, 200]);
    await reporter.drain();
    expect(await rowOf(id)).toMatchObject({ state: 'open' });
  });

  it('is not a row of failures when answers lie between them, although nothing of either is written yet', async () => {
    const id = await givenHealth(pool);
    const reporter = givenReporter();
    report(
      reporter,
      id,
      Array.from({ length: 120 }, (_, n) => (n % 2 === 0 ? 500 : 200)),
    );
    await reporter.drain();
    expect(await rowOf(id)).toMatchObject({ state: 'closed', failures: 0 });
    report(reporter, id, [500, 500, 404, 500, 500, 429, 500]);
    await reporter.drain();
    expect(await rowOf(id)).toMatchObject({ state: 'closed', failures: 1 });
  });

  it('is nothing again once its last failure is written', async () => {
    const id = await givenHealth(pool);
    const reporter = givenReporter();
    report(reporter, id, [500, 200]);
    await reporter.drain();
    const after = await rowOf(id);
    report(reporter, id, Array(50).fill(200));
    await reporter.drain();
    expect(await rowOf(id)).toEqual(after);
  });
});
