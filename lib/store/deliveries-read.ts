import { sql } from 'kysely';
import type { DeadReason, DeferralReason, OutcomeClass, ShownStatus } from '../domain/vocabulary.ts';
import type { Database } from './database.ts';

/** A delivery as people see it. */
export interface Delivery {
  id: string;
  eventId: string;
  endpointId: string;
  eventType: string;
  status: ShownStatus;
  /** Attempts spent of the budget since acceptance or the last replay. */
  attempts: number;
  /** Requests sent in all, never reset. */
  sends: number;
  generation: number;
  deadReason: DeadReason | null;
  deferralReason: DeferralReason | null;
  cancelRequested: boolean;
  lastClass: OutcomeClass | null;
  lastHttpStatus: number | null;
  /** Null when it is finished, or waits without a moment. */
  nextAttemptAt: Date | null;
  createdAt: Date;
  finishedAt: Date | null;
}

const SHOWN = sql`
  v.id, v.event_id as "eventId", v.endpoint_id as "endpointId", coalesce(e.type, '') as "eventType", v.status, v.attempts,
  v.sends, v.generation, v.dead_reason as "deadReason", v.deferral_reason as "deferralReason",
  coalesce(v.cancel_requested, false) as "cancelRequested", v.last_class as "lastClass",
  v.last_http_status as "lastHttpStatus", v.next_attempt_at as "nextAttemptAt", v.created_at as "createdAt",
  v.finished_at as "finishedAt"`;

export async function findDelivery(db: Database, tenantId: string, id: string): Promise<Delivery | null> {
  const { rows } = await sql<Delivery>`
    select ${SHOWN}
    from relay.delivery_view v
    left join relay.events e on e.id = v.event_id
    where v.id = ${id} and v.tenant_id = ${tenantId}`.execute(db);
  return rows[0] ?? null;
}

/** An event's deliveries in the order of their numbers. Their ids are the event's with a number in the last digits, so they are one range. */
export async function listEventDeliveries(
  db: Database,
  eventId: string,
  page: { after: string | null; limit: number },
): Promise<Delivery[]> {
  const { rows } = await sql<Delivery>`
    select ${SHOWN}
    from relay.delivery_view v
    left join relay.events e on e.id = v.event_id
    where v.id > ${page.after ?? eventId} and v.id <= ${`${eventId.slice(0, -4)}ffff`} and v.event_id = ${eventId}
    order by v.id
    limit ${page.limit}`.execute(db);
  return rows;
}

const NO_ID = '00000000-0000-0000-0000-000000000000';
const LAST_ID = 'ffffffff-ffff-ffff-ffff-ffffffffffff';

/**
 * How far one page looks for deliveries of a status. No index holds the status (ending a delivery would have to write it), so a
 * page of rare ones among millions is found in several bounded steps instead of one that has no end.
 */
export const HISTORY_SCAN_ROWS = 10_000;

export interface HistoryPage {
  deliveries: Delivery[];
  /** Where the next page begins; null at the end. A page with a status may be short, or empty, and still have a next. */
  next: string | null;
}

/** An endpoint's deliveries, newest first, before the id `before` (null: from the newest). */
export async function listEndpointDeliveries(
  db: Database,
  endpointId: string,
  options: { status: ShownStatus | null; before: string | null; limit: number },
): Promise<HistoryPage> {
  const before = options.before ?? LAST_ID;
  return options.status === null
    ? unfilteredPage(db, endpointId, before, options.limit)
    : filteredPage(db, endpointId, before, { status: options.status, limit: options.limit });
}

async function unfilteredPage(
  db: Database,
  endpointId: string,
  before: string,
  limit: number,
): Promise<HistoryPage> {
  const { rows } = await historyQuery(endpointId, before, limit + 1).execute(db);
  const deliveries = rows.slice(0, limit);
  return { deliveries, next: rows.length > limit ? deliveries.at(-1)!.id : null };
}

/**
 * Exported for the test that reads its plan. The endpoint stands in a range of one, and in the order: under an equality the planner
 * may think the primary key just as good for the order, and walk past everybody else's newer deliveries to find this endpoint's.
 */
