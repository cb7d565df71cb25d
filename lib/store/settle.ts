import type { Pool } from 'pg';
import type { DeadReason, OutcomeClass } from '../domain/vocabulary.ts';
import { plainArray } from './array-literal.ts';

/** What is written to the log about a send. Text must be safe for a Postgres `text` column (see domain/snippet.ts). */
export interface SendRecord {
  class: Extract<OutcomeClass, 'success' | 'retryable' | 'permanent'>;
  httpStatus: number | null;
  durationMs: number;
  /** From the due moment to the start of the send, ms. */
  latenessMs: number;
  error: string | null;
  snippet: string | null;
}

interface Fence {
  deliveryId: string;
  /** The claim's token: when it no longer matches, nothing is written. */
  token: string;
}

/** The end of a delivery. `send` is null when it ended without one (cancelled, expired, its event missing). */
export interface Finish extends Fence {
  status: 'succeeded' | 'dead';
  reason: DeadReason | null;
  send: SendRecord | null;
}

/** A delivery that stays owed; a deferral is kept by `defer`. */
export type Keep = Fence & { delayMs: number } & (
    | {
        kind: 'retry';
        send: SendRecord;
        /** The endpoint's, when the delay ends in a slot of its own: it then waits like a deferral, and is timed anew with those. */
        slotVersion?: number | null;
      }
    /** Given back unsent: what it waited for and why it was deferred stay as they are. */
    | { kind: 'release' }
  );

export interface SettleOptions {
  processNumber: number;
}

// One verb on the queue in each statement, `= any` and never a join to a list: joined, an old snapshot turns the plan into a scan of
// the whole index, and two settles deadlock. Values are taken by position. A dead letter that should
// not be there is overwritten: it must not keep a whole batch from being recorded.
// Nearly every outcome is written, so only the ids of those that are not come back.
export const LOST =
  'select array(select id from unnest($1::uuid[]) id where id not in (select delivery_id from';

const FINISH = `
with freed as (
  delete from relay.queue q
  where q.delivery_id = any($1::uuid[]) and q.claim_token = ($2::uuid[])[array_position($1::uuid[], q.delivery_id)]
  returning q.delivery_id, q.generation, q.cancel_requested, q.seq, q.sends, q.attempts,
    array_position($1::uuid[], q.delivery_id) as i
),
ended as (
  select f.delivery_id, f.generation, f.i, sent, case when sent then 1 else 0 end as one,
    f.seq + case when sent then 1 else 0 end as seq,
    f.sends + case when sent then 1 else 0 end as sends,
    (f.attempts + case when sent then 1 else 0 end)::smallint as attempts,
    ($3::text[])[f.i] as status,
    case when ($3::text[])[f.i] = 'dead' and f.cancel_requested then 'cancelled' else ($4::text[])[f.i] end as reason,
    ($5::text[])[f.i] as class, ($6::smallint[])[f.i] as http_status, ($7::integer[])[f.i] as duration_ms,
    ($8::integer[])[f.i] as lateness_ms, ($9::text[])[f.i] as error, ($10::text[])[f.i] as snippet
  from freed f, lateral (select ($5::text[])[f.i] is not null as sent) s
),
finished as (
  update relay.deliveries d
  set status = e.status, dead_reason = e.reason, finished_at = now(), seq = e.seq, sends = e.sends, attempts = e.attempts,
    generation = e.generation, last_class = coalesce(e.class, d.last_class),
    last_http_status = case when e.sent then e.http_status else d.last_http_status end,
    last_duration_ms = case when e.sent then e.duration_ms else d.last_duration_ms end
  from ended e
  where d.id = e.delivery_id
  returning d.id, d.endpoint_id, d.event_id, d.tenant_id, d.status, d.dead_reason, d.last_class, d.last_http_status, e.error
),
buried as (
  insert into relay.dead_letters (delivery_id, endpoint_id, event_id, tenant_id, reason, last_class, last_http_status, last_error)
  select id, endpoint_id, event_id, tenant_id, dead_reason, last_class, last_http_status, error from finished where status = 'dead'
  on conflict (delivery_id) do update set reason = excluded.reason, died_at = excluded.died_at, last_class = excluded.last_class,
    last_http_status = excluded.last_http_status, last_error = excluded.last_error
),
logged as (
  insert into relay.delivery_attempts
    (delivery_id, seq, send, attempt, generation, class, http_status, duration_ms, lateness_ms, error, response_snippet, reason, claimed_by)
  select delivery_id, seq, sends, attempts, generation, class, http_status, duration_ms, lateness_ms, error, snippet, reason, $11
  from ended where sent
)
${LOST} freed)) as lost`;

