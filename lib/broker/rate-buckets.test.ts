import fc from 'fast-check';
import type { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { givenBroker, givenLink, givenRawRedis } from '../../services/testing/given-broker.ts';
import { type PrivateRedis, startPrivateRedis } from '../../services/testing/private-servers.ts';
import { askBucket, type Bucket, type BucketAsk, type BucketReply } from '../domain/rate-bucket.ts';
import type { RedisLink } from './link.ts';
import {
  askRateBuckets,
  BUCKET_SCRIPT,
  decodeReply,
  type EndpointAsk,
  encodeAsks,
  rateKey,
} from './rate-buckets.ts';

let redis: PrivateRedis;
let raw: Redis;
let link: RedisLink;

beforeAll(async () => {
  redis = await startPrivateRedis();
  raw = await givenRawRedis(redis.url);
  link = await givenLink(givenBroker(redis.url));
});
afterAll(async () => {
  await link.stop();
  raw.disconnect();
  await redis.stop();
});

const NOTHING: BucketAsk = {
  slotVersion: 1,
  ratePerSecond: 10,
  burst: 20,
  waited: 0,
  fresh: 0,
  slots: 0,
  everyUs: 100_000,
  afterUs: 0,
  maxWaitUs: 1_000_000,
  owedUs: 0,
  known: { because: 'unknown', horizonUs: 0 },
};

const one = (endpointId: string, ask: Partial<BucketAsk>): EndpointAsk => ({
  endpointId,
  ask: { ...NOTHING, ...ask },
});

async function answered(
  endpointId: string,
  ask: Partial<BucketAsk>,
): Promise<BucketReply & { kind: 'answered' }> {
  const [reply] = await askRateBuckets(link, [one(endpointId, ask)]);
  if (reply?.kind !== 'answered') throw new Error('asked back');
  return reply;
}

/** The script with a clock of the test's own, the last argument, in the place of the server's. */
async function runAt(now: number, asks: readonly EndpointAsk[]): Promise<BucketReply[]> {
  const script = `local now = tonumber(table.remove(ARGV))\n${BUCKET_SCRIPT}`;
  const keys = asks.map(({ endpointId }) => `at:${endpointId}`);
  const replies = await raw.eval(script, keys.length, ...keys, encodeAsks(asks), now);
  return (replies as Parameters<typeof decodeReply>[0][]).map(decodeReply);
}

describe('the script', () => {
  const count = fc.oneof(fc.constant(0), fc.nat(40));
  const asks = fc.record({
    endpointId: fc.constantFrom('a', 'b'),
    slotVersion: fc.integer({ min: 1, max: 3 }),
    ratePerSecond: fc.constantFrom(0.01, 1 / 3, 5, 50, 49.7, 1e4, 1e9),
    burst: fc.constantFrom(1, 2.5, 20, 1e6),
    waited: count,
    fresh: count,
    slots: count,
    everyUs: fc.constantFrom(1, 20_000, 333_333, 1_100_000, 3_600_000_000),
    afterUs: fc.constantFrom(0, 0, 1_000, 30_000_000),
    maxWaitUs: fc.constantFrom(0, 250_000, 1_000_000),
    owedUs: fc.constantFrom(0, 0, 0, 30_000, 700_001),
    known: fc.oneof(
      { weight: 3, arbitrary: fc.constant(null) },
      fc.record({
        because: fc.constantFrom('unknown' as const, 'away' as const, 'suspect' as const),
        horizonUs: fc.oneof(fc.constant(0), fc.nat(60_000_000)),
      }),
    ),
  });
  const step = fc.record({
    passUs: fc.oneof(fc.nat(2_000), fc.nat(5_000_000), fc.constant(-1_000_000)),
    asks: fc.array(asks, { minLength: 1, maxLength: 4 }),
  });

  it('answers as the process does, to the microsecond, whatever it is asked and when', async () => {
    let seen = 0;
    await fc.assert(
      fc.asyncProperty(fc.array(step, { minLength: 1, maxLength: 20 }), async (steps) => {
        await raw.del('at:a', 'at:b');
        const buckets = new Map<string, Bucket | null>();
        let now = 1_764_590_000_123_457;
        for (const { passUs, asks } of steps) {
          now += passUs;
          const questions = asks.map(({ endpointId, ...ask }) => ({ endpointId, ask }));
          const expected = questions.map(({ endpointId, ask }) => {
            const { bucket, reply } = askBucket(buckets.get(endpointId) ?? null, ask, now);
            buckets.set(endpointId, bucket);
            return reply;
          });
          expect(await runAt(now, questions)).toEqual(expected);
          seen += expected.filter(({ kind }) => kind === 'answered').length;
        }
      }),
      { numRuns: 300 },
    );
    expect(seen).toBeGreaterThan(1_000);
  });
});

describe('the buckets in Redis', () => {
  it('are asked for many endpoints in one round trip, for one of them more than once in order', async () => {
    const calls = async () =>
      Number(/cmdstat_evalsha:calls=(\d+)/.exec(await raw.info('commandstats'))?.[1] ?? 0);
    await answered('warm', {});
    const before = await calls();
    const replies = await askRateBuckets(link, [
      one('m1', { fresh: 1 }),
      one('m2', { slots: 1 }),
      one('m1', { fresh: 1 }),
      { endpointId: 'm3', ask: { ...NOTHING, known: null } },
    ]);
    expect(replies).toMatchObject([
      { goUs: [0] },
      { slotsUs: [1_100_000] },
      { goUs: [100_000] },
      { kind: 'needs_horizon', because: 'unknown' },
    ]);
    expect((await calls()) - before).toBe(1);
  });

  it('go by the clock of the server', async () => {
    await answered('clock', { fresh: 1 });
    const at = (await raw.getBuffer(rateKey(link, 'clock')))!.readDoubleLE(8);
    const [seconds, micros] = (await raw.time()) as [number, number];
    const ago = Number(seconds) * 1e6 + Number(micros) - at;
    expect(ago).toBeGreaterThan(0);
    expect(ago).toBeLessThan(10_000_000);
  });

  it('are named by prefix and endpoint, and hold numbers alone', async () => {
    await answered('named', { fresh: 1 });
    expect(rateKey(link, 'named')).toBe(`${link.options.keyPrefix}relay:rate:named`);
    expect(await raw.getBuffer(rateKey(link, 'named'))).toHaveLength(7 * 8);
  });

  it.each([
    ['an hour', {}, 3_600_000],
    ['until a slow one is full', { ratePerSecond: 0.001, burst: 11 }, 10_000_000],
    ['an hour past the last slot', { slots: 1, afterUs: 7_200_000_000 }, 10_800_100],
    ['400 days at most', { ratePerSecond: 1e-9, burst: 1e9 }, 34_560_000_000],
  ])('last %s', async (name, ask, expectedMs) => {
    await answered(`lasts ${name}`, ask);
    const left = await raw.pttl(rateKey(link, `lasts ${name}`));
    expect(left).toBeGreaterThan(expectedMs - 10_000);
    expect(left).toBeLessThanOrEqual(expectedMs);
  });

  it('are counted as lost when they cannot be read', async () => {
    await raw.set(rateKey(link, 'odd'), 'something else');
    expect(await askRateBuckets(link, [one('odd', { known: null })])).toEqual([
      { kind: 'needs_horizon', because: 'unknown' },
    ]);
    expect((await answered('odd', { fresh: 2 })).goUs).toEqual([0, 100_000]);
  });

  it('survive the loss of the script', async () => {
    await answered('script', { fresh: 1 });
    await raw.script('FLUSH');
    expect((await answered('script', { fresh: 1, known: null })).goUs[0]).toBeGreaterThan(0);
  });

  it('promise nothing while Redis is full, for it would be forgotten', async () => {
    await answered('full', { slots: 1 });
    await raw.config('SET', 'maxmemory-policy', 'noeviction');
    await raw.config('SET', 'maxmemory', '1mb');
    try {
      await expect(answered('full', { slots: 1 })).rejects.toThrow('OOM');
    } finally {
      await raw.config('SET', 'maxmemory', '0');
    }
    expect((await answered('full', { slots: 1, known: null })).horizonUs).toBeGreaterThan(0);
  });
});
