import {
  BREAKER_STATES,
  type BreakerState,
  ENDPOINT_JOBS,
  type EndpointJobKind,
  LANES,
  type Lane,
  OPEN_REPLAY_STATES,
  type OpenReplayState,
  WAITS,
  type Wait,
} from '../domain/vocabulary.ts';
import type { Metrics } from './registry.ts';

/** What lies in one lane's stream. */
export interface LaneLag {
  unreadEntries: number;
  unackedEntries: number;
  unreadDeliveries: number;
}

/** Figures of the leading reconciler; NaN or 0 elsewhere, so that sums over replicas are right. */
export interface QueueGauges {
  pending: number;
  inflight: number;
  due: number;
  /** Lateness of the oldest due delivery, seconds; NaN when nothing is due. */
  oldestPendingAge: number;
  oldestTransactionAge: number;
  attemptPartitions: number;
  defaultPartitionRows: number;
  waiting: Record<Wait, number>;
  /** The furthest slot that was given out, seconds from now; 0 when none lies ahead. */
  slotHorizon: number;
  breakers: Record<BreakerState, number>;
  pausedEndpoints: number;
  jobs: Record<EndpointJobKind, number>;
  replays: Record<OpenReplayState, number>;
  /** Events whose fan-out goes on after their answer. */
  fanOuts: number;
  lag: Record<Lane, LaneLag>;
}

export const NO_LAG: LaneLag = { unreadEntries: 0, unackedEntries: 0, unreadDeliveries: 0 };

export const EMPTY_GAUGES: QueueGauges = {
  pending: 0,
  inflight: 0,
  due: 0,
  oldestPendingAge: Number.NaN,
  oldestTransactionAge: 0,
  attemptPartitions: 0,
  defaultPartitionRows: 0,
  waiting: { slot: 0, parked: 0 },
  slotHorizon: 0,
  breakers: { closed: 0, open: 0, half_open: 0 },
  pausedEndpoints: 0,
  jobs: { retime: 0, cancel: 0 },
  replays: { running: 0, paused: 0, failed: 0 },
  fanOuts: 0,
  lag: { express: NO_LAG, bulk: NO_LAG },
};

const ENDED_BY_SWEEP = ['cancelled', 'expired', 'abandoned'] as const;
/** What a step of a replay job may do with a delivery; that it was `locked` is said when the job is cancelled, by no step. */
const REPLAYED_BY_STEP = ['replayed', 'endpoint_deleted', 'event_missing', 'changed'] as const;

