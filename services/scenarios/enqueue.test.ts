import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createPool } from '../../lib/store/pool.ts';
import { Arrivals } from '../testing/arrivals.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';
import { type Fleet, startFleet } from '../testing/fleet.ts';
import { createTestRedis } from '../testing/redis.ts';
import { deadLetterReason, deliveryRow } from '../testing/stored-rows.ts';

const inMs = (ms: number) => new Date(Date.now() + ms).toISOString();

describe.each([
  ['with Redis', () => createTestRedis().url],
  ['without Redis', () => null],
])('a fleet %s', { timeout: 60_000 }, (_, redisUrl) => {
  let database: TestDatabase;
  let pool: pg.Pool;
  let fleet: Fleet;
  const arrivals = new Arrivals();

  beforeAll(async () => {
    database = await createTestDatabase();
    pool = createPool({ url: database.url, purpose: 'migrate', max: 8, applicationName: 'test' });
    fleet = await startFleet({
      databaseUrl: database.url,
      redisUrl: redisUrl(),
      receiver: { onDelivery: arrivals.note },
    });
    await Promise.all([fleet.start('api'), fleet.start('dispatcher'), fleet.start('reconciler')]);
  });
  afterAll(async () => {
    await fleet.stop();
    await pool.end();
    await database.drop();
  });

  /** Enqueues in a transaction that was open for a while, and resolves to the moment of its commit, ms since 1970. */
  async function enqueueSlowly(type: string, openMs: number, end: 'commit' | 'rollback' = 'commit') {
    const client = await pool.connect();
    await client.query('begin');
    await client.query('select now()');
    await client.query(`select relay.enqueue($1, '{"n":1}')`, [type]);
    await sleep(openMs);
    await client.query(end);
    client.release();
    return Date.now();
  }

  it('finds what a producer has enqueued soon after its commit, however long its transaction was open', async () => {
    await fleet.endpoint('/sink?of=enqueued', { event_types: ['enqueued'] });
    const found: number[] = [];
    for (let n = 0; n < 15; n += 1) {
      const before = arrivals.of('/sink?of=enqueued').length;
      // Not in step with the sweep's rounds.
      const committedAt = await enqueueSlowly('enqueued', n === 0 ? 5_000 : 37 * n);
      await eventually(() => expect(arrivals.of('/sink?of=enqueued').length).toBe(before + 1));
      found.push(arrivals.moments('/sink?of=enqueued').at(-1)! - committedAt);
    }
    // The sweep's 200 ms, or less, and the way from there.
    expect(found.sort((a, b) => a - b)[7]).toBeLessThan(400);
  });

  it('never sees what was rolled back', async () => {
    await fleet.endpoint('/sink?of=undone', { event_types: ['undone'] });
    await enqueueSlowly('undone', 300, 'rollback');
    await enqueueSlowly('undone', 0);
    await eventually(() => expect(arrivals.of('/sink?of=undone').length).toBe(1));
    const { rows } = await pool.query(`select from relay.events where type = 'undone'`);
    expect(rows.length).toBe(1);
  });

  it('sends a delayed event when its moment has come, and not before', async () => {
    await fleet.endpoint('/sink?of=delayed', { event_types: ['delayed'] });
    const at = inMs(1_500);
    await fleet.post(1, { type: 'delayed', headers: () => ({ 'relay-deliver-at': at }) });
    await pool.query(`select relay.enqueue('delayed', '{}', deliver_at => $1)`, [at]);
    await eventually(() => expect(arrivals.of('/sink?of=delayed').length).toBe(2));
    expect(arrivals.moments('/sink?of=delayed')[0]! - Date.parse(at)).toBeGreaterThanOrEqual(0);
  });

  it('ends what has not arrived by its end, expired and unsent', async () => {
    const { id } = await fleet.endpoint('/sink?of=late', { event_types: ['late'] });
    await fleet.call('POST', `/v1/endpoints/${id}/pause`, { body: {} });
    const { deliveryIds } = await fleet.post(1, {
      type: 'late',
      headers: () => ({ 'relay-expires-at': inMs(1_500) }),
    });
    const [deliveryId] = deliveryIds;
    await eventually(async () => expect((await deliveryRow(pool, deliveryId!)).dead_reason).toBe('expired'));
    expect(await deadLetterReason(pool, deliveryId!)).toBe('expired');
    expect(arrivals.of('/sink?of=late')).toEqual([]);
    const explained = await fleet.call('GET', `/v1/deliveries/${deliveryId}/explain`);
    expect(explained.json.summary).toMatch(/expired before it arrived/);
  });

  it('reaches every endpoint of an event that matches very many, each once', async () => {
    const count = 1_050;
    for (let made = 0; made < count; made += 30) {
      const batch = Array.from({ length: 30 }, () =>
        fleet.endpoint('/sink?of=wide', { event_types: ['wide'] }),
      );
      await Promise.all(batch);
    }
    const answer = await fleet.call('POST', '/v1/events', {
      raw: '{}',
      headers: { 'relay-event-type': 'wide' },
    });
    expect(answer.json.fan_out).toEqual({ state: 'continues', matched: count });
    await eventually(() => {
      const ids = arrivals.of('/sink?of=wide').map(({ deliveryId }) => deliveryId);
      expect(new Set(ids).size).toBe(count);
    }, 30_000);
    expect(arrivals.of('/sink?of=wide').length).toBe(count);
    expect((await pool.query('select from relay.fan_outs')).rowCount).toBe(0);
  });
});
