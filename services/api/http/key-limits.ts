import { LRUCache } from 'lru-cache';
import { type ExpressAllowance, shareOfBurst, tokensAt } from '../../../lib/domain/express-allowance.ts';
import type { Principal } from './authentication.ts';
import { tryAgain } from './problem.ts';

const MAX_KEYS = 10_000;

export interface KeyLimitsOptions {
  /** For a key that has no limit of its own; 0 is none. */
  perSecond: number;
  /** Among how many APIs a key's rate is shared out. */
  liveApis: () => number;
  /** Milliseconds that only ever rise. */
  clock?: () => number;
}

/**
 * Holds each key to its requests per second: a token bucket in the process, at the key's rate divided by the APIs that live, with a burst of
 * one second's requests. It is asked on the hot route, so it asks nobody: a key whose requests all reach one of several APIs gets that
 * one's share.
 */
export class KeyLimits {
  readonly #options: KeyLimitsOptions;
  readonly #clock: () => number;
  readonly #buckets = new LRUCache<string, ExpressAllowance>({ max: MAX_KEYS });

  constructor(options: KeyLimitsOptions) {
    this.#options = options;
    this.#clock = options.clock ?? (() => performance.now());
  }

  /** Counts one request of a principal. Throws a 429 Problem, and then counts nothing. */
  spend(principal: Principal): void {
    const perSecond = principal.requestsPerSecond ?? this.#options.perSecond;
    const id = principal.keyId ?? principal.portalTokenId;
    if (perSecond === 0 || id === null) return;
    const now = this.#clock();
    const sharers = Math.max(1, this.#options.liveApis());
    const bucket = this.#buckets.get(id) ?? this.#enter(id, perSecond, sharers, now);
    bucket.ratePerSecond = perSecond;
    bucket.burst = perSecond;
    const tokens = tokensAt(bucket, now, sharers);
    if (tokens < 1) throw limited(((1 - tokens) * sharers) / perSecond);
    bucket.tokens = tokens - 1;
    bucket.atMs = now;
  }

  #enter(id: string, perSecond: number, sharers: number, now: number): ExpressAllowance {
    const bucket = {
      ratePerSecond: perSecond,
      burst: perSecond,
      tokens: shareOfBurst(perSecond, sharers),
      atMs: now,
    };
    this.#buckets.set(id, bucket);
    return bucket;
  }
}

function limited(seconds: number) {
  return tryAgain(
    'rate_limited',
    'the API key has used up its requests per second; nothing was done',
    Math.max(1, Math.ceil(seconds)),
  );
}
