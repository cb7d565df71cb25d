import { LRUCache } from 'lru-cache';
import { LOCAL_WAIT_MS } from '../../lib/domain/limits.ts';
import type { RateAnswer, RateAsk, RateLimiter } from '../../lib/domain/rate-bucket.ts';

const MAX_ENDPOINTS = 10_000;
/** Asks of one turn travel together; while many are begun, a little apart costs a tenth. One that comes alone goes at once. */
const ASK_EVERY_MS = 2;

/** What the limiter must know of an endpoint. */
export interface RatedEndpoint {
  id: string;
  slotVersion: number;
  /** Spacing of the moments at which what waits may ask again, ms. */
  slotEveryMs: number;
  ratePerSecond: number;
  burst: number;
}

/** Go after so many ms, a token is taken; or wait in a slot that many ms ahead. */
export type RateVerdict = { kind: 'go'; delayMs: number } | { kind: 'slot'; delayMs: number };

export interface SlotWish {
  /** Spacing of the slots, ms. */
  everyMs: number;
  /** Slots begin after this, ms: the rest of a cooldown or pause. */
  afterMs: number;
}

type Waiter = { resolve: (verdict: RateVerdict) => void; reject: (error: unknown) => void };

interface Group {
  ask: RateAsk;
  waited: Waiter[];
  fresh: Waiter[];
  slots: Waiter[];
}

/** Asks the fleet's rate limiter for many deliveries at once, and remembers how far each endpoint's slots are given out. */
export class RateGate {
  readonly #limiter: RateLimiter;
  readonly #horizons = new LRUCache<string, { until: number; slotVersion: number }>({ max: MAX_ENDPOINTS });
  #groups = new Map<string, Group>();
  #timer: NodeJS.Timeout | NodeJS.Immediate | null = null;
  #askedAt = Number.NEGATIVE_INFINITY;

  constructor(limiter: RateLimiter) {
    this.#limiter = limiter;
  }

  /** Whether deliveries wait for moments still to come: one that has not waited must not go before them. */
  hasQueue({ id, slotVersion }: RatedEndpoint): boolean {
    const horizon = this.#horizons.get(id);
    return horizon?.slotVersion === slotVersion && horizon.until > performance.now() + LOCAL_WAIT_MS;
  }

  /** Asks for a token, or for a slot where none is to be had within `maxWaitMs`. Rejects when the limiter cannot answer. */
  take(
    endpoint: RatedEndpoint,
    { waited, maxWaitMs }: { waited: boolean; maxWaitMs: number },
  ): Promise<RateVerdict> {
    const group = this.#group(`${endpoint.id} go ${maxWaitMs}`, endpoint, {
      slotEveryMs: endpoint.slotEveryMs,
      slotsAfterMs: 0,
      maxWaitMs,
    });
    return this.#join(waited ? group.waited : group.fresh);
  }

  /** Asks for a slot; resolves to the time until it, ms. */
  async slot(endpoint: RatedEndpoint, { everyMs, afterMs }: SlotWish): Promise<number> {
    const group = this.#group(`${endpoint.id} slot ${everyMs} ${afterMs > 0}`, endpoint, {
      slotEveryMs: everyMs,
      slotsAfterMs: afterMs,
      maxWaitMs: 0,
    });
    group.ask.slotsAfterMs = Math.max(group.ask.slotsAfterMs, afterMs);
    return (await this.#join(group.slots)).delayMs;
  }

  #group(
    key: string,
    endpoint: RatedEndpoint,
    wish: Pick<RateAsk, 'slotEveryMs' | 'slotsAfterMs' | 'maxWaitMs'>,
  ): Group {
    const found = this.#groups.get(key);
    if (found) return found;
    // The counts are filled in when it is sent.
    const { id, slotVersion, ratePerSecond, burst } = endpoint;
    const ask = { endpointId: id, slotVersion, ratePerSecond, burst, waited: 0, fresh: 0, slots: 0, ...wish };
    const group: Group = { ask, waited: [], fresh: [], slots: [] };
    this.#groups.set(key, group);
    return group;
  }

  #join(waiters: Waiter[]): Promise<RateVerdict> {
    this.#schedule();
    return new Promise((resolve, reject) => waiters.push({ resolve, reject }));
  }

  #schedule(): void {
    if (this.#timer) return;
    const waitMs = this.#askedAt + ASK_EVERY_MS - performance.now();
    this.#timer = waitMs > 0 ? setTimeout(() => this.#ask(), waitMs) : setImmediate(() => this.#ask());
  }

  #ask(): void {
    this.#timer = null;
    this.#askedAt = performance.now();
    const groups = [...this.#groups.values()];
    this.#groups = new Map();
    for (const { ask, waited, fresh, slots } of groups) {
      ask.waited = waited.length;
      ask.fresh = fresh.length;
      ask.slots = slots.length;
    }
    this.#limiter.ask(groups.map((group) => group.ask)).then(
      (answers) => this.#answer(groups, answers),
      (error: unknown) => {
        for (const group of groups) for (const waiter of waitersOf(group)) waiter.reject(error);
      },
    );
  }

  #answer(groups: readonly Group[], answers: readonly RateAnswer[]): void {
    const now = performance.now();
    for (const [index, group] of groups.entries()) {
      const { go, slots, horizonMs } = answers[index]!;
      const { endpointId, slotVersion } = group.ask;
      this.#horizons.set(endpointId, { until: now + horizonMs, slotVersion });
      for (const [place, waiter] of waitersOf(group).entries()) {
        const delayMs = go[place];
        if (delayMs !== undefined) waiter.resolve({ kind: 'go', delayMs });
        else waiter.resolve({ kind: 'slot', delayMs: slots[place - go.length]! });
      }
    }
  }
}

/** In the order in which the limiter answers. */
function waitersOf({ waited, fresh, slots }: Group): Waiter[] {
  return [...waited, ...fresh, ...slots];
}
