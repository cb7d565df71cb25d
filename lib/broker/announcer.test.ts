import type { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { givenBroker, givenLink, givenRawRedis, randomIds } from '../../services/testing/given-broker.ts';
import { type PrivateRedis, startPrivateRedis } from '../../services/testing/private-servers.ts';
import { announce } from './announcer.ts';
import { type BrokerOptions, streamKey } from './client.ts';
import type { RedisLink } from './link.ts';

let redis: PrivateRedis;
let raw: Redis;
let options: BrokerOptions;
let link: RedisLink;

beforeAll(async () => {
  redis = await startPrivateRedis();
  raw = await givenRawRedis(redis.url);
});
beforeEach(async () => {
  options = givenBroker(redis.url);
  link = await givenLink(options);
});
afterEach(async () => {
  await link.stop();
});
afterAll(async () => {
  raw.disconnect();
  await redis.stop();
});

describe('an announcement', () => {
  it('packs the ids of a commit, with their count and a format version, and nothing else', async () => {
    const ids = randomIds(130);
    expect(await announce(link, ids, 'express')).toEqual([]);
    const entries = await raw.xrange(streamKey(options, 'express'), '-', '+');
    expect(entries.map(([, fields]) => fields)).toEqual([
      ['v', '1', 'n', '128', 'ids', ids.slice(0, 128).join(',')],
      ['v', '1', 'n', '2', 'ids', ids.slice(128).join(',')],
    ]);
  });

  it('goes to the stream of its lane', async () => {
    await announce(link, randomIds(200), 'bulk');
    expect(await raw.xlen(`${options.keyPrefix}relay:deliveries:bulk`)).toBe(2);
    expect(await raw.xlen(`${options.keyPrefix}relay:deliveries`)).toBe(0);
  });

  it('of nothing writes nothing', async () => {
    expect(await announce(link, [], 'express')).toEqual([]);
    expect(await raw.xlen(streamKey(options, 'express'))).toBe(0);
  });

  it('to a key that is no stream comes back whole, and throws nothing', async () => {
    await raw.del(streamKey(options, 'express'));
    await raw.set(streamKey(options, 'express'), 'a word');
    const ids = randomIds(3);
    expect(await announce(link, ids, 'express')).toEqual(ids);
  });

  it('trims a stream that nobody reads, far above any healthy backlog', async () => {
    const key = streamKey(options, 'express');
    await raw.eval(`for i = 1, 500500 do redis.call('XADD', KEYS[1], '*', 'v', '1') end`, 1, key);
    await announce(link, randomIds(1), 'express');
    const length = await raw.xlen(key);
    expect(length).toBeGreaterThanOrEqual(500_000);
    expect(length).toBeLessThan(500_200);
    await raw.del(key);
  });
});