export function historyQuery(endpointId: string, before: string, rows: number) {
  return sql<Delivery>`
    select ${SHOWN}
    from relay.delivery_view v
    left join relay.events e on e.id = v.event_id
    where v.endpoint_id between ${endpointId} and ${endpointId} and v.id < ${before}
    order by v.endpoint_id desc, v.id desc
    limit ${rows}`;
}

async function filteredPage(
  db: Database,
  endpointId: string,
  before: string,
  options: { status: ShownStatus; limit: number },
): Promise<HistoryPage> {
  const { rows } = await filteredHistoryQuery(endpointId, before, options).execute(db);
  const found = rows.filter((row) => row.id !== null) as Delivery[];
  const deliveries = found.slice(0, options.limit);
  if (found.length > options.limit) return { deliveries, next: deliveries.at(-1)!.id };
  return { deliveries, next: rows[0]?.boundary ?? null };
}

/**
 * One row for each delivery of the status down to the boundary, the last of the rows that one page may look at; a single row
 * without a delivery when there is none. Exported for the test that reads its plan.
 */
export function filteredHistoryQuery(
  endpointId: string,
  before: string,
  options: { status: ShownStatus; limit: number },
) {
  // `status` in the record is pending until the delivery ends, so the cheap half of the condition is asked of the record alone.
  const recorded = options.status === 'inflight' ? 'pending' : options.status;
  return sql<{ boundary: string | null } & (Delivery | { id: null })>`
    select b.boundary, p.*
    from (
      select (
        select d.id from relay.deliveries d
        where d.endpoint_id between ${endpointId} and ${endpointId} and d.id < ${before}
        order by d.endpoint_id desc, d.id desc
        offset ${HISTORY_SCAN_ROWS - 1} limit 1
      ) as boundary
    ) b
    left join lateral (
      select ${SHOWN}
      from (
        select d.id from relay.deliveries d
        left join relay.queue q on q.delivery_id = d.id
        where d.endpoint_id between ${endpointId} and ${endpointId} and d.id < ${before} and d.id >= coalesce(b.boundary, ${NO_ID})
          and d.status = ${recorded} and relay.shown_status(d.status, q.lease_expires_at) = ${options.status}
        order by d.endpoint_id desc, d.id desc
        limit ${options.limit + 1}
      ) hit
      join relay.delivery_view v on v.id = hit.id
      left join relay.events e on e.id = v.event_id
      order by v.id desc
    ) p on true`;
}

/** One row of a delivery's log. */
export interface Attempt {
  seq: number;
  send: number | null;
  attempt: number;
  generation: number;
  class: OutcomeClass;
  reason: string | null;
  httpStatus: number | null;
  durationMs: number | null;
  latenessMs: number | null;
  error: string | null;
  responseSnippet: string | null;
  claimedBy: number | null;
  nextAttemptAt: Date | null;
  at: Date;
}

/** The newest `limit` rows of a delivery's log, in order, and whether older ones were left out. */
export async function listAttempts(
  db: Database,
  delivery: Pick<Delivery, 'id' | 'createdAt'>,
  limit: number,
): Promise<{ attempts: Attempt[]; truncated: boolean }> {
  const rows = await db
    .selectFrom('delivery_attempts')
    .select([
      'seq',
      'send',
      'attempt',
      'generation',
      'class',
      'reason',
      'http_status as httpStatus',
      'duration_ms as durationMs',
      'lateness_ms as latenessMs',
      'error',
      'response_snippet as responseSnippet',
      'claimed_by as claimedBy',
      sql<Date | null>`case when next_attempt_at < 'infinity' then next_attempt_at end`.as('nextAttemptAt'),
      'at',
    ])
    .where('delivery_id', '=', delivery.id)
    // Nothing was attempted before the delivery existed: older days' partitions need not be looked into.
    .where('at', '>=', delivery.createdAt)
    .orderBy('seq', 'desc')
    .limit(limit + 1)
    .execute();
  return { attempts: rows.slice(0, limit).reverse(), truncated: rows.length > limit };
}
