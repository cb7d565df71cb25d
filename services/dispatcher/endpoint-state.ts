import { LRUCache } from 'lru-cache';
import type { BreakerState } from '../../lib/domain/vocabulary.ts';
import type { Claim } from '../../lib/store/claims.ts';
import type { HealthChange } from '../../lib/store/endpoint-health.ts';

const MAX_ENDPOINTS = 10_000;

/** What a process knows of an endpoint's breaker and pause; moments on the monotonic clock. */
export interface KnownState {
  breaker: BreakerState;
  trips: number;
  failures: number;
  /** Whether the row says since when it has been failing. */
  failing: boolean;
  /** End of the cooldown or of the probe. */
  breakerUntil: number;
  /** Infinity for a pause without end. */
  pausedUntil: number;
  learnedAt: number;
}

/** What holds an endpoint's deliveries back. */
export type Hold =
  | { reason: 'paused'; forMs: number }
  | { reason: 'breaker_open'; forMs: number }
  | { reason: 'probe'; forMs: 0 }
  /** The cooldown is over: one delivery may find out how the endpoint is. */
  | { reason: 'probe_wanted' };

const WELL: KnownState = Object.freeze({
  breaker: 'closed',
  trips: 0,
  failures: 0,
  failing: false,
  breakerUntil: 0,
  pausedUntil: 0,
  learnedAt: Number.NEGATIVE_INFINITY,
});

/**
 * Each endpoint's breaker and pause as last heard of, by a claim or by the answer to evidence. A delivery that waits in the process is judged by
 * what was learned since it was claimed. Only what is unwell is kept.
 */
export class EndpointStates {
  readonly #unwell = new LRUCache<string, KnownState>({ max: MAX_ENDPOINTS });
  readonly #breakerEnabled: boolean;

  constructor(options: { breakerEnabled: boolean }) {
    this.#breakerEnabled = options.breakerEnabled;
  }

  get(endpointId: string): KnownState {
    return this.#unwell.get(endpointId) ?? WELL;
  }

  /** Takes over what a claim read of its endpoint's row, unless something was learned since the claim was begun (performance.now()). */
  learnFromClaim({ endpointId, trips, gates }: Claim, begunAt: number): void {
    const known = this.#unwell.get(endpointId);
    if (!known && !gates) return;
    if (known && known.learnedAt > begunAt) return;
    if (!gates) return void this.#unwell.delete(endpointId);
    const now = performance.now();
    this.#unwell.set(endpointId, {
      breaker: gates.breaker,
      trips,
      failures: gates.failures,
      failing: gates.failing,
      breakerUntil: now + (gates.breakerForMs ?? 0),
      pausedUntil: now + (gates.pausedForMs ?? 0),
      learnedAt: begunAt,
    });
  }

  learnFromChange(change: HealthChange): void {
    const now = performance.now();
    this.#unwell.set(change.endpointId, {
      breaker: change.state,
      trips: change.trips,
      failures: change.failures,
      failing: change.failing,
      breakerUntil: now + (change.breakerForMs ?? 0),
      pausedUntil: now + (change.pausedForMs ?? 0),
      learnedAt: now,
    });
  }

  /** A probe that was begun, here or elsewhere, until its deadline. */
  learnOfProbe(endpointId: string, forMs: number): void {
    const now = performance.now();
    const state = { ...this.get(endpointId), breaker: 'half_open' as const, breakerUntil: now + forMs };
    this.#unwell.set(endpointId, { ...state, learnedAt: now });
  }

  /** What holds back deliveries to this endpoint at this moment; null when nothing does. */
  hold(endpointId: string): Hold | null {
    const state = this.#unwell.get(endpointId);
    if (!state) return null;
    const now = performance.now();
    const pausedForMs = Math.max(0, state.pausedUntil - now);
    if (this.#breakerEnabled && state.breaker !== 'closed') {
      const forMs = state.breakerUntil - now;
      if (forMs > 0 && state.breaker === 'half_open') return { reason: 'probe', forMs: 0 };
      if (forMs > 0 && pausedForMs < Number.POSITIVE_INFINITY) {
        return { reason: 'breaker_open', forMs: Math.max(forMs, pausedForMs) };
      }
      if (pausedForMs === 0) return { reason: 'probe_wanted' };
    }
    return pausedForMs > 0 ? { reason: 'paused', forMs: pausedForMs } : null;
  }
}
