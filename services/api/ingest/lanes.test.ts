import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { pino } from 'pino';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import type { RedisLink } from '../../../lib/broker/link.ts';
import { LANES, type Lane } from '../../../lib/domain/vocabulary.ts';
import { type EndpointRate, readEndpointRates } from '../../../lib/store/endpoint-rates.ts';
import { createPool } from '../../../lib/store/pool.ts';
import { createTestDatabase, type TestDatabase } from '../../testing/database.ts';
import { eventually } from '../../testing/eventually.ts';
import { type GivenAcceptor, givenAcceptor } from '../../testing/given-acceptor.ts';
import { givenBroker, givenConsumer, givenLink } from '../../testing/given-broker.ts';
import { givenEndpoint } from '../../testing/given-queue.ts';
import { createTestRedis } from '../../testing/redis.ts';
import { Lanes, type LanesOptions } from './lanes.ts';

let database: TestDatabase;
let pool: pg.Pool;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 6, applicationName: 'test' });
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

const log = pino({ level: 'silent' });
const givenTarget = () => givenEndpoint(pool, { patterns: ['nothing'] });
/** So slow that nothing comes back within a test. */
const SLOW: EndpointRate = { ratePerSecond: 0.001, burst: 5 };
const times = (count: number, id: string) => Array.from({ length: count }, () => id);

function givenLanes(options: Partial<LanesOptions> = {}): Lanes {
  const readRates: LanesOptions['readRates'] = async (ids) => new Map(ids.map((id) => [id, SLOW]));
  return new Lanes({ readRates, liveApis: () => 1, log, ...options });
}

/** Counts deliveries one by one until the endpoint is over; returns how many it took. */
async function untilOver(lanes: Lanes, id: string, most = 100): Promise<number> {
  for (let count = 1; count <= most; count += 1) {
    lanes.account([id]);
    await lanes.idle();
    if (lanes.over().has(id)) return count;
  }
  throw new Error(`not over after ${most}`);
}

describe('the guess of a lane', () => {
  it('is bulk for an endpoint that has had its burst, and for no other', async () => {
    const lanes = givenLanes();
    const [flooded, calm] = [randomUUID(), randomUUID()];
    lanes.account([calm]);
    expect(await untilOver(lanes, flooded)).toBe(5);
    expect([...lanes.over()]).toEqual([flooded]);
  });

  it('is made at the share of one of the APIs that live now', async () => {
    let live = 1;
    const lanes = givenLanes({ liveApis: () => live });
    expect(await untilOver(lanes, randomUUID())).toBe(5);
    live = 2;
    expect(await untilOver(lanes, randomUUID())).toBe(2);
    live = 100;
    expect(await untilOver(lanes, randomUUID())).toBe(1);
  });

  it('is express again once the endpoint’s rate has paid back what it took', async () => {
    const rate = { ratePerSecond: 1_000, burst: 5 };
    const lanes = givenLanes({ readRates: async (ids) => new Map(ids.map((id) => [id, rate])) });
    const id = randomUUID();
    lanes.account(times(205, id));
    await lanes.idle();
    expect(lanes.over().has(id)).toBe(true);
    await eventually(() => expect(lanes.over().has(id)).toBe(false), 2_000);
  });

  it('is express for an unknown endpoint, whose taking counts all the same once its rate is known', async () => {
    const asked: (() => void)[] = [];
    const lanes = givenLanes({
      readRates: async (ids) => {
        await new Promise<void>((resolve) => asked.push(resolve));
        return new Map(ids.map((id) => [id, SLOW]));
      },
    });
    const id = randomUUID();
    for (let n = 0; n < 10; n += 1) lanes.account([id]);
    expect([lanes.over().size, asked.length]).toEqual([0, 1]);
    asked[0]!();
    await lanes.idle();
    expect([...lanes.over()]).toEqual([id]);
  });

  it('is express for an endpoint that does not exist or cannot be read, and asks no more for a while', async () => {
    let asked = 0;
    const lanes = givenLanes({
      readRates: async () => {
        asked += 1;
        if (asked > 1) throw new Error('the database is away');
        return new Map();
      },
    });
    const [gone, unread] = [randomUUID(), randomUUID()];
    for (const id of [gone, unread, gone, unread]) {
      lanes.account(times(50, id));
      await lanes.idle();
    }
    expect([lanes.over().size, asked]).toEqual([0, 2]);
  });

  it('asks for the rates of all that are unknown at once', async () => {
    const asked: number[] = [];
    const lanes = givenLanes({
      readRates: async (ids) => {
        asked.push(ids.length);
        return new Map();
      },
    });
    lanes.account(Array.from({ length: 2_500 }, () => randomUUID()));
    await lanes.idle();
    expect(asked).toEqual([1_000, 1_000, 500]);
  });

  it('names at most 256 endpoints, because each row is compared with all of them', async () => {
    const lanes = givenLanes();
    const ids = Array.from({ length: 400 }, () => randomUUID());
    lanes.account(ids.flatMap((id) => times(6, id)));
    await lanes.idle();
    expect(lanes.over().size).toBe(256);
  });

  it('reads the endpoint’s own rate and burst', async () => {
    const id = await givenTarget();
    await pool.query('update relay.endpoints set rate_per_second = 7.5, burst = 9 where id = $1', [id]);
    expect(await readEndpointRates(pool, [id, randomUUID()])).toEqual(
      new Map([[id, { ratePerSecond: 7.5, burst: 9 }]]),
    );
  });
});

