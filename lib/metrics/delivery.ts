import { DEAD_REASONS, DEFERRAL_REASONS } from '../domain/vocabulary.ts';
import { BATCH_BUCKETS, type Metrics, SLOW_BUCKETS, WAIT_BUCKETS } from './registry.ts';

/** `lost` attempts are recorded by the reconciler and counted there as reclaims. */
export const ATTEMPT_OUTCOMES = ['success', 'deferred', 'retryable', 'permanent'] as const;

export interface DispatcherState {
  inFlight: () => number;
  ready: () => number;
  readAhead: () => number;
  oldestUnsettledMs: () => number;
  idleClients: () => number;
}

/** What a dispatcher counts. */
export function deliveryMetrics(metrics: Metrics, state: DispatcherState) {
  metrics.gauge('relay_deliveries_in_flight', 'Requests that this process has open.', state.inFlight);
  metrics.gauge(
    'relay_deliveries_ready',
    'Claimed deliveries that wait in this process for their turn.',
    state.ready,
  );
  metrics.gauge('relay_read_ahead', 'Ids read from the stream and not yet claimed.', state.readAhead);
  metrics.gauge(
    'relay_settle_oldest_unsettled_seconds',
    'Age of the oldest outcome that is not yet written.',
    () => state.oldestUnsettledMs() / 1000,
  );
  metrics.gauge(
    'relay_idle_clients',
    'Kept connections that wait for their next request.',
    state.idleClients,
  );
  return {
    attempts: metrics.counters(
      'relay_delivery_attempts_total',
      'Attempts, by outcome class.',
      'outcome',
      ATTEMPT_OUTCOMES,
    ),
    deferred: metrics.counters(
      'relay_deliveries_deferred_total',
      'Deferrals, by the gate that held the delivery back.',
      'reason',
      DEFERRAL_REASONS,
    ),
    dead: metrics.counters(
      'relay_deliveries_dead_total',
      'Deliveries that ended without success, by reason.',
      'reason',
      DEAD_REASONS,
    ),
    refused: metrics.counter(
      'relay_deliveries_refused_total',
      'Sends refused because of where they would have gone.',
    ),
    duration: metrics.histogram(
      'relay_delivery_duration_seconds',
      'From the start of a send to its end.',
      SLOW_BUCKETS,
    ),
    lateness: metrics.histogram(
      'relay_delivery_lateness_seconds',
      'From the moment a delivery was due to the first byte of its answer.',
      WAIT_BUCKETS,
    ),
    acceptToDelivered: metrics.histogram(
      'relay_accept_to_delivered_seconds',
      'From acceptance of an event to the success of a delivery.',
      WAIT_BUCKETS,
    ),
    claimed: metrics.counter('relay_deliveries_claimed_total', 'Deliveries leased by this process.'),
    claimBatch: metrics.histogram(
      'relay_claim_batch_size',
      'Deliveries leased by one statement.',
      BATCH_BUCKETS,
    ),
    settleBatch: metrics.histogram(
      'relay_settle_batch_size',
      'Outcomes written by one statement.',
      BATCH_BUCKETS,
    ),
    leasesLost: metrics.counter(
      'relay_leases_lost_total',
      'Outcomes that changed nothing, because the lease was lost before.',
    ),
    settleRetries: metrics.counter(
      'relay_settle_retries_total',
      'Batches of outcomes that had to be written again.',
    ),
    released: metrics.counter('relay_deliveries_released_total', 'Claims given back unsent.'),
    consumed: metrics.counter('relay_broker_consumed_total', 'Ids read from the stream.'),
    reclaimed: metrics.counter(
      'relay_broker_reclaimed_total',
      'Ids in entries taken over from another consumer.',
    ),
    stale: metrics.counter(
      'relay_broker_stale_messages_total',
      'Ids read whose row was not to be had: done, leased or not due.',
    ),
    trips: metrics.counter('relay_breaker_trips_total', 'Breakers opened.'),
    probes: metrics.counter(
      'relay_breaker_probes_total',
      'Probes begun, one for each cooldown that ended with something due.',
    ),
    probesRecovered: metrics.counter(
      'relay_breaker_probes_recovered_total',
      'Probes that closed their breaker.',
    ),
    paused: metrics.counter('relay_endpoint_pauses_total', 'Pauses that endpoints asked for by Retry-After.'),
    disabled: metrics.counters(
      'relay_endpoints_disabled_total',
      'Endpoints that Relay disabled, by reason.',
      'reason',
      ['gone', 'failing'],
    ),
    malformed: metrics.counter(
      'relay_broker_malformed_total',
      'Stream entries that nobody can read, removed.',
    ),
    readStalls: metrics.counter(
      'relay_broker_read_stalls_total',
      'Blocking reads that did not come back in time.',
    ),
  };
}
export type DeliveryMetrics = ReturnType<typeof deliveryMetrics>;
