import type { Metrics } from './registry.ts';

/** `redis`: the bucket that the fleet shares; `process`: this process's part of it, while Redis does not answer. */
export const RATE_KEEPERS = ['redis', 'process'] as const;

/** What a process that keeps to the endpoints' rates counts. */
export function rateMetrics(metrics: Metrics) {
  return {
    asks: metrics.counters(
      'relay_rate_limiter_asks_total',
      "Questions to an endpoint's rate, for any number of deliveries each, by who answered.",
      'by',
      RATE_KEEPERS,
    ),
    horizonsRead: metrics.counter(
      'relay_rate_limiter_horizons_read_total',
      'Endpoints whose slots were looked up in the database, because no bucket knew them or nobody came for them.',
    ),
  };
}
export type RateMetrics = ReturnType<typeof rateMetrics>;