/** What a reconciler counts, and the queue's figures while it leads. */
export function reconcileMetrics(
  metrics: Metrics,
  state: { leader: () => boolean; gauges: () => QueueGauges },
) {
  type Single = { [K in keyof QueueGauges]: QueueGauges[K] extends number ? K : never }[keyof QueueGauges];
  const read = (name: Single) => () => state.gauges()[name];
  metrics.gauge('relay_leader', 'Whether this reconciler leads (1) or stands by (0).', () =>
    state.leader() ? 1 : 0,
  );
  metrics.gauges(
    'relay_queue_depth',
    'Unfinished deliveries; exported by the leader.',
    'status',
    ['pending', 'inflight'],
    () => {
      const { pending, inflight } = state.gauges();
      return { pending, inflight };
    },
  );
  metrics.gauge('relay_queue_due', 'Deliveries due now and not leased; exported by the leader.', read('due'));
  metrics.gauge(
    'relay_queue_oldest_pending_age_seconds',
    'How far past due the oldest delivery is; NaN when none is due.',
    read('oldestPendingAge'),
  );
  metrics.gauge(
    'relay_oldest_transaction_age_seconds',
    'Age of the oldest open transaction in the database.',
    read('oldestTransactionAge'),
  );
  metrics.gauge(
    'relay_attempt_partitions',
    'Daily partitions of the attempt log.',
    read('attemptPartitions'),
  );
  metrics.gauge(
    'relay_attempt_default_partition_rows',
    'Rows in the default partition; meant to be 0.',
    read('defaultPartitionRows'),
  );
  metrics.gaugeTable(
    'relay_broker_lag',
    'Stream entries, by lane and by whether they were read.',
    [
      { name: 'lane', values: LANES },
      { name: 'state', values: ['unread', 'unacked'] },
    ],
    (lane, reading) => {
      const { unreadEntries, unackedEntries } = state.gauges().lag[lane];
      return reading === 'unread' ? unreadEntries : unackedEntries;
    },
  );
  metrics.gauges(
    'relay_broker_lag_deliveries',
    'Deliveries in unread stream entries, by lane, estimated.',
    'lane',
    LANES,
    () => {
      const { express, bulk } = state.gauges().lag;
      return { express: express.unreadDeliveries, bulk: bulk.unreadDeliveries };
    },
  );
  metrics.gauges(
    'relay_queue_waiting',
    'Deliveries that wait in a slot of their own, and that are parked; exported by the leader.',
    'kind',
    WAITS,
    () => state.gauges().waiting,
  );
  metrics.gauge(
    'relay_slot_horizon_seconds',
    'How far ahead the furthest slot lies; 0 when none does.',
    read('slotHorizon'),
  );
  metrics.gauges(
    'relay_endpoint_breakers',
    'Endpoints by the state of their breaker; exported by the leader.',
    'state',
    BREAKER_STATES,
    () => state.gauges().breakers,
  );
  metrics.gauge(
    'relay_endpoints_paused',
    'Endpoints whose pause still runs; exported by the leader.',
    read('pausedEndpoints'),
  );
  metrics.gauges(
    'relay_endpoint_jobs',
    'Jobs over what waits for an endpoint that are not done yet; exported by the leader.',
    'kind',
    ENDPOINT_JOBS,
    () => state.gauges().jobs,
  );
  metrics.gauge(
    'relay_fan_outs',
    'Events that were accepted with a part of their deliveries and whose others are not all made yet; exported by the leader.',
    read('fanOuts'),
  );
  metrics.gauges(
    'relay_replay_jobs',
    'Replay jobs that are not over; exported by the leader.',
    'state',
    OPEN_REPLAY_STATES,
    () => state.gauges().replays,
  );
  return {
    announced: metrics.counters(
      'relay_reconciler_announced_total',
      'Deliveries announced by the sweep: due now, or stalled and announced again.',
      'kind',
      ['due', 'stalled'],
    ),
    reclaimed: metrics.counter(
      'relay_reaper_rescued_total',
      'Leases that ended unsettled and were given back.',
    ),
    ended: metrics.counters(
      'relay_reconciler_ended_total',
      'Deliveries ended by the sweep, by reason.',
      'reason',
      ENDED_BY_SWEEP,
    ),
    jobDeliveries: metrics.counters(
      'relay_endpoint_job_deliveries_total',
      'Deliveries that were timed anew, or whose cancelling was asked for, by a job over their endpoint.',
      'kind',
      ENDPOINT_JOBS,
    ),
    fannedOut: metrics.counter(
      'relay_fan_out_deliveries_total',
      'Deliveries made after the answer to their event, which matched many endpoints.',
    ),
    replayDeliveries: metrics.counters(
      'relay_replay_deliveries_total',
      'Deliveries that replay jobs made pending again, or passed over, by what became of them.',
      'outcome',
      REPLAYED_BY_STEP,
    ),
    consumersRemoved: metrics.counter(
      'relay_broker_consumers_removed_total',
      'Dead consumers removed from the group.',
    ),
    violations: metrics.counter(
      'relay_invariant_violations_total',
      'Faults found by the invariant check; must stay 0.',
    ),
    terms: metrics.counter('relay_leader_terms_total', 'Times this process became the leader.'),
  };
}
export type ReconcileMetrics = ReturnType<typeof reconcileMetrics>;
