import type { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { eventually } from '../../services/testing/eventually.ts';
import {
  givenBroker,
  givenConsumer,
  givenLink,
  givenRawRedis,
  randomIds,
} from '../../services/testing/given-broker.ts';
import { type PrivateRedis, startPrivateRedis } from '../../services/testing/private-servers.ts';
import { startTcpProxy, type TcpProxy } from '../../services/testing/tcp-proxy.ts';
import { LANES } from '../domain/vocabulary.ts';
import { announce } from './announcer.ts';
import { type BrokerOptions, streamKey } from './client.ts';
import { removeConsumer, StreamConsumer, type StreamEntry } from './consumer.ts';
import type { RedisLink } from './link.ts';

let redis: PrivateRedis;
let raw: Redis;
let options: BrokerOptions;
let key: string;
let link: RedisLink;
const consumers: StreamConsumer[] = [];

beforeAll(async () => {
  redis = await startPrivateRedis();
  raw = await givenRawRedis(redis.url);
});
beforeEach(async () => {
  options = givenBroker(redis.url);
  key = streamKey(options, 'express');
  link = await givenLink(options);
});
afterEach(async () => {
  await Promise.all(consumers.splice(0).map((consumer) => consumer.leave()));
  await link.stop();
});
afterAll(async () => {
  raw.disconnect();
  await redis.stop();
});

function member(of = link, settings: Parameters<typeof givenConsumer>[1] = {}): StreamConsumer {
  const consumer = givenConsumer(of, settings);
  consumers.push(consumer);
  return consumer;
}

const idsOf = (entries: readonly StreamEntry[]) => entries.flatMap(({ deliveryIds }) => deliveryIds);
const entryIds = (entries: readonly StreamEntry[]) => entries.map(({ entryId }) => entryId);
const pending = async () => ((await raw.xpending(key, options.group)) as [number])[0];
const consumerNames = async () =>
  ((await raw.xinfo('CONSUMERS', key, options.group)) as string[][]).map((info) => info[1]);

const someoneWaits = () =>
  eventually(async () => expect(await raw.info('clients')).toContain('blocked_clients:1'));

/** Makes everything that is pending look as if it had been read long ago. */
async function agePending(name: string): Promise<void> {
  const rows = (await raw.xpending(key, options.group, '-', '+', 100)) as [string, string][];
  for (const [id] of rows) await raw.xclaim(key, options.group, name, 0, id, 'IDLE', 60_000, 'JUSTID');
}

describe('what is announced', () => {
  it('is read once, and after it is decided the stream is empty', async () => {
    const ids = randomIds(300);
    expect(await announce(link, ids, 'express')).toEqual([]);
    const entries = await member().read(10);
    expect(idsOf(entries)).toEqual(ids);
    expect(await member().read(10)).toEqual([]);
    expect([await raw.xlen(key), await pending()]).toEqual([3, 3]);
    await consumers[0]!.decide(entryIds(entries));
    expect([await raw.xlen(key), await pending()]).toEqual([0, 0]);
  });

  it('is shared by the members of the group', async () => {
    const batches = Array.from({ length: 40 }, () => randomIds(3));
    for (const batch of batches) await announce(link, batch, 'express');
    const [one, two] = [member(), member()];
    const read: StreamEntry[] = [];
    while (read.length < batches.length) {
      const [mine, yours] = await Promise.all([one.read(4), two.read(4)]);
      expect(mine.length + yours.length).toBeGreaterThan(0);
      read.push(...mine, ...yours);
    }
    expect(idsOf(read).sort()).toEqual(batches.flat().sort());
  });

  it('while somebody waits for it arrives at once', async () => {
    const waiting = member(link, { blockMs: 5_000 });
    const reading = waiting.read(10);
    await someoneWaits();
    const [id] = randomIds(1);
    const started = performance.now();
    await announce(link, [id!], 'express');
    expect(idsOf(await reading)).toEqual([id]);
    expect(performance.now() - started).toBeLessThan(1_000);
  });

  it('on one lane is nothing to the other', async () => {
    const [express, bulk] = [randomIds(2), randomIds(3)];
    await announce(link, express, 'express');
    await announce(link, bulk, 'bulk');
    const [fast, slow] = [member(link, { consumer: 'one' }), member(link, { consumer: 'one', lane: 'bulk' })];
    const [first, later] = [await fast.read(10), await slow.read(10)];
    expect([idsOf(first), idsOf(later)]).toEqual([express, bulk]);
    await slow.decide(entryIds(later));
    expect([await raw.xlen(key), await raw.xlen(streamKey(options, 'bulk'))]).toEqual([1, 0]);
  });

  it('never comes to nothing: an empty read, hold or decide is fine', async () => {
    const consumer = member();
    expect(await consumer.read(10)).toEqual([]);
    await consumer.hold([]);
    await consumer.decide([]);
  });
});

describe('a group that was flushed away', () => {
  it('is made again at the beginning of the stream, so that what was announced before it is read', async () => {
    const consumer = member();
    await consumer.read(1);
    await raw.del(key);
    const ids = randomIds(2);
    await raw.xadd(key, '*', 'v', '1', 'n', '2', 'ids', ids.join(','));
    const entries = await eventually(async () => {
      const read = await consumer.read(10);
      expect(read.length).toBe(1);
      return read;
    }, 2_000);
    expect(idsOf(entries)).toEqual(ids);
  });

  it.each(LANES)('under a read that waits on the %s lane is made again too', async (lane) => {
    const consumer = member(link, { blockMs: 3_000, lane });
    const reading = consumer.read(1);
    await someoneWaits();
    await raw.flushall();
    expect(await reading).toEqual([]);
    const ids = randomIds(1);
    await announce(link, ids, lane);
    expect(idsOf(await consumer.read(10))).toEqual(ids);
  });

  it('does not disturb whoever takes over, holds or decides', async () => {
    const consumer = member();
    await announce(link, randomIds(1), 'express');
    const entries = await consumer.read(1);
    await raw.del(key);
    expect(await consumer.takeOver(0, '0-0')).toEqual({ entries: [], cursor: '0-0' });
    await consumer.hold(entryIds(entries));
    await consumer.decide(entryIds(entries));
    expect(await raw.xlen(key)).toBe(0);
  });
});

describe('entries that somebody left undecided', () => {
  it('are taken over once they were idle long enough', async () => {
    const [dead, alive] = [member(link, { consumer: 'dead' }), member()];
    const ids = randomIds(5);
    await announce(link, ids, 'express');
    await dead.read(10);
    expect((await alive.takeOver(30_000, '0-0')).entries).toEqual([]);
    await agePending('dead');
    const { entries, cursor } = await alive.takeOver(30_000, '0-0');
    expect([idsOf(entries), cursor]).toEqual([ids, '0-0']);
    await alive.decide(entryIds(entries));
    expect(await raw.xlen(key)).toBe(0);
  });

  it('are not taken from a holder that says that it works on them', async () => {
    const [slow, alive] = [member(link, { consumer: 'slow' }), member()];
    await announce(link, randomIds(5), 'express');
    const held = await slow.read(10);
    await agePending('slow');
    await slow.hold(entryIds(held));
    expect((await alive.takeOver(30_000, '0-0')).entries).toEqual([]);
  });

  it('are walked with a cursor when there are many', async () => {
    const [dead, alive] = [member(link, { consumer: 'dead' }), member()];
    for (let n = 0; n < 70; n += 1) await announce(link, randomIds(1), 'express');
    await dead.read(100);
    await agePending('dead');
    let cursor = '0-0';
    const taken: StreamEntry[] = [];
    do {
      const step = await alive.takeOver(30_000, cursor);
      taken.push(...step.entries);
      cursor = step.cursor;
    } while (cursor !== '0-0');
    expect(taken.length).toBe(70);
  });

  it('in a reply that never arrived are found by the one under whose name they are', async () => {
    const consumer = member(link, { consumer: 'deaf' });
    const ids = randomIds(2);
    await announce(link, ids, 'express');
    await raw.xreadgroup('GROUP', options.group, 'deaf', 'COUNT', 10, 'STREAMS', key, '>');
    expect(await consumer.read(10)).toEqual([]);
    await agePending('deaf');
    expect(idsOf((await consumer.takeOver(30_000, '0-0')).entries)).toEqual(ids);
  });

  it('and were deleted meanwhile are dropped', async () => {
    const [dead, alive] = [member(link, { consumer: 'dead' }), member()];
    await announce(link, randomIds(1), 'express');
    const [entry] = await dead.read(1);
    await raw.xdel(key, entry!.entryId);
    await agePending('dead');
    expect((await alive.takeOver(0, '0-0')).entries).toEqual([]);
    expect(await pending()).toBe(0);
  });
});

describe('entries that nobody of this version can read', () => {
  it('are removed and counted when they are malformed', async () => {
    let malformed = 0;
    const consumer = member(link, {
      onMalformed: (count) => {
        malformed += count;
      },
    });
    await raw.xadd(key, '*', 'v', '1', 'n', '3', 'ids', 'nonsense');
    await raw.xadd(key, '*', 'hello', 'world');
    const ids = randomIds(1);
    await announce(link, ids, 'express');
    expect(idsOf(await consumer.read(10))).toEqual(ids);
    expect([malformed, await raw.xlen(key), await pending()]).toEqual([2, 1, 1]);
  });

  it('are left to others when their version is newer', async () => {
    const consumer = member();
    await raw.xadd(key, '*', 'v', '2', 'x', 'y');
    expect(await consumer.read(10)).toEqual([]);
    expect([await raw.xlen(key), await pending()]).toEqual([1, 1]);
    await agePending('old');
    expect((await consumer.takeOver(30_000, '0-0')).entries).toEqual([]);
    expect(await raw.xlen(key)).toBe(1);
  });
});

describe('a consumer that leaves', () => {
  it('takes its name with it', async () => {
    const consumer = givenConsumer(link);
    await announce(link, randomIds(1), 'express');
    await consumer.decide(entryIds(await consumer.read(1)));
    expect(await consumerNames()).toHaveLength(1);
    await consumer.leave();
    expect(await consumerNames()).toEqual([]);
  });

  it('leaves its name while anything is pending under it', async () => {
    const consumer = givenConsumer(link, { consumer: 'busy' });
    const ids = randomIds(1);
    await announce(link, ids, 'express');
    await consumer.read(1);
    await consumer.leave();
    expect(await consumerNames()).toEqual(['busy']);
    expect(await removeConsumer(link, { lane: 'express', consumer: 'busy' })).toBe(false);
    await agePending('busy');
    const heir = member();
    expect(idsOf((await heir.takeOver(30_000, '0-0')).entries)).toEqual(ids);
    expect(await removeConsumer(link, { lane: 'express', consumer: 'busy' })).toBe(true);
  });

  it('can do so when Redis is away', async () => {
    const proxy = await startTcpProxy(redis.url);
    const far = await givenLink({ ...options, url: proxy.url });
    const consumer = givenConsumer(far);
    await consumer.read(1);
    proxy.refuse();
    await consumer.leave();
    await far.stop();
    await proxy.close();
  });
});

describe('a read that waits', () => {
  it('is ended at once by its signal, and loses nothing by that', async () => {
    const consumer = member(link, { blockMs: 10_000 });
    const stop = new AbortController();
    const started = performance.now();
    const reading = consumer.read(10, stop.signal);
    await someoneWaits();
    stop.abort();
    expect(await reading).toEqual([]);
    expect(performance.now() - started).toBeLessThan(5_000);
    const ids = randomIds(1);
    await announce(link, ids, 'express');
    expect(idsOf(await consumer.read(10))).toEqual(ids);
  });

  it('is ended by its signal when it has not even reached Redis', async () => {
    const consumer = member(link, { blockMs: 10_000 });
    const stop = new AbortController();
    const reading = consumer.read(10, stop.signal);
    stop.abort();
    expect(await reading).toEqual([]);
    const again = new AbortController();
    const started = performance.now();
    const waiting = consumer.read(10, again.signal);
    again.abort();
    expect(await waiting).toEqual([]);
    expect(performance.now() - started).toBeLessThan(5_000);
  });

  it('brings what came in the moment in which it was ended', async () => {
    const consumer = member(link, { blockMs: 10_000 });
    const [announced, read]: [string[], string[]] = [[], []];
    for (let n = 0; n < 30; n += 1) {
      const stop = new AbortController();
      const ids = randomIds(1);
      announced.push(...ids);
      const reading = consumer.read(10, stop.signal);
      await someoneWaits();
      await Promise.all([announce(link, ids, 'express'), stop.abort()]);
      read.push(...idsOf(await reading));
    }
    for (let left = 1; left > 0; ) {
      const rest = idsOf(await givenRest(consumer));
      left = rest.length;
      read.push(...rest);
    }
    expect(read).toEqual(announced);
  });

  async function givenRest(consumer: StreamConsumer): Promise<StreamEntry[]> {
    const stop = new AbortController();
    const reading = consumer.read(100, stop.signal);
    const entries = await Promise.race([reading, someoneWaits().then(() => null)]);
    stop.abort();
    return entries ?? reading;
  }
});

describe('a wire that breaks under a waiting read', () => {
  let proxy: TcpProxy;
  let far: RedisLink;
  let stalls: number;
  let consumer: StreamConsumer;

  beforeEach(async () => {
    proxy = await startTcpProxy(redis.url);
    far = await givenLink({ ...options, url: proxy.url });
    stalls = 0;
    consumer = new StreamConsumer(far, {
      lane: 'express',
      consumer: 'far',
      blockMs: 300,
      onStall: () => {
        stalls += 1;
      },
    });
    expect(await consumer.read(1)).toEqual([]);
  });
  afterEach(async () => {
    await consumer.leave();
    await far.stop();
    await proxy.close();
  });

  async function expectReadsAgain(): Promise<void> {
    const ids = randomIds(1);
    await announce(link, ids, 'express');
    await eventually(async () => expect(idsOf(await consumer.read(10))).toEqual(ids), 5_000);
    const more = randomIds(1);
    const reading = consumer.read(10);
    await announce(link, more, 'express');
    expect(idsOf(await reading)).toEqual(more);
  }

  it('by a reset fails the read, and works again after', async () => {
    const reading = consumer.read(1);
    proxy.refuse();
    await expect(reading).rejects.toThrow();
    await expect(consumer.read(1)).rejects.toThrow();
    proxy.pass();
    await expectReadsAgain();
  });

  it('by silence fails the read within the block time and a margin, on a connection that is then replaced', async () => {
    const started = performance.now();
    const reading = consumer.read(1);
    proxy.swallow();
    await expect(reading).rejects.toThrow('did not come back');
    expect(performance.now() - started).toBeLessThan(300 + 2_000 + 1_000);
    expect(stalls).toBe(1);
    proxy.pass();
    await expectReadsAgain();
  });

  it('by silence that goes on fails every read, and the first connection that is answered reads again', async () => {
    proxy.swallow();
    await expect(consumer.read(1)).rejects.toThrow('did not come back');
    const opened = proxy.opened;
    await expect(consumer.read(1)).rejects.toThrow('not ready');
    await expect(consumer.read(1)).rejects.toThrow('not ready');
    expect(proxy.opened).toBeGreaterThan(opened);
    proxy.pass();
    await expectReadsAgain();
  });
});
