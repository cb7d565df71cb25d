import type { Pool } from 'pg';
import type { Share } from '../domain/cap-share.ts';
import { INLINE_PAYLOAD_BYTES, RECLAIM_GRACE_MS } from '../domain/limits.ts';
import type { BreakerState } from '../domain/vocabulary.ts';
import { plainArray } from './array-literal.ts';
import { eventIdOf } from './event-ids.ts';

/** A leased delivery: all that sending it needs, except its endpoint's configuration (cached by `endpointVersion`). */
export interface Claim {
  deliveryId: string;
  endpointId: string;
  eventId: string;
  token: string;
  attempts: number;
  sends: number;
  deferralReason: string | null;
  /** Whether it has waited in a slot or parked: it goes before those that have not. */
  waited: boolean;
  /** How late the claim was past the due moment, ms by the database's clock. */
  lateMs: number;
  /** Time since the event was accepted, ms by the database's clock at the claim. */
  ageMs: number;
  expired: boolean;
  /** Such a delivery can only be refused. */
  eventMissing: boolean;
  type: string;
  contentType: string;
  payloadBytes: number;
  /** Null when it is too large to come along; read it with `readPayload`. */
  payload: Buffer | null;
  /** Null when the endpoint is missing. */
  endpointVersion: number | null;
  endpointDeleted: boolean;
  /** The endpoint's breaker era; 0 when the endpoint is missing. */
  trips: number;
  /** Null while nothing is wrong with the endpoint: closed, without failures, and not paused. */
  gates: EndpointGates | null;
}

/** What stands between a claim and its send, as it stood at the claim. Times are ms from then, by the database's clock. */
export interface EndpointGates {
  breaker: BreakerState;
  /** Consecutive ones in this era. */
  failures: number;
  /** Whether it has failed since its last success. */
  failing: boolean;
  /** Until the end of the cooldown or of the probe; 0 or less when that has passed, null when closed. */
  breakerForMs: number | null;
  /** `Infinity` for a pause without end; null when not paused. */
  pausedForMs: number | null;
}

export interface ClaimOptions {
  /** Fresh for each claim; every later write names it. */
  token: string;
  leaseMs: number;
  processNumber: number;
}

// Touches no indexed column, so the new row version is heap-only. The joins come after the update and are outer ones: a row whose
// event or endpoint is missing must be seen, not passed over for ever.
const LEASE = `set claim_token = $2::uuid, lease_expires_at = now() + $3::double precision * interval '1 ms', claimed_by = $4`;
const LEASED = `q.delivery_id, q.endpoint_id, q.event_id, q.attempts, q.sends, q.deferral_reason, q.waiting is not null as waited, q.due_at, q.expires_at`;
// date_part gives a double; extract would give a numeric, and computing with those costs more than the row's index probes.
const MS_FROM_NOW = (column: string) => `date_part('epoch', ${column} - now()) * 1000`;
// One column for all gates, null for a well endpoint: the usual claim must not pay for five. JSON cannot say Infinity but as a text.
const GATES = `
  case when n.breaker_state <> 'closed' or n.breaker_failures > 0 or n.failing_since is not null or n.paused_until > now()
    then json_build_object('breaker', n.breaker_state, 'failures', n.breaker_failures, 'failing', n.failing_since is not null,
      'breakerForMs', ${MS_FROM_NOW('n.breaker_until')},
      'pausedForMs', case when n.paused_until = 'infinity' then 'Infinity'::float8
        when n.paused_until > now() then ${MS_FROM_NOW('n.paused_until')} end)
  end as gates`;
const WITH_EVENT = `
select c.delivery_id, c.endpoint_id, c.attempts, c.sends, c.deferral_reason, c.waited,
  date_part('epoch', now() - c.due_at) * 1000 as late_ms, c.expires_at <= now() is true as expired,
  date_part('epoch', now() - e.created_at) * 1000 as age_ms, e.type, e.content_type,
  octet_length(e.payload) as payload_bytes,
  case when octet_length(e.payload) <= ${INLINE_PAYLOAD_BYTES} then e.payload end as payload,
  n.version as endpoint_version, n.deleted_at is not null as endpoint_deleted, n.breaker_trips as trips,${GATES}`;
const JOINS = `
left join relay.events e on e.id = c.event_id
left join relay.endpoints n on n.id = c.endpoint_id`;

const BY_ID = `
with c as (
  update relay.queue q ${LEASE}
  where q.delivery_id = any($1::uuid[]) and q.due_at <= now() and q.lease_expires_at is null and not q.cancel_requested
  returning ${LEASED}
)${WITH_EVENT}
from c${JOINS}`;

