import type { Pool } from 'pg';
import type { DeferralReason } from '../domain/vocabulary.ts';
import { plainArray } from './array-literal.ts';
import { LOST, type SettleOptions, written } from './settle.ts';

/** A claimed delivery that a gate holds back: our own choice, which spends nothing. */
export interface Deferral {
  deliveryId: string;
  /** The claim's token: when it no longer matches, nothing is written. */
  token: string;
  endpointId: string;
  reason: DeferralReason;
  /** Whether it was deferred for the same reason before: such a deferral is counted and not logged. */
  repeated: boolean;
  /** The endpoint's, as the gate saw it: a slot of another version is no slot. */
  slotVersion: number;
  /** Ms until its own slot, or without a moment. */
  wait: number | 'parked';
}

// Whoever resumes or speeds up an endpoint has what waits for it timed anew, by the version that the same transaction raises. So the
// endpoint is held while a wait is written: either that transaction waits for this one, and its job finds the row, or this one sees the
// new version, and the row is due now. Such a row was not deferred: it keeps its reason and is not logged.
//
// The endpoints' values stand in arrays, found by position like those of the batch, and the queue is joined to nothing. A first deferral for a
// reason is logged; a repeated one only counts, or a dead endpoint would write a row for every look at it.
const DEFER = `
with held as materialized (
  select id, slot_version, not enabled or paused_until is not distinct from 'infinity' as holds
  from relay.endpoints
  where id = any($3::uuid[]) and deleted_at is null
  order by id
  for share
),
gate as materialized (
  select array_agg(id) as ids, array_agg(slot_version) as versions, array_agg(holds) as holds from held
),
deferred as (
  update relay.queue q
  set (due_at, look_at, waiting, slot_version, seq, deferrals, deferral_reason) = (
      select case when q.cancel_requested then q.due_at else w.due_at end,
        case when q.cancel_requested then now() else least(w.due_at, q.expires_at) end,
        w.waiting, case when w.waiting is not null then ($6::integer[])[a.i] end,
        q.seq + case when w.counts and not ($5::boolean[])[a.i] then 1 else 0 end,
        q.deferrals + case when w.counts then 1 else 0 end,
        case when w.counts then ($4::text[])[a.i] else q.deferral_reason end
      from (select array_position($1::uuid[], q.delivery_id) as i, array_position(g.ids, q.endpoint_id) as n, g.versions, g.holds
          from gate g) a,
        lateral (select ($7::double precision[])[a.i] as ms, (a.versions[a.n] = ($6::integer[])[a.i]) is true as timely) t,
        lateral (select case when not t.timely or q.cancel_requested then null
            when t.ms is not null then 'slot' when a.holds[a.n] then 'parked' end as kind) k,
        lateral (select k.kind as waiting, k.kind is not null or q.cancel_requested as counts,
          case k.kind when 'slot' then now() + t.ms * interval '1 ms' when 'parked' then 'infinity' else now() end as due_at) w
    ),
    announced_at = null, lease_expires_at = null, claim_token = null, claimed_by = null, reclaims = 0, lane = 1
  where q.delivery_id = any($1::uuid[]) and q.claim_token = ($2::uuid[])[array_position($1::uuid[], q.delivery_id)]
  returning q.delivery_id, q.seq, q.attempts, q.generation, q.waiting is not null or q.cancel_requested as counts,
    case when q.waiting = 'slot' then q.due_at end as next_at, array_position($1::uuid[], q.delivery_id) as i
),
logged as (
  insert into relay.delivery_attempts (delivery_id, seq, attempt, generation, class, reason, claimed_by, next_attempt_at)
  select delivery_id, seq, attempts, generation, 'deferred', ($4::text[])[i], $8, next_at
  from deferred where counts and not ($5::boolean[])[i]
)
${LOST} deferred)) as lost`;

/**
 * Gives claimed deliveries back to wait: each in its own slot, or parked for as long as its endpoint is disabled or paused without end. What was
 * judged by an endpoint that has changed since is due now instead, to be judged again. An id must stand once in a batch. Returns the ids
 * that were written; the others had lost their lease. Throws like `finish`.
 */
export async function defer(
  pool: Pool,
  batch: readonly Deferral[],
  options: SettleOptions,
): Promise<Set<string>> {
  const { rows } = await pool.query<{ lost: string[] }>({
    name: 'relay_defer',
    text: DEFER,
    values: [
      plainArray(batch.map((item) => item.deliveryId)),
      plainArray(batch.map((item) => item.token)),
      plainArray([...new Set(batch.map((item) => item.endpointId))]),
      plainArray(batch.map((item) => item.reason)),
      plainArray(batch.map((item) => item.repeated)),
      plainArray(batch.map((item) => item.slotVersion)),
      plainArray(batch.map((item) => (item.wait === 'parked' ? null : Math.max(0, item.wait)))),
      options.processNumber,
    ],
  });
  return written(batch, rows[0]?.lost);
}
