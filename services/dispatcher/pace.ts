import { LRUCache } from 'lru-cache';
import { LOCAL_WAIT_MS } from '../../lib/domain/limits.ts';

const MAX_ENDPOINTS = 10_000;
const SMOOTHING = 0.2;
const MAX_DELAY_MS = 3_600_000;

interface EndpointPace {
  latencyMs: number;
  /** The last moment given to somebody (performance.now). */
  horizon: number;
}

/**
 * When a delivery that exceeds its endpoint's concurrency should ask again: each gets a moment of its own, spaced at what the endpoint has
 * lately been able to take, so that a backlog wakes one by one and costs the same per second however long it is.
 */
export class Pace {
  readonly #endpoints = new LRUCache<string, EndpointPace>({ max: MAX_ENDPOINTS });

  /** Notes how long a send took, ms. */
  observe(endpointId: string, latencyMs: number): void {
    const pace = this.#endpoints.get(endpointId);
    if (!pace) this.#endpoints.set(endpointId, { latencyMs, horizon: 0 });
    else pace.latencyMs += (latencyMs - pace.latencyMs) * SMOOTHING;
  }

  /** Whether deliveries wait for moments still to come: one that has not waited must not go before them. */
  hasQueue(endpointId: string, now: number): boolean {
    return (this.#endpoints.get(endpointId)?.horizon ?? 0) > now + LOCAL_WAIT_MS;
  }

  /** Reserves the next free moment and returns how far it is away, ms. */
  nextDelay(endpointId: string, cap: number, now: number): number {
    const pace = this.#endpoints.get(endpointId) ?? { latencyMs: LOCAL_WAIT_MS, horizon: 0 };
    const spacing = Math.max(1, pace.latencyMs / cap);
    pace.horizon = Math.min(Math.max(pace.horizon, now + LOCAL_WAIT_MS) + spacing, now + MAX_DELAY_MS);
    this.#endpoints.set(endpointId, pace);
    return pace.horizon - now;
  }
}
