import type pg from 'pg';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { DEFAULT_TENANT_ID } from '../../lib/domain/limits.ts';
import { checkInvariants, violations } from '../../lib/store/invariants.ts';
import { createPool } from '../../lib/store/pool.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';
import { type Fleet, type FleetProcess, startFleet } from '../testing/fleet.ts';
import { givenHistory } from '../testing/given-history.ts';
import { createTestRedis } from '../testing/redis.ts';

let database: TestDatabase;
let pool: pg.Pool;
let fleet: Fleet;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
  fleet = await startFleet({ databaseUrl: database.url, redisUrl: createTestRedis().url });
  await Promise.all([fleet.start('api'), fleet.start('dispatcher')]);
  await Promise.all([fleet.start('reconciler'), fleet.start('reconciler')]);
});
afterAll(async () => {
  await fleet.stop();
  await pool.end();
  await database.drop();
});
beforeEach(() => fleet.receiver.reset());

const DEAD = 4_000;

async function givenDead(): Promise<{ endpointId: string; ids: string[] }> {
  const { id: endpointId } = await fleet.endpoint('/sink');
  await givenHistory(pool, {
    tenantId: DEFAULT_TENANT_ID,
    endpointIds: [endpointId],
    events: DEAD,
    everyMs: 10,
  });
  const { rows } = await pool.query('select id from relay.deliveries where endpoint_id = $1 order by id', [
    endpointId,
  ]);
  return { endpointId, ids: rows.map((row) => row.id) };
}

async function givenJob(endpointId: string): Promise<string> {
  const body = { filter: { endpoint_id: endpointId }, rate_per_second: 1_000 };
  const { status, json } = await fleet.call('POST', '/v1/replays', { body });
  expect([status, json.expected]).toEqual([202, DEAD]);
  return json.id;
}

const job = async (id: string) => (await fleet.call('GET', `/v1/replays/${id}`)).json;

async function leader(): Promise<FleetProcess> {
  for (const process of fleet.processes) {
    if (process.role !== 'reconciler' || !process.alive()) continue;
    const metrics = await (await fetch(`${process.url}/metrics`)).text();
    if (/^relay_leader 1$/m.test(metrics)) return process;
  }
  throw new Error('nobody leads');
}

async function expectReplayedOnce(id: string, ids: readonly string[]): Promise<void> {
  const done = await eventually(async () => {
    const now = await job(id);
    expect(now.state).toBe('finished');
    return now;
  }, 40_000);
  const skipped = { endpoint_deleted: 0, event_missing: 0, changed: 0, locked: 0 };
  expect(done).toMatchObject({ selected: DEAD, replayed: DEAD, skipped, waiting: 0 });
  await fleet.delivered(ids);
  expect(fleet.receiver.counts().duplicates).toBe(0);
  const { rows } = await pool.query(
    'select generation, status, count(*)::integer as count from relay.deliveries where id = any($1::uuid[]) group by 1, 2',
    [ids],
  );
  const byGeneration = rows.map(({ generation, count }) => [generation, count]);
  expect(byGeneration.reduce((sum, [, count]) => sum + count, 0)).toBe(DEAD);
  expect(byGeneration.every(([generation]) => generation === 2)).toBe(true);
}

describe('a replay job of thousands', { timeout: 90_000 }, () => {
  it('is gone on with by the other reconciler when the leader is killed: each delivery once, the counts exact', async () => {
    const { endpointId, ids } = await givenDead();
    const id = await givenJob(endpointId);
    await eventually(async () => expect((await job(id)).replayed).toBeGreaterThan(500));
    await (await leader()).kill();
    const { replayed } = await job(id);
    expect(replayed).toBeLessThan(DEAD);
    await expectReplayedOnce(id, ids);
    await fleet.start('reconciler');
  });

  it('is paused and resumed over a change of the leader', async () => {
    const { endpointId, ids } = await givenDead();
    const id = await givenJob(endpointId);
    await eventually(async () => expect((await job(id)).replayed).toBeGreaterThan(500));
    const { json: paused } = await fleet.call('POST', `/v1/replays/${id}/pause`);
    expect(paused.state).toBe('paused');
    await (await leader()).terminate();
    await eventually(leader);
    await fleet.delivered(ids.slice(0, paused.replayed));
    expect(await job(id)).toMatchObject({ state: 'paused', replayed: paused.replayed });
    await fleet.call('POST', `/v1/replays/${id}/resume`);
    await expectReplayedOnce(id, ids);
    expect(violations(await checkInvariants(pool, { repair: false }))).toBe(0);
  });
});