describe('a flood to one endpoint', () => {
  let given: GivenAcceptor;
  let link: RedisLink;

  beforeEach(async () => {
    link = await givenLink(givenBroker(createTestRedis().url));
    given = givenAcceptor(database.url, { link, lingerMs: 1, maxBatch: 8 });
  });
  afterEach(async () => {
    await given.close();
    await link.stop();
  });

  /** The ids that were announced on a lane, of every endpoint. */
  async function announcedOn(lane: Lane): Promise<string[]> {
    const consumer = givenConsumer(link, { lane });
    const ids: string[] = [];
    for (;;) {
      const entries = await consumer.read(100);
      if (entries.length === 0) break;
      ids.push(...entries.flatMap(({ deliveryIds }) => deliveryIds));
    }
    return ids;
  }

  async function rowsOf(endpointId: string): Promise<Map<string, Lane>> {
    const { rows } = await pool.query<{ delivery_id: string; lane: number }>(
      'select delivery_id, lane from relay.queue where endpoint_id = $1',
      [endpointId],
    );
    return new Map(rows.map((row) => [row.delivery_id, LANES[row.lane]!]));
  }

  it.each(['without keys', 'with keys'])(
    'goes on bulk beyond its rate and burst, %s, and others stay express',
    async (keys) => {
      const [flooded, calm] = [await givenTarget(), await givenTarget()];
      await pool.query('update relay.endpoints set rate_per_second = 5, burst = 5 where id = $1', [flooded]);
      const idempotencyKey = () => (keys === 'with keys' ? randomUUID() : null);
      const flood = () => given.accept({ targetEndpointId: flooded, idempotencyKey: idempotencyKey() });
      const express = async () =>
        [...(await rowsOf(flooded)).values()].filter((lane) => lane === 'express').length;
      await eventually(async () => {
        await flood();
        expect((await rowsOf(flooded)).size).toBeGreaterThan(await express());
      });
      const first = await express();
      expect(first).toBeGreaterThanOrEqual(5);
      const started = performance.now();
      for (let n = 0; n < 60; n += 1) {
        await flood();
        if (n % 10 === 0) await given.accept({ targetEndpointId: calm, idempotencyKey: idempotencyKey() });
      }
      const ownRate = (5 * (performance.now() - started)) / 1_000;
      expect((await express()) - first).toBeLessThanOrEqual(Math.min(59, ownRate + 2));
      await given.acceptor.close();
      const on = { express: await announcedOn('express'), bulk: await announcedOn('bulk') };
      const rows = [...(await rowsOf(flooded)), ...(await rowsOf(calm))];
      for (const [id, lane] of rows) expect(on[lane]).toContain(id);
      expect(on.express.length + on.bulk.length).toBe(rows.length);
      expect([...(await rowsOf(calm)).values()]).toEqual(times(6, 'express'));
    },
  );

  it('parts an event for both: each delivery goes on its own endpoint’s lane', async () => {
    const [flooded, calm] = [
      await givenEndpoint(pool, { patterns: ['both.*'] }),
      await givenEndpoint(pool, { patterns: ['both.*'] }),
    ];
    await pool.query('update relay.endpoints set rate_per_second = 0.001, burst = 1 where id = $1', [
      flooded,
    ]);
    await eventually(async () => {
      await given.accept({ targetEndpointId: flooded });
      expect([...(await rowsOf(flooded)).values()]).toContain('bulk');
    });
    const result = await given.accept({ type: 'both.now' });
    if (result.kind !== 'accepted') throw new Error(result.kind);
    await given.acceptor.close();
    const [bulk, express] = [await announcedOn('bulk'), await announcedOn('express')];
    expect(result.deliveryIds.filter((id) => bulk.includes(id))).toHaveLength(1);
    expect(result.deliveryIds.filter((id) => express.includes(id))).toHaveLength(1);
    const lanes = await rowsOf(flooded);
    expect(result.deliveryIds.map((id) => lanes.get(id)).filter(Boolean)).toEqual(['bulk']);
    expect([...(await rowsOf(calm)).values()]).toEqual(['express']);
  });

  it('is nobody’s concern in poll mode, where no lane is read', async () => {
    const polling = givenAcceptor(database.url, { link, pollMode: () => true });
    const id = await givenTarget();
    await pool.query('update relay.endpoints set rate_per_second = 0.001, burst = 1 where id = $1', [id]);
    for (let n = 0; n < 5; n += 1) await polling.accept({ targetEndpointId: id });
    await polling.close();
    expect([await announcedOn('express'), await announcedOn('bulk')]).toEqual([[], []]);
  });
});
