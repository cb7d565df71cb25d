import { randomBytes, randomUUID } from 'node:crypto';
import { Redis } from 'ioredis';
import type { BrokerOptions } from '../../lib/broker/client.ts';
import { type ConsumerOptions, StreamConsumer } from '../../lib/broker/consumer.ts';
import { type LinkOptions, RedisLink } from '../../lib/broker/link.ts';

/** A stream of the caller's own on a Redis that others may use too. */
export function givenBroker(url: string, options: Partial<BrokerOptions> = {}): BrokerOptions {
  return {
    url,
    stream: 'relay:deliveries',
    group: 'relay-dispatchers',
    keyPrefix: `test-${randomBytes(4).toString('hex')}:`,
    sentinels: [],
    sentinelName: 'mymaster',
    ...options,
  };
}

export async function givenLink(options: LinkOptions): Promise<RedisLink> {
  const link = await new RedisLink(options).start();
  if (!link.up) throw new Error(`${options.url} is not to be reached`);
  return link;
}

/** A member of the group, of the express lane unless told otherwise; its reads wait 50 ms at most. */
export function givenConsumer(link: RedisLink, options: Partial<ConsumerOptions> = {}): StreamConsumer {
  return new StreamConsumer(link, {
    lane: 'express',
    consumer: `consumer-${randomBytes(4).toString('hex')}`,
    blockMs: 50,
    ...options,
  });
}

export function randomIds(count: number): string[] {
  return Array.from({ length: count }, () => randomUUID());
}

/** A client for looking and for doing what Relay never does. */
export async function givenRawRedis(url: string): Promise<Redis> {
  const client = new Redis(url, { protocol: 2, lazyConnect: true });
  client.on('error', () => undefined);
  await client.connect();
  return client;
}
