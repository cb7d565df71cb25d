import { sql } from 'kysely';
import type { EndpointJobKind } from '../domain/vocabulary.ts';
import { plainArray } from './array-literal.ts';
import type { Connection } from './database.ts';
import type { Queryable } from './pool.ts';

/** Work over everything that waits for one endpoint, done in steps. */
export interface EndpointJob {
  endpointId: string;
  kind: EndpointJobKind;
  /** Rises whenever the job is asked for again. */
  round: number;
  /** How far a cancel job has walked. */
  afterDelivery: string | null;
}

/**
 * Asks for a job over what waits for an endpoint, in the transaction that makes it necessary. Asked for again while it runs, it starts over:
 * its round rises, so the step that would have ended it does not.
 */
export async function requestJob(trx: Connection, endpointId: string, kind: EndpointJobKind): Promise<void> {
  await trx
    .insertInto('endpoint_jobs')
    .values({ endpoint_id: endpointId, kind })
    .onConflict((conflict) =>
      conflict.columns(['endpoint_id', 'kind']).doUpdateSet({
        round: sql`endpoint_jobs.round + 1`,
        after_delivery: null,
      }),
    )
    .execute();
}

const FIRST_ID = '00000000-0000-0000-0000-000000000000';

const LIST = `
select endpoint_id as "endpointId", kind, round, after_delivery as "afterDelivery"
from relay.endpoint_jobs
where (endpoint_id, kind) > ($1::uuid, $2::text)
order by endpoint_id, kind
limit $3`;

/** The jobs that come after one of them, in an order that is always the same; from the first when `after` is null. */
export async function listJobs(
  client: Queryable,
  { after, limit }: { after: Pick<EndpointJob, 'endpointId' | 'kind'> | null; limit: number },
): Promise<EndpointJob[]> {
  const { rows } = await client.query<EndpointJob>({
    name: 'relay_jobs',
    text: LIST,
    values: [after?.endpointId ?? FIRST_ID, after?.kind ?? '', limit],
  });
  return rows;
}

const FINISH_JOB = 'delete from relay.endpoint_jobs where endpoint_id = $1 and kind = $2 and round = $3';

/** Ends a job; false when it was asked for again since it was listed, or somebody else has ended it. */
export async function finishJob(client: Queryable, job: EndpointJob): Promise<boolean> {
  const { rowCount } = await client.query({
    name: 'relay_finish_job',
    text: FINISH_JOB,
    values: [job.endpointId, job.kind, job.round],
  });
  return rowCount === 1;
}

/** Deliveries of one endpoint that wait in slots of an older version, or parked, with the pace at which they may go now. */
export interface Retimable {
  slotVersion: number;
  ratePerSecond: number;
  burst: number;
  /** The rest of a pause or of a cooldown, ms; 0 without one. */
  restMs: number;
  /** In the order in which they should go: what is parked came due long ago. */
  ids: string[];
}

/** Parked rows have no moment to be ordered by; so many of them are put in the order of their acceptance. */
const PARKED_WINDOW = 10_000;

const RETIMABLE = 'waiting is not null and lease_expires_at is null and not cancel_requested';

/**
 * What comes due while it is timed anew is claimed meanwhile, and the slot that was meant for it stays empty: after a rate is lowered to a tenth, each second's
 * worth at the head would leave ten seconds in which nothing goes. So it comes last among its like, when most of it has gone.
 */
const NEAR = "now() + interval '1 second'";

