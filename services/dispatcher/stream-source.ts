import { announce } from '../../lib/broker/announcer.ts';
import type { StreamConsumer, StreamEntry } from '../../lib/broker/consumer.ts';
import type { RedisLink } from '../../lib/broker/link.ts';
import type { Lane } from '../../lib/domain/vocabulary.ts';
import type { DeliveryMetrics } from '../../lib/metrics/delivery.ts';
import type { Logger } from '../../lib/runtime/log.ts';
import { Loop } from '../../lib/runtime/loop.ts';

const HOLD_EVERY_MS = 10_000;
const TAKE_OVER_EVERY_MS = 15_000;
const MAX_ENTRIES_PER_READ = 64;
const DECIDE_LINGER_MS = 10;
const MAX_DECIDED = 64;

/** An id that was read from the stream, and the entry that it came in. */
export interface Announced {
  deliveryId: string;
  lane: Lane;
  entry: OpenEntry;
}

/** An entry of which some ids are not yet decided. */
export interface OpenEntry {
  entryId: string;
  undecided: number;
}

export interface StreamSourceOptions {
  link: RedisLink;
  /** Of the consumer's stream. */
  lane: Lane;
  consumer: StreamConsumer;
  takeoverIdleMs: number;
  /** How many more ids of this lane the process can use now; reading stops at 0. */
  wanted: () => number;
  onIds: (ids: Announced[]) => void;
  metrics: DeliveryMetrics;
  log: Logger;
}

/**
 * Reads ids from one lane's stream as the process has use for them, and keeps account of the entries that they came in: an entry is acknowledged and
 * deleted when all its ids are decided, which is when they were claimed or lost to somebody else. From then on the lease is the only memory.
 */
export class StreamSource {
  readonly loops: readonly Loop[];
  readonly #options: StreamSourceOptions;
  readonly #open = new Map<string, OpenEntry>();
  #decided: string[] = [];
  #decideTimer: NodeJS.Timeout | null = null;
  #idsPerEntry = 1;
  #takeOverCursor = '0-0';

  constructor(options: StreamSourceOptions) {
    this.#options = options;
    const loop = (name: string, round: (signal: AbortSignal) => Promise<number>) =>
      new Loop({ name: `${options.lane}-${name}`, log: options.log, round, maxBackoffMs: 1_000 });
    this.loops = [
      loop('read', (signal) => this.#read(signal)),
      loop('hold', () => this.#hold()),
      loop('take-over', () => this.#takeOver()),
    ];
  }

  get lane(): Lane {
    return this.#options.lane;
  }

  start(): this {
    for (const loop of this.loops) loop.start();
    return this;
  }

  /** The process has use for more. */
  wake(): void {
    this.loops[0]?.wake();
  }

  /** These ids need no more memory than their rows have. */
  decide(ids: readonly Announced[]): void {
    for (const { entry } of ids) {
      entry.undecided -= 1;
      if (entry.undecided === 0 && this.#open.delete(entry.entryId)) this.#decided.push(entry.entryId);
    }
    if (this.#decided.length >= MAX_DECIDED) this.#flushDecided();
    else if (this.#decided.length > 0)
      this.#decideTimer ??= setTimeout(() => this.#flushDecided(), DECIDE_LINGER_MS);
  }

  /** Stops reading; a read that waits is ended. */
  async stopReading(): Promise<void> {
    await Promise.all(this.loops.map((loop) => loop.stop()));
  }

  /** Hands ids of this lane that were read but not claimed to the others, and leaves the group. */
  async leave(unclaimed: readonly Announced[]): Promise<void> {
    const { link, consumer, lane } = this.#options;
    if (this.#decideTimer) clearTimeout(this.#decideTimer);
    if (link.connected) {
      const failed = new Set(
        await announce(
          link,
          unclaimed.map((id) => id.deliveryId),
          lane,
        ),
      );
      this.decide(unclaimed.filter((id) => !failed.has(id.deliveryId)));
      await consumer.decide(this.#decided.splice(0)).catch(() => undefined);
    }
    if (this.#decideTimer) clearTimeout(this.#decideTimer);
    await consumer.leave();
  }

  async #read(signal: AbortSignal): Promise<number> {
    const { link, consumer, wanted, metrics } = this.#options;
    const room = wanted();
    // Woken when there is room again; the short wait covers a wake-up that came between.
    if (room <= 0) return 50;
    // A full Redis takes no writes and is as good as away, but what is on the stream can be read, and must be, or it stays full.
    if (!link.connected) return 200;
    const count = Math.min(MAX_ENTRIES_PER_READ, Math.max(1, Math.ceil(room / this.#idsPerEntry)));
    const entries = await consumer.read(count, signal);
    metrics.consumed.inc(this.#take(entries));
    return 0;
  }

  async #hold(): Promise<number> {
    if (this.#options.link.connected) await this.#options.consumer.hold([...this.#open.keys()]);
    return HOLD_EVERY_MS;
  }

  async #takeOver(): Promise<number> {
    const { link, consumer, takeoverIdleMs, wanted, metrics } = this.#options;
    if (!link.connected || wanted() <= 0) return TAKE_OVER_EVERY_MS;
    const { entries, cursor } = await consumer.takeOver(takeoverIdleMs, this.#takeOverCursor);
    this.#takeOverCursor = cursor;
    metrics.reclaimed.inc(this.#take(entries));
    return cursor === '0-0' ? TAKE_OVER_EVERY_MS : 0;
  }

  #take(entries: readonly StreamEntry[]): number {
    const { lane } = this.#options;
    const ids: Announced[] = [];
    for (const { entryId, deliveryIds } of entries) {
      // One that we hold ourselves came back because we were slow to say so.
      if (this.#open.has(entryId)) continue;
      const entry: OpenEntry = { entryId, undecided: deliveryIds.length };
      this.#open.set(entryId, entry);
      for (const deliveryId of deliveryIds) ids.push({ deliveryId, lane, entry });
      this.#idsPerEntry += (deliveryIds.length - this.#idsPerEntry) * 0.1;
    }
    if (ids.length > 0) this.#options.onIds(ids);
    return ids.length;
  }

  #flushDecided(): void {
    if (this.#decideTimer) clearTimeout(this.#decideTimer);
    this.#decideTimer = null;
    const entryIds = this.#decided.splice(0);
    this.#options.consumer.decide(entryIds).catch((error: unknown) => {
      // They stay pending and are read once more by somebody; their rows are leased or gone by then.
      this.#options.link.reportFailure(error);
    });
  }
}
