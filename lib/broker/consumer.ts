import type { Redis } from 'ioredis';
import { type UnpackedEntry, unpackEntry } from '../domain/stream-entry.ts';
import { createBlockingClient, isNoGroup, streamKey } from './client.ts';
import type { RedisLink } from './link.ts';

export interface StreamEntry {
  entryId: string;
  deliveryIds: string[];
}

export interface ConsumerOptions {
  /** Random for each start: in containers every pid is 1. */
  consumer: string;
  /** How long a read waits on the server, ms. */
  blockMs: number;
  /** Told of a blocking read that did not come back in time. */
  onStall?: () => void;
  /** Told of entries that nobody can use; they are removed. */
  onMalformed?: (count: number) => void;
}

/** A reply may be late by this much before its connection counts as dead. */
const WATCHDOG_MARGIN_MS = 2_000;
const READY_WITHIN_MS = 1_000;

// A consumer is removed only while nothing is pending under its name: removing it with pending entries would lose them.
const REMOVE_IDLE_CONSUMER = `
local pending = redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2])
if #pending > 0 then return 0 end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return 1`;

/**
 * One member of the consumer group. What it reads is pending under its name until `decide`; what it holds undecided it must `hold` every
 * 10 s, or others take it over. A message is never ownership: whoever reads an id still has to win the row's lease.
 */
export class StreamConsumer {
  readonly #link: RedisLink;
  readonly #options: ConsumerOptions;
  readonly #key: string;
  #reader: Redis | null = null;

  constructor(link: RedisLink, options: ConsumerOptions) {
    this.#link = link;
    this.#options = options;
    this.#key = streamKey(link.options);
  }

  /** Reads up to `count` new entries, waiting up to the block time; empty when there are none. Throws when Redis is away. */
  async read(count: number): Promise<StreamEntry[]> {
    const { group } = this.#link.options;
    const { consumer, blockMs } = this.#options;
    try {
      const reader = await this.#connectedReader();
      const reply = await this.#watch(
        reader.xreadgroup(
          'GROUP',
          group,
          consumer,
          'COUNT',
          count,
          'BLOCK',
          blockMs,
          'STREAMS',
          this.#key,
          '>',
        ),
      );
      return this.#unpack((reply as [string, [string, string[]][]][] | null)?.[0]?.[1] ?? []);
    } catch (error) {
      if (!isNoGroup(error)) throw error;
      await this.#link.ensureGroup();
      return [];
    }
  }

  /** Takes over entries that somebody left undecided for `idleMs`, beginning at `cursor`; also what reached us in a reply that was lost. */
  async takeOver(idleMs: number, cursor: string): Promise<{ entries: StreamEntry[]; cursor: string }> {
    const { group } = this.#link.options;
    try {
      const reply = (await this.#link.client.xautoclaim(
        this.#key,
        group,
        this.#options.consumer,
        idleMs,
        cursor,
        'COUNT',
        32,
      )) as [string, [string, string[]][]];
      return { entries: await this.#unpack(reply[1].filter((entry) => entry?.[1])), cursor: reply[0] };
    } catch (error) {
      if (!isNoGroup(error)) throw error;
      await this.#link.ensureGroup();
      return { entries: [], cursor: '0-0' };
    }
  }

  /** Says that these entries are still being worked on. */
  async hold(entryIds: readonly string[]): Promise<void> {
    if (entryIds.length === 0) return;
    await this.#link.client.xclaim(
      this.#key,
      this.#link.options.group,
      this.#options.consumer,
      0,
      ...entryIds,
      'JUSTID',
    );
  }

  /** Acknowledges and deletes in one step, so that what is in the stream is unread or undecided. */
  async decide(entryIds: readonly string[]): Promise<void> {
    if (entryIds.length === 0) return;
    await this.#link.client
      .multi()
      .xack(this.#key, this.#link.options.group, ...entryIds)
      .xdel(this.#key, ...entryIds)
      .exec();
  }

  /** Leaves the group when nothing is pending under this name, and closes the reading connection. */
  async leave(): Promise<void> {
    if (this.#reader) this.#drop(this.#reader);
    await removeConsumer(this.#link, this.#options.consumer).catch(() => undefined);
  }

  async #connectedReader(): Promise<Redis> {
    const reader = this.#reader ?? createBlockingClient(this.#link.options);
    this.#reader = reader;
    if (reader.status === 'ready') return reader;
    await new Promise<void>((resolve, reject) => {
      const settle = (error?: Error) => {
        clearTimeout(timer);
        reader.off('ready', onReady);
        error ? reject(error) : resolve();
      };
      const onReady = () => settle();
      // A connection that was begun while nobody answered may never become ready: the next read begins another.
      const timer = setTimeout(() => {
        this.#drop(reader);
        settle(new Error('the reading connection to Redis is not ready'));
      }, READY_WITHIN_MS);
      reader.once('ready', onReady);
    });
    return reader;
  }

  #drop(reader: Redis): void {
    reader.disconnect();
    if (this.#reader === reader) this.#reader = null;
  }

  // After a break some clients look ready while the read that was pending never settles: a read that is late by more than the margin
  // means a dead socket, whatever the client says.
  async #watch<T>(read: Promise<T>): Promise<T> {
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => {
        this.#options.onStall?.();
        if (this.#reader) this.#drop(this.#reader);
        reject(new Error('a blocking read did not come back in time; its connection is replaced'));
      }, this.#options.blockMs + WATCHDOG_MARGIN_MS);
    });
    read.catch(() => undefined);
    try {
      return await Promise.race([read, late]);
    } finally {
      clearTimeout(timer);
    }
  }

  async #unpack(raw: readonly [string, string[]][]): Promise<StreamEntry[]> {
    const entries: StreamEntry[] = [];
    const malformed: string[] = [];
    for (const [entryId, fields] of raw) {
      const unpacked: UnpackedEntry = unpackEntry(fields);
      if (unpacked.kind === 'ids') entries.push({ entryId, deliveryIds: unpacked.ids });
      if (unpacked.kind === 'malformed') malformed.push(entryId);
    }
    if (malformed.length > 0) {
      this.#options.onMalformed?.(malformed.length);
      await this.decide(malformed);
    }
    return entries;
  }
}

/** Removes a consumer unless something is pending under its name. Returns whether it was removed. */
export async function removeConsumer(link: RedisLink, consumer: string): Promise<boolean> {
  const removed = await link.client.eval(
    REMOVE_IDLE_CONSUMER,
    1,
    streamKey(link.options),
    link.options.group,
    consumer,
  );
  return removed === 1;
}
