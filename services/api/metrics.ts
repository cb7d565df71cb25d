import type { Metrics } from '../../lib/metrics/registry.ts';

const STATUS_CLASSES = ['2xx', '3xx', '4xx', '5xx'] as const;
type StatusClass = (typeof STATUS_CLASSES)[number];

/** What the API counts about requests; routes by their name, everything that is no route under one. */
export function httpMetrics(metrics: Metrics, routeNames: readonly string[]) {
  const requests = metrics.counters(
    'relay_http_requests_total',
    'Requests answered, by route; what is no route counts as unknown.',
    'route',
    [...routeNames, 'unknown'],
  );
  const responses = metrics.counters(
    'relay_http_responses_total',
    'Answers, by class of status.',
    'status',
    STATUS_CLASSES,
  );
  return {
    answered(route: string | null, status: number): void {
      requests[route ?? 'unknown']!.inc();
      responses[`${Math.floor(status / 100)}xx` as StatusClass]?.inc();
    },
  };
}
export type HttpMetrics = ReturnType<typeof httpMetrics>;
