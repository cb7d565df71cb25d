import { randomUUID } from 'node:crypto';
import type { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import type { BrokerOptions } from '../../lib/broker/client.ts';
import type { RedisLink } from '../../lib/broker/link.ts';
import { rateKey } from '../../lib/broker/rate-buckets.ts';
import type { RateAsk } from '../../lib/domain/rate-bucket.ts';
import { rateMetrics } from '../../lib/metrics/rate.ts';
import { Metrics } from '../../lib/metrics/registry.ts';
import { eventually } from '../testing/eventually.ts';
import { givenBroker, givenLink, givenRawRedis } from '../testing/given-broker.ts';
import { type PrivateRedis, startPrivateRedis } from '../testing/private-servers.ts';
import { startTcpProxy, type TcpProxy } from '../testing/tcp-proxy.ts';
import { FleetRateLimiter, type FleetRateLimiterOptions, type SlotsOf } from './rate-limiter.ts';

let redis: PrivateRedis;
let raw: Redis;
let broker: BrokerOptions;
const links: RedisLink[] = [];

beforeAll(async () => {
  redis = await startPrivateRedis();
  raw = await givenRawRedis(redis.url);
});
beforeEach(() => {
  broker = givenBroker(redis.url);
});
afterEach(async () => {
  await Promise.all(links.splice(0).map((link) => link.stop()));
});
afterAll(async () => {
  raw.disconnect();
  await redis.stop();
});

async function linked(url = redis.url): Promise<RedisLink> {
  const link = await givenLink({ ...broker, url });
  links.push(link);
  return link;
}

/** A limiter with a database of its own, which knows nothing until it is told. */
function givenLimiter(link: RedisLink | null, options: Partial<FleetRateLimiterOptions> = {}) {
  const horizons = new Map<string, number>();
  const reads: SlotsOf[][] = [];
  const fallbacks: string[] = [];
  const metrics = new Metrics({ processMetrics: false });
  const limiter = new FleetRateLimiter({
    link,
    readHorizons: async (endpoints) => {
      reads.push([...endpoints]);
      return horizons;
    },
    liveDispatchers: () => 1,
    metrics: rateMetrics(metrics),
    onFallback: (reason) => fallbacks.push(reason),
    ...options,
  });
  const counted = async (by: 'redis' | 'process') => {
    const text = await metrics.registry.metrics();
    return Number(new RegExp(`relay_rate_limiter_asks_total{by="${by}"} (\\d+)`).exec(text)?.[1]);
  };
  return { limiter, horizons, reads, fallbacks, counted, metrics };
}

function askFor(ask: Partial<RateAsk> = {}): RateAsk {
  const ratePerSecond = ask.ratePerSecond ?? 10;
  return {
    endpointId: randomUUID(),
    slotVersion: 1,
    ratePerSecond,
    burst: 20,
    waited: 0,
    fresh: 0,
    slots: 0,
    slotEveryMs: 1_000 / ratePerSecond,
    slotsAfterMs: 0,
    maxWaitMs: 1_000,
    ...ask,
  };
}

async function askOne(limiter: FleetRateLimiter, ask: RateAsk) {
  const [answer] = await limiter.ask([ask]);
  return answer!;
}

/** Asks with all its might for `forMs`; returns the moments of what may go, by one clock, ms. */
async function spend(limiter: FleetRateLimiter, ask: RateAsk, forMs: number): Promise<number[]> {
  const moments: number[] = [];
  const end = performance.now() + forMs;
  while (performance.now() < end) {
    const sentAt = performance.now();
    const { go } = await askOne(limiter, ask);
    moments.push(...go.map((delay) => sentAt + delay));
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  return moments;
}

const within = (moments: readonly number[], from: number, to: number) =>
  moments.filter((moment) => moment >= from && moment < to).length;

function mostInASecond(moments: readonly number[]): number {
  return Math.max(...moments.map((from) => within(moments, from, from + 1_000)));
}

describe('two processes that share a Redis', () => {
  const RATE = 50;
  const BURST = 20;

  async function spendTogether(forMs: number, meanwhile: () => Promise<unknown> = async () => undefined) {
    const ask = askFor({ ratePerSecond: RATE, burst: BURST, waited: 8 });
    const limiters = [givenLimiter(await linked()), givenLimiter(await linked())];
    const start = performance.now();
    const [one, two] = await Promise.all([
      ...limiters.map(({ limiter }) => spend(limiter, ask, forMs)),
      meanwhile(),
    ]);
    const moments = [...(one as number[]), ...(two as number[])];
    return { moments, start, each: [one as number[], two as number[]] };
  }

  it('keep to one rate together, and use it', async () => {
    const { moments, start, each } = await spendTogether(3_000);
    for (const seconds of [1, 2, 3]) {
      const count = within(moments, start, start + seconds * 1_000);
      expect(count).toBeLessThanOrEqual(RATE * seconds + BURST);
      expect(count).toBeGreaterThanOrEqual(0.95 * RATE * seconds);
    }
    expect(mostInASecond(moments)).toBeLessThanOrEqual(RATE + BURST);
    for (const part of each) expect(part.length).toBeGreaterThan(0);
  });

  it('keep to it, and use it, when the buckets are flushed away', async () => {
    const { moments, start } = await spendTogether(3_000, async () => {
      await new Promise((resolve) => setTimeout(resolve, 1_200));
      await raw.flushall();
    });
    expect(mostInASecond(moments)).toBeLessThanOrEqual(RATE + BURST);
    const count = within(moments, start, start + 3_000);
    expect(count).toBeLessThanOrEqual(RATE * 3 + BURST);
    expect(count).toBeGreaterThanOrEqual(0.95 * RATE * 3);
  });

  it('never give the same slot twice', async () => {
    const ask = askFor({ slots: 100 });
    const [one, two] = [givenLimiter(await linked()), givenLimiter(await linked())];
    const before = Date.now();
    const answers = await Promise.all(
      Array.from({ length: 20 }, (_, n) => askOne((n % 2 ? one : two).limiter, ask)),
    );
    const took = Date.now() - before;
    const horizonUs = (await raw.getBuffer(rateKey(links[0]!, ask.endpointId)))!.readDoubleLE(5 * 8);
    const ends = answers.map(({ horizonMs }) => horizonMs).sort((a, b) => a - b);
    // Each got a hundred places of its own: the ends are 10 s apart, but for the time that passed between the answers.
    for (const [place, end] of ends.entries()) {
      expect(Math.abs(end - (1_000 + (place + 1) * 10_000))).toBeLessThan(took + 5);
    }
    expect(horizonUs / 1_000 - Date.now()).toBeGreaterThan(200_000 - took - 1_000);
  });
});

describe('a bucket that nobody remembers', () => {
  it('is begun behind the slots that the database knows, which is asked once for all', async () => {
    const { limiter, horizons, reads } = givenLimiter(await linked());
    const asks = [askFor({ slots: 2 }), askFor({ slots: 1 }), askFor({ fresh: 1 })];
    horizons.set(asks[0]!.endpointId, 60_000);
    const [behind, first, fresh] = await limiter.ask(asks);
    expect(behind!.slots).toEqual([60_100, 60_200]);
    expect(first!.slots).toEqual([1_100]);
    expect(fresh!.go).toEqual([0]);
    expect(reads.map((endpoints) => endpoints.map(({ endpointId }) => endpointId))).toEqual([
      asks.map(({ endpointId }) => endpointId),
    ]);
    await limiter.ask(asks);
    expect(reads).toHaveLength(1);
  });

  it('is rebuilt after a flush before a new slot is given', async () => {
    const { limiter, horizons, reads } = givenLimiter(await linked());
    const ask = askFor({ slots: 10 });
    await askOne(limiter, ask);
    await raw.flushall();
    horizons.set(ask.endpointId, 2_000);
    expect((await askOne(limiter, { ...ask, slots: 1 })).slots).toEqual([2_100]);
    expect(reads).toHaveLength(2);
  });

  it('is looked up once for all who ask at the same time', async () => {
    const link = await linked();
    let reads = 0;
    const { limiter } = givenLimiter(link, {
      readHorizons: async () => {
        reads += 1;
        // Answers come in order: by now each of the ten has been asked back. Twice, for the script itself may have been asked back first.
        await link.client.ping();
        await link.client.ping();
        return new Map();
      },
    });
    const ask = askFor({ slots: 1 });
    await Promise.all(Array.from({ length: 10 }, () => askOne(limiter, ask)));
    expect(reads).toBe(1);
  });

  it('is begun by nobody while the database cannot be asked', async () => {
    const { limiter } = givenLimiter(await linked(), {
      readHorizons: () => Promise.reject(new Error('the database is away')),
    });
    const ask = askFor({ slots: 1 });
    await expect(askOne(limiter, ask)).rejects.toThrow('the database is away');
    expect(await raw.exists(rateKey(links[0]!, ask.endpointId))).toBe(0);
  });

  it('costs nothing when the script is forgotten too', async () => {
    const { limiter, fallbacks } = givenLimiter(await linked());
    await askOne(limiter, askFor({ fresh: 1 }));
    await raw.script('FLUSH');
    expect((await askOne(limiter, askFor({ fresh: 1 }))).go).toEqual([0]);
    expect(fallbacks).toEqual([]);
  });
});

describe('slots for which nobody comes', () => {
  /** Rewrites the bucket as if what happened had happened earlier. */
  async function age(ask: RateAsk, ms: number): Promise<void> {
    const key = rateKey(links[0]!, ask.endpointId);
    const bucket = (await raw.getBuffer(key))!;
    const [at, horizon, heard] = [1, 5, 6];
    for (const field of [at, horizon, heard]) {
      bucket.writeDoubleLE(bucket.readDoubleLE(field! * 8) - ms * 1_000, field! * 8);
    }
    await raw.set(key, bucket);
  }

  it('are given up when the database does not know them', async () => {
    const { limiter, reads } = givenLimiter(await linked());
    const ask = askFor({ slots: 200 });
    await askOne(limiter, ask);
    await age(ask, 3_000);
    const { go, horizonMs } = await askOne(limiter, { ...ask, slots: 0, fresh: 1 });
    expect([go, horizonMs]).toEqual([[0], 0]);
    expect(reads).toHaveLength(2);
  });

  it('stay when it does, and it is not asked again within 2 s by anybody', async () => {
    const [one, two] = [givenLimiter(await linked()), givenLimiter(await linked())];
    const ask = askFor({ slots: 200 });
    await askOne(one.limiter, ask);
    for (const { horizons } of [one, two]) horizons.set(ask.endpointId, 18_000);
    await age(ask, 3_000);
    for (let n = 0; n < 20; n += 1) {
      const { slots } = await askOne((n % 2 ? one : two).limiter, { ...ask, slots: 0, fresh: 1 });
      expect(slots[0]).toBeGreaterThan(17_000);
    }
    expect(one.reads.length + two.reads.length).toBe(2);
  });
});

describe('a process without Redis', () => {
  it('keeps its part of the rate by itself', async () => {
    const { limiter, reads, counted, fallbacks } = givenLimiter(null, { liveDispatchers: () => 4 });
    const ask = askFor({ ratePerSecond: 40, burst: 20, fresh: 30, slots: 2 });
    const { go, slots } = await askOne(limiter, ask);
    expect(go).toEqual(Array.from({ length: 11 }, (_, n) => n * 100));
    expect(slots).toHaveLength(21);
    // Four that give a slot every 100 ms give one every 25 ms together.
    expect(slots.slice(0, 2)).toEqual([1_100, 1_200]);
    expect([reads.length, await counted('process'), await counted('redis'), fallbacks]).toEqual([
      1,
      1,
      0,
      [],
    ]);
  });

  it('never has less than one token to itself, or a slow endpoint would hear nothing', async () => {
    const { limiter } = givenLimiter(null, { liveDispatchers: () => 50 });
    expect((await askOne(limiter, askFor({ burst: 1, ratePerSecond: 1, fresh: 1 }))).go).toEqual([0]);
  });

  it('follows the number of processes', async () => {
    let live = 1;
    const { limiter } = givenLimiter(null, { liveDispatchers: () => live });
    const ask = askFor({ slots: 2 });
    expect((await askOne(limiter, ask)).slots).toEqual([1_100, 1_200]);
    live = 10;
    const [first, second] = (await askOne(limiter, ask)).slots;
    expect(second! - first!).toBe(1_000);
  });
});

describe('a process that loses Redis', () => {
  let proxy: TcpProxy;
  beforeEach(async () => {
    proxy = await startTcpProxy(redis.url);
  });
  afterEach(async () => {
    await Promise.all(links.splice(0).map((link) => link.stop()));
    await proxy.close();
  });

  it('answers by itself within 300 ms, then at once, and goes back when Redis answers', async () => {
    const given = givenLimiter(await linked(proxy.url));
    const ask = askFor({ fresh: 1, ratePerSecond: 1_000 });
    await askOne(given.limiter, ask);
    proxy.swallow();
    const started = performance.now();
    expect((await askOne(given.limiter, ask)).go).toHaveLength(1);
    expect(performance.now() - started).toBeLessThan(300);
    const again = performance.now();
    await askOne(given.limiter, ask);
    expect(performance.now() - again).toBeLessThan(100);
    expect(given.fallbacks).toEqual(['no answer within 250 ms']);
    expect(await given.counted('process')).toBe(2);

    proxy.pass();
    const before = await given.counted('redis');
    await eventually(async () => {
      await askOne(given.limiter, ask);
      expect(await given.counted('redis')).toBeGreaterThan(before);
    });
    expect(given.fallbacks).toHaveLength(1);
  });

  it('lets one question try whether it is back, and keeps nobody else waiting', async () => {
    const { limiter, fallbacks } = givenLimiter(await linked());
    const ask = askFor({ fresh: 1, ratePerSecond: 1_000 });
    await askOne(limiter, ask);
    await raw.client('PAUSE', 500);
    await askOne(limiter, ask);
    expect(fallbacks).toHaveLength(1);
    const leftAloneUntil = performance.now() + 1_000;
    await eventually(() => expect(performance.now()).toBeGreaterThan(leftAloneUntil));

    await raw.client('PAUSE', 500);
    const answered: number[] = [];
    await Promise.all([0, 1, 2, 3].map((n) => askOne(limiter, ask).then(() => answered.push(n))));
    expect(answered).toEqual([1, 2, 3, 0]);
    await raw.client('UNPAUSE');
  });

  it('comes back behind the slots that were given meanwhile, and with no second burst', async () => {
    const { limiter, horizons, counted } = givenLimiter(await linked(proxy.url));
    const ask = askFor({ slots: 1 });
    await askOne(limiter, ask);
    proxy.refuse();
    await eventually(() => expect(links[0]!.up).toBe(false));
    const local = await askOne(limiter, { ...ask, slots: 300 });
    expect(local.horizonMs).toBeGreaterThanOrEqual(31_000);
    horizons.set(ask.endpointId, 45_000);
    proxy.pass();
    await eventually(() => expect(links[0]!.up).toBe(true));
    const before = await counted('redis');
    const back = await eventually(async () => {
      const answer = await askOne(limiter, { ...ask, waited: 20, slots: 1, maxWaitMs: 0 });
      expect(await counted('redis')).toBe(before + 1);
      return answer;
    });
    expect(back.go).toHaveLength(1);
    expect(back.slots[0]).toBeGreaterThan(45_000);
  });

  it('keeps what Redis promised before: nothing goes twice over the rate', async () => {
    const { limiter } = givenLimiter(await linked(proxy.url));
    const ask = askFor({ ratePerSecond: 50, burst: 20, waited: 8 });
    const losing = (async () => {
      await new Promise((resolve) => setTimeout(resolve, 1_200));
      proxy.refuse();
    })();
    const moments = await spend(limiter, ask, 3_000);
    await losing;
    expect(mostInASecond(moments)).toBeLessThanOrEqual(70);
    const [first] = moments;
    expect(within(moments, first!, first! + 3_000)).toBeGreaterThanOrEqual(0.95 * 150);
  });
});

describe('a Redis that is stopped or full', () => {
  it('is replaced within 300 ms and comes back', async () => {
    const own = await startPrivateRedis();
    const { limiter, counted, fallbacks } = givenLimiter(await linked(own.url));
    const ask = askFor({ fresh: 1, ratePerSecond: 1_000 });
    await askOne(limiter, ask);
    await own.stop();
    const started = performance.now();
    expect((await askOne(limiter, ask)).go).toHaveLength(1);
    expect(performance.now() - started).toBeLessThan(300);
    expect(fallbacks).toHaveLength(1);
    await own.start();
    const before = await counted('redis');
    await eventually(async () => {
      await askOne(limiter, ask);
      expect(await counted('redis')).toBeGreaterThan(before);
    });
    await links.pop()!.stop();
    await own.stop();
  });

  it('counts as away when it has no room, and its link hears of it', async () => {
    const link = await linked();
    const { limiter, fallbacks, counted } = givenLimiter(link);
    const ask = askFor({ fresh: 1, ratePerSecond: 1_000 });
    await askOne(limiter, ask);
    await raw.config('SET', 'maxmemory-policy', 'noeviction');
    await raw.config('SET', 'maxmemory', '1mb');
    try {
      expect((await askOne(limiter, ask)).go).toHaveLength(1);
      expect(fallbacks[0]).toContain('OOM');
      expect(await counted('process')).toBe(1);
      await eventually(() => expect(link.up).toBe(false), 2_000);
    } finally {
      await raw.config('SET', 'maxmemory', '0');
    }
  });
});

describe('what is counted', () => {
  it('is there from the start, at zero', async () => {
    const { metrics } = givenLimiter(null);
    const text = await metrics.registry.metrics();
    expect(text).toContain('relay_rate_limiter_asks_total{by="redis"} 0');
    expect(text).toContain('relay_rate_limiter_asks_total{by="process"} 0');
    expect(text).toContain('relay_rate_limiter_horizons_read_total 0');
  });
});

it('nothing asked is nothing answered', async () => {
  const { limiter, reads } = givenLimiter(await linked());
  expect([await limiter.ask([]), reads]).toEqual([[], []]);
});
