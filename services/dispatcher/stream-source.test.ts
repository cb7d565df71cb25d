import { pino } from 'pino';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { announce } from '../../lib/broker/announcer.ts';
import { streamKey } from '../../lib/broker/client.ts';
import type { RedisLink } from '../../lib/broker/link.ts';
import { LANES, type Lane } from '../../lib/domain/vocabulary.ts';
import { deliveryMetrics } from '../../lib/metrics/delivery.ts';
import { Metrics } from '../../lib/metrics/registry.ts';
import { eventually } from '../testing/eventually.ts';
import { givenBroker, givenConsumer, givenLink, randomIds } from '../testing/given-broker.ts';
import { type PrivateRedis, startPrivateRedis } from '../testing/private-servers.ts';
import { type Announced, StreamSource } from './stream-source.ts';

let redis: PrivateRedis;
let link: RedisLink;
let started: Given[];

beforeAll(async () => {
  redis = await startPrivateRedis();
});
beforeEach(async () => {
  link = await givenLink(givenBroker(redis.url));
  started = [];
});
afterEach(async () => {
  for (const given of started) {
    await given.source.stopReading();
    await given.source.leave([]);
  }
  await link.stop();
});
afterAll(async () => {
  await redis.stop();
});

interface Given {
  source: StreamSource;
  read: Announced[];
}

const zero = () => 0;

/** A source as a dispatcher starts one for each lane. */
function givenSource(lane: Lane, options: { wanted?: () => number; blockMs?: number } = {}): Given {
  const read: Announced[] = [];
  const source = new StreamSource({
    link,
    lane,
    consumer: givenConsumer(link, { lane, blockMs: options.blockMs ?? 50 }),
    takeoverIdleMs: 30_000,
    wanted: options.wanted ?? (() => 100),
    onIds: (ids) => read.push(...ids),
    metrics: deliveryMetrics(new Metrics({ processMetrics: false }), {
      inFlight: zero,
      ready: zero,
      readAhead: zero,
      oldestUnsettledMs: zero,
      idleClients: zero,
    }),
    log: pino({ level: 'silent' }),
  }).start();
  const given = { source, read };
  started.push(given);
  return given;
}

const idsOf = (read: readonly Announced[]) => read.map(({ deliveryId }) => deliveryId);
const lengthOf = (lane: Lane) => link.client.xlen(streamKey(link.options, lane));

describe('the sources of the two lanes', () => {
  it('read what was announced on their own, and say of each id on which', async () => {
    const ids = { express: randomIds(3), bulk: randomIds(2) };
    for (const lane of LANES) expect(await announce(link, ids[lane], lane)).toEqual([]);
    const sources = { express: givenSource('express'), bulk: givenSource('bulk') };
    for (const lane of LANES) {
      const { read } = sources[lane];
      await eventually(() => expect(idsOf(read)).toEqual(ids[lane]));
      expect(read.map((id) => id.lane)).toEqual(ids[lane].map(() => lane));
    }
  });

  it('stop by themselves when the process has no use for more of theirs', async () => {
    const ids = { express: randomIds(1), bulk: randomIds(1) };
    for (const lane of LANES) await announce(link, ids[lane], lane);
    let room = 0;
    const bulk = givenSource('bulk', { wanted: () => room });
    const express = givenSource('express');
    await eventually(() => expect(idsOf(express.read)).toEqual(ids.express));
    expect(bulk.read).toEqual([]);
    room = 1;
    bulk.source.wake();
    await eventually(() => expect(idsOf(bulk.read)).toEqual(ids.bulk));
  });

  it.each(LANES)('decide what was claimed, so that nothing of it is left on %s', async (lane) => {
    await announce(link, randomIds(5), lane);
    const { source, read } = givenSource(lane);
    await eventually(() => expect(read).toHaveLength(5));
    source.decide(read.slice(0, 4));
    expect(await lengthOf(lane)).toBe(1);
    source.decide(read.slice(4));
    await eventually(async () => expect(await lengthOf(lane)).toBe(0));
  });

  it.each(LANES)('that leave give back to %s what was read on it and not claimed', async (lane) => {
    const ids = randomIds(5);
    await announce(link, ids, lane);
    const { source, read } = givenSource(lane);
    await eventually(() => expect(read).toHaveLength(5));
    await source.stopReading();
    source.decide(read.slice(0, 2));
    await source.leave(read.slice(2));
    const heir = givenSource(lane);
    await eventually(() => expect(idsOf(heir.read)).toEqual(ids.slice(2)));
    expect(await lengthOf(lane === 'bulk' ? 'express' : 'bulk')).toBe(0);
  });

  it('stop at once, whatever their reads still wait for', async () => {
    const sources = LANES.map((lane) => givenSource(lane, { blockMs: 10_000 }).source);
    await eventually(async () => expect(await link.client.info('clients')).toContain('blocked_clients:2'));
    const stoppedAt = performance.now();
    await Promise.all(sources.map((source) => source.stopReading()));
    expect(performance.now() - stoppedAt).toBeLessThan(5_000);
  });
});
