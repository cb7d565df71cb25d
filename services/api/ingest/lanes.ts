import { LRUCache } from 'lru-cache';
import { type ExpressAllowance, shareOfBurst, tokensAt } from '../../../lib/domain/express-allowance.ts';
import type { Logger } from '../../../lib/runtime/log.ts';
import type { EndpointRate } from '../../../lib/store/endpoint-rates.ts';

const MAX_ENDPOINTS = 10_000;
/** Each row of a batch is compared with all of these. */
const MAX_OVER = 256;
const MAX_READ = 1_000;
const FRESH_MS = 10_000;
const NONE: ReadonlySet<string> = new Set();

export interface LanesOptions {
  /** Reads the rates of these endpoints; those that do not exist are left out. */
  readRates: (endpointIds: readonly string[]) => Promise<Map<string, EndpointRate>>;
  liveApis: () => number;
  log: Logger;
}

interface Entry extends ExpressAllowance {
  /** False until its rate was read: what it takes till then is only counted. */
  known: boolean;
  /** When its rate was asked for, performance.now. */
  readAt: number;
}

/**
 * Guesses which endpoints are sent more than they take, so that what exceeds an endpoint's own rate and burst goes on the bulk lane. Each API
 * guesses for itself, at its share, from what it has committed itself; an endpoint that it does not know is express. A wrong guess costs
 * order only.
 */
export class Lanes {
  readonly #options: LanesOptions;
  readonly #entries = new LRUCache<string, Entry>({ max: MAX_ENDPOINTS });
  readonly #over = new Set<string>();
  readonly #unread = new Set<string>();
  #reading: Promise<void> | null = null;

  constructor(options: LanesOptions) {
    this.#options = options;
  }

  /** The endpoints whose events go on the bulk lane now. What is not on it is to be accounted for after the commit. */
  over(): ReadonlySet<string> {
    if (this.#over.size === 0) return NONE;
    const over = new Set<string>();
    for (const id of this.#over) {
      const entry = this.#entries.peek(id);
      if (entry && this.#tokens(entry, performance.now()) < 1) over.add(id);
      else this.#over.delete(id);
    }
    return over;
  }

  /** Counts deliveries that were put on the express lane, by endpoint. */
  account(endpointIds: readonly string[]): void {
    const now = performance.now();
    for (const id of endpointIds) {
      const entry = this.#entries.get(id) ?? this.#enter(id, now);
      entry.tokens = this.#tokens(entry, now) - 1;
      entry.atMs = now;
      if (now - entry.readAt > FRESH_MS) this.#unread.add(id);
      this.#note(id, entry);
    }
    if (this.#unread.size > 0) this.#read();
  }

  /** Resolves when no rates are being read. */
  async idle(): Promise<void> {
    while (this.#reading) await this.#reading;
  }

  #enter(id: string, now: number): Entry {
    const entry = {
      ratePerSecond: 0,
      burst: 0,
      tokens: 0,
      atMs: now,
      known: false,
      readAt: Number.NEGATIVE_INFINITY,
    };
    this.#entries.set(id, entry);
    return entry;
  }

  #tokens(entry: Entry, now: number): number {
    return tokensAt(entry, now, this.#options.liveApis());
  }

  #note(id: string, entry: Entry): void {
    if (entry.known && entry.tokens < 1 && this.#over.size < MAX_OVER) this.#over.add(id);
  }

  #read(): void {
    if (this.#reading) return;
    const ids = [...this.#unread].slice(0, MAX_READ);
    // Those that are asked for once more meanwhile, or that cannot be read, have their turn when this has grown old.
    for (const id of ids) this.#unread.delete(id);
    this.#reading = this.#take(ids)
      .catch((err: unknown) =>
        this.#options.log.warn({ err }, 'rates could not be read; lanes are chosen without'),
      )
      .finally(() => {
        this.#reading = null;
        if (this.#unread.size > 0) this.#read();
      });
  }

  async #take(ids: readonly string[]): Promise<void> {
    const { readRates, liveApis } = this.#options;
    const askedAt = performance.now();
    for (const id of ids) {
      const entry = this.#entries.peek(id);
      if (entry) entry.readAt = askedAt;
    }
    const rates = await readRates(ids);
    for (const [id, rate] of rates) {
      const entry = this.#entries.peek(id);
      if (!entry) continue;
      // What it took before its rate was known is taken from its first burst.
      if (!entry.known) entry.tokens += shareOfBurst(rate.burst, liveApis());
      Object.assign(entry, rate, { known: true });
      this.#note(id, entry);
    }
  }
}
