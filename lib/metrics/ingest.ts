import { BATCH_BUCKETS, FAST_BUCKETS, type Metrics } from './registry.ts';

export const INGEST_OUTCOMES = ['accepted', 'replayed', 'rejected', 'error'] as const;

/** What the API counts about accepting events. */
export function ingestMetrics(metrics: Metrics, state: { queued: () => number }) {
  metrics.gauge('relay_ingest_queue', 'Requests that wait for their commit.', state.queued);
  return {
    outcomes: metrics.counters(
      'relay_ingest_total',
      'Events posted, by what became of them.',
      'outcome',
      INGEST_OUTCOMES,
    ),
    duration: metrics.histogram(
      'relay_ingest_duration_seconds',
      'From the arrival of a posted event to its answer.',
      FAST_BUCKETS,
    ),
    batchSize: metrics.histogram('relay_ingest_batch_size', 'Events committed by one statement.', [
      ...BATCH_BUCKETS,
      512,
      1_000,
    ]),
    announced: metrics.counter(
      'relay_ingest_announced_total',
      'Deliveries put on the stream right after their commit.',
    ),
    announceFailed: metrics.counter(
      'relay_ingest_announce_failed_total',
      'Deliveries whose announcement failed after their commit; they are found in the database instead.',
    ),
    commitUnknown: metrics.counter(
      'relay_ingest_commit_unknown_total',
      'Events answered 503 because the outcome of their commit is unknown.',
    ),
  };
}
export type IngestMetrics = ReturnType<typeof ingestMetrics>;