// The sub-select of SET runs once for each row, which finds the row's place in the arrays once for all its columns. A release has no class.
const KEEP = `
with kept as (
  update relay.queue q
  set (due_at, look_at, attempts, sends, seq, deferral_reason, waiting, slot_version) = (
      select case when q.cancel_requested then q.due_at else p.due_at end,
        case when q.cancel_requested then now() else least(p.due_at, q.expires_at) end,
        q.attempts + p.sent, q.sends + p.sent, q.seq + p.sent,
        case when p.sent = 0 then q.deferral_reason end,
        case when p.sent = 0 then q.waiting when p.slot_version is not null then 'slot' end,
        case when p.sent = 0 then q.slot_version else p.slot_version end
      from (select array_position($1::uuid[], q.delivery_id) as i) a,
        lateral (select now() + ($3::double precision[])[a.i] * interval '1 ms' as due_at,
          case when ($4::text[])[a.i] is null then 0 else 1 end as sent,
          case when not q.cancel_requested then ($10::integer[])[a.i] end as slot_version) p
    ),
    announced_at = null, lease_expires_at = null, claim_token = null, claimed_by = null, reclaims = 0, lane = 1
  where q.delivery_id = any($1::uuid[]) and q.claim_token = ($2::uuid[])[array_position($1::uuid[], q.delivery_id)]
  returning q.delivery_id, q.seq, q.sends, q.attempts, q.generation, case when not q.cancel_requested then q.due_at end as next_at,
    array_position($1::uuid[], q.delivery_id) as i
),
logged as (
  insert into relay.delivery_attempts
    (delivery_id, seq, send, attempt, generation, class, http_status, duration_ms, lateness_ms, error, response_snippet, claimed_by,
      next_attempt_at)
  select k.delivery_id, k.seq, k.sends, k.attempts, k.generation,
    ($4::text[])[k.i], ($5::smallint[])[k.i], ($6::integer[])[k.i], ($7::integer[])[k.i], ($8::text[])[k.i], ($9::text[])[k.i],
    $11, k.next_at
  from kept k where ($4::text[])[k.i] is not null
)
${LOST} kept)) as lost`;

/**
 * Ends deliveries: each delivery's outcome, its log row, its dead letter, and its queue row gone, in one statement. An id must
 * stand once in a batch: values are found by its first place. Returns the ids that were written; the others had lost their lease and are
 * unchanged. Throws what Postgres reported (nothing was written) or a connection error (unknown; writing again is safe, because the
 * token fences it).
 */
export async function finish(
  pool: Pool,
  batch: readonly Finish[],
  options: SettleOptions,
): Promise<Set<string>> {
  const { rows } = await pool.query<{ lost: string[] }>({
    name: 'relay_finish',
    text: FINISH,
    values: [
      plainArray(batch.map((item) => item.deliveryId)),
      plainArray(batch.map((item) => item.token)),
      plainArray(batch.map((item) => item.status)),
      plainArray(batch.map((item) => item.reason)),
      ...sendArrays(batch.map((item) => item.send)),
      options.processNumber,
    ],
  });
  return written(batch, rows[0]?.lost);
}

/** Keeps deliveries owed: a retry or a release. Fenced and reported like `finish`. */
export async function keep(pool: Pool, batch: readonly Keep[], options: SettleOptions): Promise<Set<string>> {
  const { rows } = await pool.query<{ lost: string[] }>({
    name: 'relay_keep',
    text: KEEP,
    values: [
      plainArray(batch.map((item) => item.deliveryId)),
      plainArray(batch.map((item) => item.token)),
      plainArray(batch.map((item) => item.delayMs)),
      ...sendArrays(batch.map((item) => (item.kind === 'retry' ? item.send : null))),
      plainArray(batch.map((item) => (item.kind === 'retry' ? (item.slotVersion ?? null) : null))),
      options.processNumber,
    ],
  });
  return written(batch, rows[0]?.lost);
}

/** The ids of a batch that were written, by the answer of a statement that ends in `LOST`. */
export function written(
  batch: readonly { deliveryId: string }[],
  lost: readonly string[] | undefined,
): Set<string> {
  const ids = new Set(batch.map((item) => item.deliveryId));
  for (const id of lost ?? ids) ids.delete(id);
  return ids;
}

function sendArrays(sends: readonly (SendRecord | null)[]): unknown[] {
  return [
    plainArray(sends.map((send) => send?.class ?? null)),
    plainArray(sends.map((send) => send?.httpStatus ?? null)),
    plainArray(sends.map((send) => (send ? wholeMs(send.durationMs) : null))),
    plainArray(sends.map((send) => (send ? wholeMs(send.latenessMs) : null))),
    sends.map((send) => send?.error ?? null),
    sends.map((send) => send?.snippet ?? null),
  ];
}

function wholeMs(ms: number): number {
  return Math.min(2_147_483_647, Math.max(0, Math.round(ms)));
}
