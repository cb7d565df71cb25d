import { type UnpackedEntry, unpackEntry } from '../domain/stream-entry.ts';
import type { Lane } from '../domain/vocabulary.ts';
import { BlockingReader, type BlockingReaderOptions } from './blocking-reader.ts';
import { isNoGroup, streamKey } from './client.ts';
import type { RedisLink } from './link.ts';

export interface StreamEntry {
  entryId: string;
  deliveryIds: string[];
}

export interface ConsumerOptions extends BlockingReaderOptions {
  /** Which of the two streams it reads. */
  lane: Lane;
  /** Random for each start: in containers every pid is 1. */
  consumer: string;
  /** Told of entries that nobody can use; they are removed. */
  onMalformed?: (count: number) => void;
}

// A consumer is removed only while nothing is pending under its name: removing it with pending entries would lose them.
const REMOVE_IDLE_CONSUMER = `
local pending = redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2])
if #pending > 0 then return 0 end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return 1`;

/**
 * One member of a lane's consumer group. What it reads is pending under its name until `decide`; what it holds undecided it must `hold` every
 * 10 s, or others take it over. A message is never ownership: whoever reads an id still has to win the row's lease.
 */
export class StreamConsumer {
  readonly #link: RedisLink;
  readonly #options: ConsumerOptions;
  readonly #key: string;
  readonly #reader: BlockingReader;

  constructor(link: RedisLink, options: ConsumerOptions) {
    this.#link = link;
    this.#options = options;
    this.#reader = new BlockingReader(link, options);
    this.#key = streamKey(link.options, options.lane);
  }

  /**
   * Reads up to `count` new entries, waiting up to the block time; empty when there are none. `signal` ends the wait at once. Throws when
   * Redis is away.
   */
  async read(count: number, signal?: AbortSignal): Promise<StreamEntry[]> {
    const { group } = this.#link.options;
    const { consumer, blockMs } = this.#options;
    const from = ['BLOCK', blockMs, 'STREAMS', this.#key, '>'] as const;
    try {
      const reply = await this.#reader.run(
        (client) => client.xreadgroup('GROUP', group, consumer, 'COUNT', count, ...from),
        signal,
      );
      return this.#unpack((reply as [string, [string, string[]][]][] | null)?.[0]?.[1] ?? []);
    } catch (error) {
      if (!isNoGroup(error)) throw error;
      await this.#link.ensureGroup(this.#options.lane);
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
      await this.#link.ensureGroup(this.#options.lane);
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
    this.#reader.close();
    await removeConsumer(this.#link, this.#options).catch(() => undefined);
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

/** Removes a consumer of a lane unless something is pending under its name. Returns whether it was removed. */
export async function removeConsumer(
  link: RedisLink,
  { lane, consumer }: Pick<ConsumerOptions, 'lane' | 'consumer'>,
): Promise<boolean> {
  const removed = await link.client.eval(
    REMOVE_IDLE_CONSUMER,
    1,
    streamKey(link.options, lane),
    link.options.group,
    consumer,
  );
  return removed === 1;
}
