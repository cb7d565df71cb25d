import type { Pool } from 'pg';
import type { BreakerState, EndpointJobKind, OpenReplayState, Wait } from '../domain/vocabulary.ts';

export interface QueueFigures {
  pending: number;
  inflight: number;
  due: number;
  /** Lateness of the oldest due delivery, seconds; null when none is due. */
  oldestPendingAge: number | null;
  /** Seconds; 0 when no transaction is open. */
  oldestTransactionAge: number;
  attemptPartitions: number;
  defaultPartitionRows: number;
  waiting: Record<Wait, number>;
  /** The furthest slot, seconds from now; 0 when none lies ahead. */
  slotHorizon: number;
  breakers: Record<BreakerState, number>;
  /** Endpoints whose pause still runs. */
  pausedEndpoints: number;
  jobs: Record<EndpointJobKind, number>;
  replays: Record<OpenReplayState, number>;
  /** Events whose fan-out goes on after their answer. */
  fanOuts: number;
}

// Parked rows are due at infinity, so they are never counted as late, and are no horizon. What is due waits for nothing any more.
const FIGURES = `
select
  count(*) filter (where (lease_expires_at > now()) is not true)::float8 as "pending",
  count(*) filter (where lease_expires_at > now())::float8 as "inflight",
  count(*) filter (where due_at <= now() and lease_expires_at is null)::float8 as "due",
  (extract(epoch from now() - min(due_at) filter (where due_at <= now() and lease_expires_at is null)))::float8 as "oldestPendingAge",
  json_build_object('slot', count(*) filter (where waiting = 'slot' and due_at > now()),
    'parked', count(*) filter (where waiting = 'parked' and due_at > now())) as "waiting",
  coalesce(extract(epoch from max(due_at) filter (where waiting = 'slot' and due_at > now() and due_at < 'infinity') - now()), 0)::float8
    as "slotHorizon",
  (select json_build_object('closed', count(*) filter (where breaker_state = 'closed'),
      'open', count(*) filter (where breaker_state = 'open'), 'half_open', count(*) filter (where breaker_state = 'half_open'))
    from relay.endpoints where deleted_at is null) as "breakers",
  (select count(*)::float8 from relay.endpoints where deleted_at is null and paused_until > now()) as "pausedEndpoints",
  (select json_build_object('retime', count(*) filter (where kind = 'retime'), 'cancel', count(*) filter (where kind = 'cancel'))
    from relay.endpoint_jobs) as "jobs",
  (select json_build_object('running', count(*) filter (where state = 'running'), 'paused', count(*) filter (where state = 'paused'),
      'failed', count(*) filter (where state = 'failed'))
    from relay.replay_jobs where state in ('running', 'paused', 'failed')) as "replays",
  (select count(*)::float8 from relay.fan_outs) as "fanOuts",
  (select coalesce(max(extract(epoch from now() - xact_start)), 0)::float8 from pg_stat_activity
    where backend_type = 'client backend' and pid <> pg_backend_pid()) as "oldestTransactionAge",
  (select count(*)::integer from pg_inherits where inhparent = 'relay.delivery_attempts'::regclass) - 1 as "attemptPartitions",
  (select count(*)::float8 from relay.delivery_attempts_default) as "defaultPartitionRows"
from relay.queue`;

/** One scan of the queue: 34 to 94 ms per million rows, so not more than every quarter of a minute, and by one process. */
export async function readQueueFigures(pool: Pool): Promise<QueueFigures> {
  const { rows } = await pool.query<QueueFigures>({ name: 'relay_queue_figures', text: FIGURES });
  const [row] = rows;
  if (!row) throw new Error('the queue figures came back empty');
  return row;
}

/** Makes the attempt log's daily partitions up to so many days ahead; returns how many were missing. */
export async function ensureAttemptPartitions(pool: Pool, daysAhead: number): Promise<number> {
  const { rows } = await pool.query<{ made: number }>('select relay.ensure_attempt_partitions($1) as made', [
    daysAhead,
  ]);
  return rows[0]?.made ?? 0;
}

/** How many deliveries are owed, counted up to `limit` only: a backlog must not make asking dear. */
export async function countQueue(pool: Pool, limit: number): Promise<number> {
  const { rows } = await pool.query<{ owed: number }>(
    'select count(*)::integer as owed from (select from relay.queue limit $1) q',
    [limit],
  );
  return rows[0]?.owed ?? 0;
}
