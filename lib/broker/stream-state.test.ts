import type { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import {
  givenBroker,
  givenConsumer,
  givenLink,
  givenRawRedis,
  randomIds,
} from '../../services/testing/given-broker.ts';
import { type PrivateRedis, startPrivateRedis } from '../../services/testing/private-servers.ts';
import { LANES } from '../domain/vocabulary.ts';
import { announce } from './announcer.ts';
import { type BrokerOptions, streamKey } from './client.ts';
import type { StreamConsumer } from './consumer.ts';
import type { RedisLink } from './link.ts';
import {
  drainedUntil,
  isOtherStream,
  meanIdsPerEntry,
  readStreamState,
  removeDeadConsumers,
  type StreamState,
  unreadEntries,
} from './stream-state.ts';

let redis: PrivateRedis;
let raw: Redis;
let options: BrokerOptions;
let key: string;
let link: RedisLink;
let consumer: StreamConsumer;

beforeAll(async () => {
  redis = await startPrivateRedis();
  raw = await givenRawRedis(redis.url);
});
beforeEach(async () => {
  options = givenBroker(redis.url);
  key = streamKey(options, 'express');
  link = await givenLink(options);
  consumer = givenConsumer(link);
});
afterEach(async () => {
  await consumer.leave();
  await link.stop();
});
afterAll(async () => {
  raw.disconnect();
  await redis.stop();
});

const read = (count: number) => consumer.read(count);

describe('the state of the stream', () => {
  it('tells what is unread and what is undecided', async () => {
    for (let n = 0; n < 5; n += 1) await announce(link, randomIds(2), 'express');
    const entries = await read(3);
    const state = await readStreamState(link, 'express');
    expect([state.length, state.pending, unreadEntries(state)]).toEqual([5, 3, 2]);
    await consumer.decide(entries.map(({ entryId }) => entryId));
    const after = await readStreamState(link, 'express');
    expect([after.length, after.pending, unreadEntries(after)]).toEqual([2, 0, 2]);
  });

  it('tells how far the group has read, on the clock of Redis', async () => {
    expect((await readStreamState(link, 'express')).readUntilMs).toBeNull();
    await announce(link, randomIds(1), 'express');
    const [entry] = await read(1);
    await announce(link, randomIds(1), 'express');
    const state = await readStreamState(link, 'express');
    expect(state.readUntilMs).toBe(Number(entry!.entryId.split('-')[0]));
    expect(Math.abs(state.redisNowMs - Date.now())).toBeLessThan(1_000);
    expect(state.redisNowMs).toBeGreaterThanOrEqual(state.readUntilMs!);
  });

  it('is empty when there is no stream, or no group', async () => {
    await raw.del(key);
    expect(await readStreamState(link, 'express')).toMatchObject({
      length: 0,
      pending: 0,
      readUntilMs: null,
    });
    await raw.xadd(key, '*', 'v', '1');
    expect(await readStreamState(link, 'express')).toMatchObject({
      length: 1,
      pending: 0,
      readUntilMs: null,
    });
  });

  it('is that of its own lane', async () => {
    await announce(link, randomIds(2), 'bulk');
    const states = await Promise.all(LANES.map((lane) => readStreamState(link, lane)));
    expect(states.map(unreadEntries)).toEqual([0, 1]);
    expect(await Promise.all(LANES.map((lane) => meanIdsPerEntry(link, lane)))).toEqual([0, 2]);
  });

  it('is not spoilt by trimming', async () => {
    for (let n = 0; n < 5; n += 1) await announce(link, randomIds(1), 'express');
    await read(2);
    await raw.xtrim(key, 'MAXLEN', 1);
    const state = await readStreamState(link, 'express');
    expect(unreadEntries(state)).toBe(0);
    expect(state.length).toBe(1);
  });

  it('of another stream is told from that of the same stream, however it went on', async () => {
    const before = await readStreamState(link, 'express');
    await announce(link, randomIds(1), 'express');
    const [entry] = await read(1);
    const held = await readStreamState(link, 'express');
    await consumer.decide([entry!.entryId]);
    const decided = await readStreamState(link, 'express');
    for (const [a, b] of [
      [before, held],
      [held, decided],
      [before, decided],
      [decided, decided],
    ] as const) {
      expect(isOtherStream(a, b)).toBe(false);
    }
    await raw.del(key);
    expect(isOtherStream(decided, await readStreamState(link, 'express'))).toBe(true);
    await announce(link, randomIds(1), 'express');
    expect(isOtherStream(held, await readStreamState(link, 'express'))).toBe(true);
  });
});

describe('the moment up to which announcements are known to be read', () => {
  const now = new Date('2026-01-01T00:00:10Z');
  const state = (fields: Partial<StreamState>): StreamState => ({
    length: 1,
    pending: 0,
    redisNowMs: 0,
    readUntilMs: null,
    added: null,
    deletedUntilMs: null,
    ...fields,
  });

  it('is now when the stream is empty', () => {
    expect(drainedUntil(state({ length: 0 }), now, 0)).toEqual(now);
  });

  it('is not known while the group has read nothing', () => {
    expect(drainedUntil(state({}), now, 0)).toBeNull();
  });

  it('is that of the newest entry read, on the database’s clock, less a margin for announcements on their way', () => {
    const readUntilMs = now.getTime() - 5_000;
    expect(drainedUntil(state({ readUntilMs }), now, 0)?.getTime()).toBe(readUntilMs - 1_500);
    expect(drainedUntil(state({ readUntilMs }), now, 60_000)?.getTime()).toBe(readUntilMs + 60_000 - 1_500);
    expect(drainedUntil(state({ readUntilMs }), now, -60_000)?.getTime()).toBe(readUntilMs - 60_000 - 1_500);
  });
});

describe('the mean number of ids in an entry', () => {
  it('is that of the oldest hundred, and 0 of none', async () => {
    expect(await meanIdsPerEntry(link, 'express')).toBe(0);
    await announce(link, randomIds(128), 'express');
    await announce(link, randomIds(2), 'express');
    expect(await meanIdsPerEntry(link, 'express')).toBe(65);
  });

  it('is a number whatever else lies in the stream', async () => {
    await raw.xadd(key, '*', 'hello', 'world');
    await raw.xadd(key, '*', 'n', 'many');
    expect(Number.isFinite(await meanIdsPerEntry(link, 'express'))).toBe(true);
  });
});

describe('consumers that nobody is any more', () => {
  const names = async () =>
    ((await raw.xinfo('CONSUMERS', key, options.group)) as string[][]).map((info) => info[1]);

  it('are removed when they were idle long enough and hold nothing', async () => {
    const dead = Array.from({ length: 20 }, (_, n) => givenConsumer(link, { consumer: `dead-${n}` }));
    for (const one of dead) {
      await announce(link, randomIds(1), 'express');
      const entries = await one.read(1);
      if (one !== dead[0]) await one.decide(entries.map(({ entryId }) => entryId));
    }
    expect(await removeDeadConsumers(link, 60_000)).toBe(0);
    expect(await names()).toHaveLength(20);
    expect(await removeDeadConsumers(link, -1)).toBe(19);
    expect(await names()).toEqual(['dead-0']);
    expect((await consumer.takeOver(0, '0-0')).entries).toHaveLength(1);
    expect(await removeDeadConsumers(link, -1)).toBe(1);
    for (const one of dead) await one.leave();
  });

  it('are removed from the bulk lane too', async () => {
    const bulk = givenConsumer(link, { lane: 'bulk' });
    await announce(link, randomIds(1), 'bulk');
    await bulk.decide((await bulk.read(1)).map(({ entryId }) => entryId));
    expect(await removeDeadConsumers(link, -1)).toBe(1);
    await bulk.leave();
  });

  it('are none when the stream was flushed', async () => {
    await raw.del(key);
    expect(await removeDeadConsumers(link, -1)).toBe(0);
    await raw.xadd(key, '*', 'v', '1');
    expect(await removeDeadConsumers(link, -1)).toBe(0);
  });
});
