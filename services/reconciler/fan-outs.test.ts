import type pg from 'pg';
import { pino } from 'pino';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { EMPTY_GAUGES, reconcileMetrics } from '../../lib/metrics/reconcile.ts';
import { Metrics } from '../../lib/metrics/registry.ts';
import { createPool } from '../../lib/store/pool.ts';
import { readQueueFigures } from '../../lib/store/queue-gauges.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';
import { accept, givenTenant, newEvent } from '../testing/given-queue.ts';
import { FanOuts } from './fan-outs.ts';

let database: TestDatabase;
let pool: pg.Pool;
let tenantId: string;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'sweep', max: 4, applicationName: 'test' });
  tenantId = await givenTenant(pool);
  await pool.query(
    `with made as (
       insert into relay.endpoints (tenant_id, url, secret)
       select $1, 'https://x.example.test', '\\x00' from generate_series(1, 3500) returning id
     )
     insert into relay.subscriptions (tenant_id, pattern, endpoint_id) select $1, '*', id from made`,
    [tenantId],
  );
});
beforeEach(async () => {
  await pool.query('truncate relay.fan_outs, relay.queue, relay.deliveries');
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

const IDLE_MS = 250;

function givenFanOuts(options: { leads?: boolean } = {}): FanOuts {
  const metrics = reconcileMetrics(new Metrics({ processMetrics: false }), {
    leader: () => true,
    gauges: () => EMPTY_GAUGES,
  });
  return new FanOuts({ pool, leader: () => options.leads ?? true, metrics, log: pino({ level: 'silent' }) });
}

async function givenEvent(): Promise<string> {
  const [result] = await accept(pool, [newEvent({ tenantId })]);
  if (result?.kind !== 'accepted') throw new Error(result?.kind);
  return result.eventId;
}

async function deliveriesOf(eventId: string): Promise<number> {
  const { rows } = await pool.query('select count(*)::int as n from relay.deliveries where event_id = $1', [
    eventId,
  ]);
  return rows[0].n;
}

describe('fan-outs', () => {
  it('take turns, a step each, and rest when all are done', async () => {
    const [one, two] = [await givenEvent(), await givenEvent()];
    const fanOuts = givenFanOuts();
    await fanOuts.round();
    await fanOuts.round();
    expect([await deliveriesOf(one), await deliveriesOf(two)]).toEqual([2_000, 2_000]);
    expect((await readQueueFigures(pool)).fanOuts).toBe(2);
    for (let round = 0; (await fanOuts.round()) !== IDLE_MS; round += 1) expect(round).toBeLessThan(10);
    expect([await deliveriesOf(one), await deliveriesOf(two)]).toEqual([3_500, 3_500]);
    expect((await readQueueFigures(pool)).fanOuts).toBe(0);
  });

  it('are not held up by one that fails every time', async () => {
    const [bad, good] = [await givenEvent(), await givenEvent()].sort();
    // The number of the next delivery is taken.
    await pool.query(
      `insert into relay.deliveries (id, event_id, endpoint_id, tenant_id)
       values ((left($1, 32) || '03e9')::uuid, $1::uuid, gen_random_uuid(), $2)`,
      [bad, tenantId],
    );
    const fanOuts = givenFanOuts().start();
    await eventually(async () => expect(await deliveriesOf(good!)).toBe(3_500));
    await eventually(() => expect(fanOuts.loop.failing).toBe(true));
    await fanOuts.stop();
    expect(await deliveriesOf(bad!)).toBe(1_001);
  });

  it('are left alone by who does not lead', async () => {
    const eventId = await givenEvent();
    expect(await givenFanOuts({ leads: false }).round()).toBe(IDLE_MS);
    expect(await deliveriesOf(eventId)).toBe(1_000);
  });
});