// Newest version first: those rows stood at the head when the version before was timed anew. Only a read: whatever somebody else is about to
// change still looks as it did, so an answer without ids means that there are none.
const PICK = `
with endpoint as materialized (
  select slot_version, rate_per_second, burst,
    coalesce(greatest(0, date_part('epoch', paused_until - now()), date_part('epoch', breaker_until - now())) * 1000, 0) as rest_ms
  from relay.endpoints
  where id = $1 and enabled and deleted_at is null and (paused_until = 'infinity') is not true
),
newest as materialized (
  select slot_version from relay.queue
  where endpoint_id = $1 and slot_version < (select slot_version from endpoint) and ${RETIMABLE}
  order by slot_version desc
  limit 1
),
parked as (
  select delivery_id from (
    select delivery_id from relay.queue
    where endpoint_id = $1 and slot_version = (select slot_version from newest) and due_at = 'infinity' and ${RETIMABLE}
    limit ${PARKED_WINDOW}
  ) w
  order by delivery_id
  limit $2
),
slots as (
  select delivery_id, due_at from relay.queue
  where endpoint_id = $1 and slot_version = (select slot_version from newest) and due_at < 'infinity' and due_at >= ${NEAR}
    and ${RETIMABLE}
  order by due_at
  limit $2
),
near as (
  select delivery_id from relay.queue
  where endpoint_id = $1 and slot_version = (select slot_version from newest) and due_at < ${NEAR} and ${RETIMABLE}
  order by due_at
  limit $2
)
select e.slot_version as "slotVersion", e.rate_per_second as "ratePerSecond", e.burst, e.rest_ms as "restMs",
  array(
    select delivery_id
    from (
      select delivery_id, '-infinity'::timestamptz as due_at from parked
      union all select delivery_id, due_at from slots
      union all select delivery_id, 'infinity' from near
    ) u
    order by due_at, delivery_id
    limit $2
  ) as ids
from endpoint e`;

/**
 * Looks for what a re-time job has to do next. Null when nothing is to be timed: the endpoint is gone, or it is disabled or paused without end,
 * and then its deliveries park when their moment comes. Whatever ends that state asks for the job again.
 */
export async function pickRetimable(
  client: Queryable,
  endpointId: string,
  limit: number,
): Promise<Retimable | null> {
  const { rows } = await client.query<Retimable>({
    name: 'relay_pick_retimable',
    text: PICK,
    values: [endpointId, limit],
  });
  return rows[0] ?? null;
}

// What was claimed, cancelled or timed anew since it was picked is left alone, and so is what somebody holds: it is picked again.
const RETIME = `
with picked as materialized (
  select delivery_id from relay.queue
  where delivery_id = any($2::uuid[]) and endpoint_id = $1 and slot_version < $3 and ${RETIMABLE}
  order by delivery_id
  for update skip locked
)
update relay.queue q
set (due_at, look_at) = (
    select w.due_at, least(w.due_at, q.expires_at)
    from (select now() + ($4::double precision[])[array_position($2::uuid[], q.delivery_id)] * interval '1 ms' as due_at) w
  ),
  waiting = 'slot', slot_version = $3, announced_at = null, lane = 1
where q.delivery_id = any(array(select delivery_id from picked))`;

/** Gives deliveries new slots, `delaysMs` from now by position. Returns how many were written. */
export async function retime(
  client: Queryable,
  endpointId: string,
  slots: { slotVersion: number; ids: readonly string[]; delaysMs: readonly number[] },
): Promise<number> {
  const { rowCount } = await client.query({
    name: 'relay_retime',
    text: RETIME,
    values: [endpointId, plainArray(slots.ids), slots.slotVersion, plainArray(slots.delaysMs)],
  });
  return rowCount ?? 0;
}

// Most of an endpoint's deliveries have ended, and of those only the index is read. One that is accepted behind the walk is refused when it
// is claimed. Where the walk has come to is written with what it did.
const CANCEL = `
with walked as materialized (
  select id from relay.deliveries
  where endpoint_id = $1 and id > coalesce($2::uuid, '${FIRST_ID}')
  order by id
  limit $4
),
cancelled as (
  update relay.queue q
  set cancel_requested = true, look_at = now()
  where q.delivery_id = any(array(select id from walked)) and not q.cancel_requested
  returning q.delivery_id
),
moved as (
  update relay.endpoint_jobs
  set after_delivery = (select id from walked order by id desc limit 1)
  where endpoint_id = $1 and kind = 'cancel' and round = $3 and exists (select from walked)
)
select (select count(*)::integer from walked) as walked, (select count(*)::integer from cancelled) as cancelled`;

/**
 * One step of a cancel job: asks for the end of up to `limit` of the endpoint's deliveries, leased ones too, and remembers how far it came. The
 * walk is over when fewer than `limit` were walked.
 */
export async function cancelStep(
  client: Queryable,
  job: EndpointJob,
  limit: number,
): Promise<{ walked: number; cancelled: number }> {
  const { rows } = await client.query<{ walked: number; cancelled: number }>({
    name: 'relay_cancel_step',
    text: CANCEL,
    values: [job.endpointId, job.afterDelivery, job.round, limit],
  });
  return rows[0] ?? { walked: 0, cancelled: 0 };
}
