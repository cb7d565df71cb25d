import { LRUCache } from 'lru-cache';
import { LOCAL_WAIT_MS } from '../../lib/domain/limits.ts';
import type { RateAnswer, RateAsk, RateLimiter } from '../../lib/domain/rate-bucket.ts';

const MAX_ENDPOINTS = 10_000;
/** Asks of one turn travel together; while many are begun, a little apart costs a tenth. One that comes alone goes at once. */
const ASK_EVERY_MS = 2;
/** In place of a wait for a token: those who wish only for a slot are asked for apart from those who would go at once. */
const SLOT_ONLY = -1;

/** What the limiter must know of an endpoint. */
export interface RatedEndpoint {
  id: string;
  slotVersion: number;
  /** Spacing of the moments at which what waits may ask again, ms. */
  slotEveryMs: number;
  ratePerSecond: number;
  burst: number;
}

/** Go after so many ms, a token is taken; or wait in a slot that many ms ahead; or the limiter could not answer. */
export type RateVerdict =
  | { kind: 'go'; delayMs: number }
  | { kind: 'slot'; delayMs: number }
  | { kind: 'unanswered'; error: unknown };

/** Told of the verdict: a promise for each delivery would cost as much as the question. */
export type Decided = (verdict: RateVerdict) => void;

export interface SlotWish {
  /** Spacing of the slots, ms. */
  everyMs: number;
  /** Slots begin after this, ms: the rest of a cooldown or pause. */
  afterMs: number;
}

/** Those about one endpoint who wish for the same. */
interface Group {
  ask: RateAsk;
  waited: Decided[];
  fresh: Decided[];
  slots: Decided[];
}

type Wish = Pick<RateAsk, 'slotEveryMs' | 'slotsAfterMs' | 'maxWaitMs'>;

const GO_NOW: RateVerdict = Object.freeze({ kind: 'go', delayMs: 0 });

/** Asks the fleet's rate limiter for many deliveries at once, and remembers how far each endpoint's slots are given out. */
export class RateGate {
  readonly #limiter: RateLimiter;
  readonly #horizons = new LRUCache<string, { until: number; slotVersion: number }>({ max: MAX_ENDPOINTS });
  /** What is not asked yet, by endpoint. */
  #groups = new Map<string, Group[]>();
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

  /** Asks for a token, or for a slot where none is to be had within `maxWaitMs`. */
  take(
    endpoint: RatedEndpoint,
    { waited, maxWaitMs }: { waited: boolean; maxWaitMs: number },
    decided: Decided,
  ): void {
    const group = this.#group(endpoint, { slotEveryMs: endpoint.slotEveryMs, slotsAfterMs: 0, maxWaitMs });
    (waited ? group.waited : group.fresh).push(decided);
    this.#schedule();
  }

  /** Asks for a slot; resolves to the time until it, ms. Rejects when the limiter cannot answer. */
  slot(endpoint: RatedEndpoint, { everyMs, afterMs }: SlotWish): Promise<number> {
    const group = this.#group(endpoint, {
      slotEveryMs: everyMs,
      slotsAfterMs: afterMs,
      maxWaitMs: SLOT_ONLY,
    });
    group.ask.slotsAfterMs = Math.max(group.ask.slotsAfterMs, afterMs);
    this.#schedule();
    return new Promise((resolve, reject) => {
      group.slots.push((verdict) =>
        verdict.kind === 'unanswered' ? reject(verdict.error) : resolve(verdict.delayMs),
      );
    });
  }

  #group(endpoint: RatedEndpoint, wish: Wish): Group {
    const groups = this.#groups.get(endpoint.id);
    const found = groups?.find(({ ask }) => sameWish(ask, wish));
    if (found) return found;
    const { id, slotVersion, ratePerSecond, burst } = endpoint;
    // The counts are filled in when it is sent.
    const ask = { endpointId: id, slotVersion, ratePerSecond, burst, waited: 0, fresh: 0, slots: 0, ...wish };
    const group: Group = { ask, waited: [], fresh: [], slots: [] };
    if (groups) groups.push(group);
    else this.#groups.set(id, [group]);
    return group;
  }

  #schedule(): void {
    if (this.#timer) return;
    const waitMs = this.#askedAt + ASK_EVERY_MS - performance.now();
    this.#timer = waitMs > 0 ? setTimeout(() => this.#ask(), waitMs) : setImmediate(() => this.#ask());
  }

  #ask(): void {
    this.#timer = null;
    this.#askedAt = performance.now();
    const groups = [...this.#groups.values()].flat();
    this.#groups = new Map();
    for (const { ask, waited, fresh, slots } of groups) {
      ask.waited = waited.length;
      ask.fresh = fresh.length;
      ask.slots = slots.length;
      ask.maxWaitMs = Math.max(0, ask.maxWaitMs);
    }
    this.#limiter.ask(groups.map((group) => group.ask)).then(
      (answers) => this.#answer(groups, answers),
      (error: unknown) => {
        for (const group of groups)
          for (const decided of inOrder(group)) decided({ kind: 'unanswered', error });
      },
    );
  }

  #answer(groups: readonly Group[], answers: readonly RateAnswer[]): void {
    const now = performance.now();
    for (const [index, group] of groups.entries()) {
      const { go, slots, horizonMs } = answers[index]!;
      const { endpointId, slotVersion } = group.ask;
      this.#horizons.set(endpointId, { until: now + horizonMs, slotVersion });
      for (const [place, decided] of inOrder(group).entries()) {
        const goesAfterMs = go[place];
        if (goesAfterMs === 0) decided(GO_NOW);
        else if (goesAfterMs !== undefined) decided({ kind: 'go', delayMs: goesAfterMs });
        else decided({ kind: 'slot', delayMs: slots[place - go.length]! });
      }
    }
  }
}

function sameWish(ask: Wish, wish: Wish): boolean {
  return (
    ask.maxWaitMs === wish.maxWaitMs &&
    ask.slotEveryMs === wish.slotEveryMs &&
    ask.slotsAfterMs > 0 === wish.slotsAfterMs > 0
  );
}

/** In the order in which the limiter answers. */
function inOrder({ waited, fresh, slots }: Group): Decided[] {
  if (fresh.length === 0 && slots.length === 0) return waited;
  if (waited.length === 0 && slots.length === 0) return fresh;
  return [...waited, ...fresh, ...slots];
}
