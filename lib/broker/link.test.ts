import type { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { eventually } from '../../services/testing/eventually.ts';
import { givenBroker, givenConsumer, givenRawRedis, randomIds } from '../../services/testing/given-broker.ts';
import { type PrivateRedis, startPrivateRedis } from '../../services/testing/private-servers.ts';
import { startTcpProxy } from '../../services/testing/tcp-proxy.ts';
import { announce } from './announcer.ts';
import { RedisLink } from './link.ts';

let redis: PrivateRedis;
let raw: Redis;
const links: RedisLink[] = [];

beforeAll(async () => {
  redis = await startPrivateRedis();
  raw = await givenRawRedis(redis.url);
});
afterEach(async () => {
  await Promise.all(links.splice(0).map((link) => link.stop()));
});
afterAll(async () => {
  raw.disconnect();
  await redis.stop();
});

interface Watched {
  link: RedisLink;
  changes: { up: boolean; reason: string }[];
}

async function watch(options: Parameters<typeof givenBroker>[1] & { url?: string } = {}): Promise<Watched> {
  const changes: Watched['changes'] = [];
  const link = new RedisLink({
    ...givenBroker(options.url ?? redis.url, options),
    onChange: (up, reason) => changes.push({ up, reason }),
  });
  links.push(link);
  await link.start();
  return { link, changes };
}

async function nextProbe(): Promise<void> {
  const count = async () => /cmdstat_xgroup\|create:calls=(\d+)/.exec(await raw.info('commandstats'))?.[1];
  const before = await count();
  await eventually(async () => expect(await count()).not.toBe(before));
}

const becomes = (link: RedisLink, up: boolean, withinMs = 5_000) =>
  eventually(() => expect(link.up).toBe(up), withinMs);

describe('the link to a Redis that answers', () => {
  it('is up once started, says so once, and has made both groups', async () => {
    const { link, changes } = await watch({ stream: 'of-its-own', group: 'members', keyPrefix: 'app:' });
    expect([link.up, changes]).toEqual([true, [{ up: true, reason: 'answers' }]]);
    for (const key of ['app:of-its-own', 'app:of-its-own:bulk']) {
      const groups = (await raw.xinfo('GROUPS', key)) as string[][];
      expect(groups[0]?.slice(0, 2)).toEqual(['name', 'members']);
    }
  });

  it('names its keys by prefix and stream, so that two installations never meet', async () => {
    const [one, two] = [await watch({ keyPrefix: 'one:' }), await watch({ keyPrefix: 'two:' })];
    const ids = randomIds(1);
    await announce(one.link, ids, 'express');
    const elsewhere = givenConsumer(two.link);
    expect(await elsewhere.read(1)).toEqual([]);
    const here = givenConsumer(one.link);
    expect((await here.read(1))[0]?.deliveryIds).toEqual(ids);
    expect(await raw.xlen('one:relay:deliveries')).toBe(1);
    await Promise.all([elsewhere.leave(), here.leave()]);
  });

  it('heals flushed groups within a second, while nobody reads', async () => {
    const { link, changes } = await watch({ keyPrefix: 'healed:' });
    await raw.flushall();
    const keys = ['healed:relay:deliveries', 'healed:relay:deliveries:bulk'];
    await eventually(async () => expect(await raw.exists(...keys)).toBe(2), 3_000);
    expect([link.up, changes.length]).toEqual([true, 1]);
  });

  it('stays up over one late answer', async () => {
    const { link, changes } = await watch();
    link.reportFailure(new Error('Command timed out'));
    expect(link.up).toBe(true);
    await nextProbe();
    link.reportFailure(new Error('Command timed out'));
    expect([link.up, changes.length]).toEqual([true, 1]);
  });
});

describe('the link to a Redis that goes away', () => {
  it('is down at once when the connection closes, and up again when it is back', async () => {
    const { link, changes } = await watch();
    await redis.stop();
    await becomes(link, false, 2_000);
    const started = performance.now();
    expect(await announce(link, ['id'], 'express')).toEqual(['id']);
    expect(performance.now() - started).toBeLessThan(500);
    await redis.start();
    await becomes(link, true);
    expect(changes.map(({ up }) => up)).toEqual([true, false, true]);
    expect(await announce(link, randomIds(1), 'express')).toEqual([]);
  });

  it('without a word is down within 3 s, and up again soon after the network is back', async () => {
    const proxy = await startTcpProxy(redis.url);
    const { link, changes } = await watch({ url: proxy.url });
    proxy.swallow();
    await becomes(link, false, 4_000);
    // By now it has tried new connections, which are as dead.
    await eventually(() => expect(proxy.opened).toBeGreaterThan(1), 6_000);
    proxy.pass();
    await becomes(link, true, 6_000);
    expect(changes.map(({ up }) => up)).toEqual([true, false, true]);
    expect(await announce(link, randomIds(1), 'express')).toEqual([]);
    await link.stop();
    await proxy.close();
  });

  it('was never there: the start goes on without it, and finds it later', async () => {
    const proxy = await startTcpProxy(redis.url);
    proxy.refuse();
    const started = performance.now();
    const { link, changes } = await watch({ url: proxy.url });
    expect(performance.now() - started).toBeLessThan(4_000);
    expect([link.up, changes]).toEqual([false, [{ up: false, reason: 'no answer at start' }]]);
    proxy.pass();
    await becomes(link, true);
    await link.stop();
    await proxy.close();
  });
});

describe('the link to a Redis that takes no writes', () => {
  beforeEach(async () => {
    await raw.flushall();
  });

  it('is down while its memory is full, although it answers', async () => {
    const { link, changes } = await watch();
    await raw.config('SET', 'maxmemory-policy', 'noeviction');
    await raw.config('SET', 'maxmemory', '1mb');
    try {
      await becomes(link, false);
      expect(changes.at(-1)?.reason).toContain('OOM');
      expect(await raw.ping()).toBe('PONG');
      const ids = randomIds(2);
      expect(await announce(link, ids, 'express')).toEqual(ids);
    } finally {
      await raw.config('SET', 'maxmemory', '0');
    }
    await becomes(link, true);
  });

  it('is down while it is a replica', async () => {
    const { link } = await watch();
    await raw.replicaof('127.0.0.1', '1');
    try {
      await becomes(link, false);
    } finally {
      await raw.replicaof('NO', 'ONE');
    }
    await becomes(link, true);
  });
});

describe('a link that was stopped', () => {
  it('says nothing more and leaves no connection', async () => {
    const { link, changes } = await watch();
    const before = await connections();
    await link.stop();
    await eventually(async () => expect(await connections()).toBe(before - 1));
    link.reportFailure(new Error('late'));
    expect(changes.map(({ up }) => up)).toEqual([true]);
  });

  async function connections(): Promise<number> {
    return ((await raw.client('LIST')) as string).trim().split('\n').length;
  }
});