// Straight from the queue, when no stream tells what is due. `look_at` moves along, or the next poll would walk over what is
// leased; the lower bound keeps it from walking over dead index entries.
//
// What wakes in its slot is divided: each process takes its part of it, by a hash of the id, and what is a second late anybody takes. Without
// a stream there may be no Redis either, and then each keeps to its part of the rates: one that took more would turn away what it cannot
// send, while another had nothing to send.
const OWN_PART_MS = 1_000;
const BY_LOOK = `
with picked as materialized (
  select delivery_id, look_at from relay.queue
  where look_at <= now() and look_at >= $5::timestamptz and due_at <= now() and lease_expires_at is null
    and not cancel_requested
    and (waiting is distinct from 'slot' or (uuid_hash(delivery_id) & 2147483647) % $6::integer = $7::integer
      or due_at <= now() - interval '${OWN_PART_MS} ms')
  order by look_at limit $1
  for update skip locked
),
c as (
  update relay.queue q ${LEASE},
    look_at = now() + ($3::double precision + ${RECLAIM_GRACE_MS}) * interval '1 ms'
  where q.delivery_id = any(array(select delivery_id from picked))
  returning ${LEASED}
)${WITH_EVENT}, (select max(look_at) from picked) as last_look, now() as read_at
from c${JOINS}`;

interface ClaimRow {
  delivery_id: string;
  endpoint_id: string;
  attempts: number;
  sends: number;
  deferral_reason: string | null;
  waited: boolean;
  late_ms: number;
  age_ms: number | null;
  expired: boolean;
  type: string | null;
  content_type: string | null;
  payload_bytes: number | null;
  payload: Buffer | null;
  endpoint_version: number | null;
  endpoint_deleted: boolean;
  trips: number | null;
  gates: GatesRow | null;
}

interface GatesRow extends Omit<EndpointGates, 'pausedForMs'> {
  pausedForMs: number | 'Infinity' | null;
}

/** Leases those of `ids` that are due, free and not cancelled. Ids that do not come back were lost to somebody else. */
export async function claimByIds(
  pool: Pool,
  ids: readonly string[],
  options: ClaimOptions,
): Promise<Claim[]> {
  const { rows } = await pool.query<ClaimRow>({
    name: 'relay_claim',
    text: BY_ID,
    values: [plainArray(ids), options.token, options.leaseMs, options.processNumber],
  });
  return rows.map((row) => toClaim(row, options.token));
}

export interface PollOptions extends ClaimOptions {
  /** Which part of what wakes in its slot is this process's. */
  part: Share;
}

/** Where a poll left off; the next starts 3 s before it, because transactions commit out of order. */
export type PollCursor = Date | null;

const POLL_OVERLAP_MS = 3_000;

/**
 * Leases up to `limit` due rows straight from the queue. `from` null walks from the beginning, which finds rows that committed
 * late or were passed over while locked. The cursor it returns is a shortcut, never a proof.
 */
export async function claimDue(
  pool: Pool,
  limit: number,
  from: PollCursor,
  options: PollOptions,
): Promise<{ claims: Claim[]; cursor: PollCursor }> {
  const { token, leaseMs, processNumber, part } = options;
  const live = Math.max(1, part.live);
  const { rows } = await pool.query<ClaimRow & { last_look: Date | number; read_at: Date }>({
    name: 'relay_claim_due',
    text: BY_LOOK,
    values: [limit, token, leaseMs, processNumber, from ?? '-infinity', live, part.rank % live],
  });
  return { claims: rows.map((row) => toClaim(row, token)), cursor: nextCursor(rows, limit, from) };
}

function nextCursor(
  rows: readonly { last_look: Date | number; read_at: Date }[],
  limit: number,
  from: PollCursor,
): PollCursor {
  const [first] = rows;
  if (!first) return from;
  const reached = rows.length === limit ? first.last_look : first.read_at;
  // Rows enqueued by SQL look at -infinity, which the driver gives as a number: such a batch proves nothing.
  return reached instanceof Date ? new Date(reached.getTime() - POLL_OVERLAP_MS) : from;
}

function toClaim(row: ClaimRow, token: string): Claim {
  return {
    deliveryId: row.delivery_id,
    endpointId: row.endpoint_id,
    eventId: eventIdOf(row.delivery_id),
    token,
    attempts: row.attempts,
    sends: row.sends,
    deferralReason: row.deferral_reason,
    waited: row.waited,
    lateMs: row.late_ms,
    ageMs: row.age_ms ?? 0,
    expired: row.expired,
    eventMissing: row.type === null,
    type: row.type ?? '',
    contentType: row.content_type ?? '',
    payloadBytes: row.payload_bytes ?? 0,
    payload: row.payload,
    endpointVersion: row.endpoint_version,
    endpointDeleted: row.endpoint_deleted,
    trips: row.trips ?? 0,
    gates: row.gates && toGates(row.gates),
  };
}

function toGates(row: GatesRow): EndpointGates {
  return { ...row, pausedForMs: row.pausedForMs === null ? null : Number(row.pausedForMs) };
}

/** Reads a payload that was too large to come with its claim; null when the event is gone. */
export async function readPayload(pool: Pool, eventId: string): Promise<Buffer | null> {
  const { rows } = await pool.query<{ payload: Buffer }>({
    name: 'relay_payload',
    text: 'select payload from relay.events where id = $1',
    values: [eventId],
  });
  return rows[0]?.payload ?? null;
}
