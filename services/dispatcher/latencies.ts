import { LRUCache } from 'lru-cache';

const MAX_ENDPOINTS = 10_000;
const SMOOTHING = 0.2;
/** An endpoint that answers later than this shares half of the process's slots with its like. */
const SLOW_MS = 1_000;

/** How long each endpoint has lately taken for a request. */
export class Latencies {
  readonly #byEndpoint = new LRUCache<string, number>({ max: MAX_ENDPOINTS });

  /** Notes how long a send took, ms. */
  observe(endpointId: string, latencyMs: number): void {
    const before = this.#byEndpoint.get(endpointId);
    this.#byEndpoint.set(
      endpointId,
      before === undefined ? latencyMs : before + (latencyMs - before) * SMOOTHING,
    );
  }

  /** Recent latency, ms; null for an endpoint that has not answered yet. */
  of(endpointId: string): number | null {
    return this.#byEndpoint.get(endpointId) ?? null;
  }

  /** Null for an endpoint that has not answered yet. */
  isSlow(endpointId: string): boolean | null {
    const latencyMs = this.of(endpointId);
    return latencyMs === null ? null : latencyMs > SLOW_MS;
  }
}
