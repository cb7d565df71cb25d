import type pg from 'pg';

/** A row of `queue` as it stands, with times as milliseconds from the database's now. */
export interface QueueRow {
  attempts: number;
  sends: number;
  seq: number;
  generation: number;
  reclaims: number;
  deferrals: number;
  deferral_reason: string | null;
  waiting: string | null;
  slot_version: number | null;
  lane: number;
  claim_token: string | null;
  claimed_by: number | null;
  cancel_requested: boolean;
  /** NaN-free: ±Infinity for ±infinity. */
  due_in: number;
  look_in: number;
  announced_in: number | null;
  lease_in: number | null;
}

const fromNow = (column: string) =>
  `(extract(epoch from ${column}) - extract(epoch from now()))::float8 * 1000`;

export async function findQueueRow(pool: pg.Pool, id: string): Promise<QueueRow | null> {
  const { rows } = await pool.query<QueueRow>(
    `select attempts, sends, seq, generation, reclaims, deferrals, deferral_reason, waiting, slot_version, lane, claim_token, claimed_by,
       cancel_requested, ${fromNow('due_at')} as due_in, ${fromNow('look_at')} as look_in,
       ${fromNow('announced_at')} as announced_in, ${fromNow('lease_expires_at')} as lease_in
     from relay.queue where delivery_id = $1`,
    [id],
  );
  return rows[0] ?? null;
}

export async function queueRow(pool: pg.Pool, id: string): Promise<QueueRow> {
  const row = await findQueueRow(pool, id);
  if (!row) throw new Error(`${id} has no queue row`);
  return row;
}

/** Moves the moments of queue rows into the past (or, negative, the future): what a test does instead of waiting. */
export async function age(pool: pg.Pool, ids: readonly string[], ms: number): Promise<void> {
  await pool.query(
    `update relay.queue set due_at = due_at - $2 * interval '1 ms', look_at = look_at - $2 * interval '1 ms',
       announced_at = announced_at - $2 * interval '1 ms', lease_expires_at = lease_expires_at - $2 * interval '1 ms',
       expires_at = expires_at - $2 * interval '1 ms'
     where delivery_id = any($1::uuid[])`,
    [ids, ms],
  );
}

/** Puts free rows into slots of a version (1 unless said otherwise), one after the other from a minute ahead, or parks them. */
export async function givenWaiting(
  pool: pg.Pool,
  ids: readonly string[],
  { slotVersion = 1, everyMs = 100, parked = false } = {},
): Promise<void> {
  await pool.query(
    `update relay.queue q
     set (due_at, look_at) = (select m.at, least(m.at, q.expires_at) from (select case when $4 then 'infinity'
         else now() + interval '1 minute' + array_position($1::uuid[], q.delivery_id) * $3 * interval '1 ms' end as at) m),
       waiting = case when $4 then 'parked' else 'slot' end, slot_version = $2, announced_at = null, lane = 1,
       deferrals = q.deferrals + 1, deferral_reason = coalesce(q.deferral_reason, 'paused')
     where delivery_id = any($1::uuid[])`,
    [ids, slotVersion, everyMs, parked],
  );
}

/** Ends leases `ms` ago, with the sweep's look where a claim's sweep puts it: 5 s after that. */
export async function endLeases(pool: pg.Pool, ids: readonly string[], ms: number): Promise<void> {
  await pool.query(
    `update relay.queue set lease_expires_at = now() - $2 * interval '1 ms', look_at = now() - $2 * interval '1 ms' + interval '5 s'
     where delivery_id = any($1::uuid[])`,
    [ids, ms],
  );
}

export async function requestCancel(pool: pg.Pool, id: string): Promise<void> {
  await pool.query('update relay.queue set cancel_requested = true, look_at = now() where delivery_id = $1', [
    id,
  ]);
}

export interface DeliveryRow {
  status: string;
  dead_reason: string | null;
  attempts: number;
  sends: number;
  seq: number;
  generation: number;
  last_class: string | null;
  last_http_status: number | null;
  last_duration_ms: number | null;
  finished: boolean;
}

export async function deliveryRow(pool: pg.Pool, id: string): Promise<DeliveryRow> {
  const { rows } = await pool.query<DeliveryRow>(
    `select status, dead_reason, attempts, sends, seq, generation, last_class, last_http_status, last_duration_ms,
       finished_at is not null as finished
     from relay.deliveries where id = $1`,
    [id],
  );
  if (!rows[0]) throw new Error(`${id} does not exist`);
  return rows[0];
}

export interface AttemptRow {
  seq: number;
  send: number | null;
  attempt: number;
  generation: number;
  class: string;
  reason: string | null;
  http_status: number | null;
  response_snippet: string | null;
  claimed_by: number | null;
  next_in: number | null;
}

export async function attemptRows(pool: pg.Pool, id: string): Promise<AttemptRow[]> {
  const { rows } = await pool.query<AttemptRow>(
    `select seq, send, attempt, generation, class, reason, http_status, response_snippet, claimed_by,
       ${fromNow('next_attempt_at')} as next_in
     from relay.delivery_attempts where delivery_id = $1 order by seq`,
    [id],
  );
  return rows;
}

export async function deadLetterReason(pool: pg.Pool, id: string): Promise<string | null> {
  const { rows } = await pool.query<{ reason: string }>(
    'select reason from relay.dead_letters where delivery_id = $1',
    [id],
  );
  return rows[0]?.reason ?? null;
}

/**
 * What the log says of an endpoint's deliveries: how many successes, and how many sends. A receiver on a busy machine may be too late for a
 * send's deadline; then it has the delivery more than once, and each of its requests is a send in the log.
 */
export async function loggedSends(
  pool: pg.Pool,
  endpointId: string,
): Promise<{ successes: number; sends: number }> {
  const { rows } = await pool.query<{ successes: number; sends: number }>(
    `select count(*) filter (where a.class = 'success')::integer as successes, count(a.send)::integer as sends
     from relay.deliveries d join relay.delivery_attempts a on a.delivery_id = d.id where d.endpoint_id = $1`,
    [endpointId],
  );
  return rows[0]!;
}
