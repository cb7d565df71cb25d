import { type RawBuilder, sql } from 'kysely';
import {
  type DeadReason,
  type DeferralReason,
  type OutcomeClass,
  SHOWN_STATUSES,
  type ShownStatus,
} from '../domain/vocabulary.ts';
import { plainArray } from './array-literal.ts';
import type { Database } from './database.ts';
import { lastDeliveryId } from './event-ids.ts';

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
  const { rows } = await sql<Delivery>`${oneDelivery(sql`${id}`)} and v.tenant_id = ${tenantId}`.execute(db);
  return rows[0] ?? null;
}

/** Selects one delivery by its id, with what the queue and its event know of it. */
export function oneDelivery(id: RawBuilder<unknown>): RawBuilder<unknown> {
  return sql`
    select ${SHOWN}
    from relay.delivery_view v
    left join relay.events e on e.id = v.event_id
    where v.id = ${id}`;
}

/** The deliveries of an event; where it says so, only those to some endpoints. */
export interface DeliveriesOfEvent {
  eventId: string;
  endpointIds?: readonly string[] | null;
}

// Their ids are the event's with a number in the last digits, so they are one range.
function ofEvent({ eventId, endpointIds }: DeliveriesOfEvent): RawBuilder<unknown> {
  return sql`
    d.id > ${eventId} and d.id <= ${lastDeliveryId(eventId)} and d.event_id = ${eventId}
      and ${endpointIds ? sql`d.endpoint_id = any(${plainArray(endpointIds)}::uuid[])` : sql`true`}`;
}

/** An event's deliveries in the order of their numbers. */
export async function listEventDeliveries(
  db: Database,
  of: DeliveriesOfEvent,
  page: { after: string | null; limit: number },
): Promise<Delivery[]> {
  // One look-up each, by limit: joined, a queue that was empty when the planner looked at it is read whole.
  const { rows } = await sql<Delivery>`
    select s.*
    from (
      select d.id from relay.deliveries d
      where ${ofEvent(of)} and d.id > ${page.after ?? of.eventId}
      order by d.id
      limit ${page.limit}
    ) h
    cross join lateral (${oneDelivery(sql.ref('h.id'))} limit 1) s
    order by s.id`.execute(db);
  return rows;
}

/**
 * The status that people are shown of a row with the columns `id` and `status` of a delivery. Only a pending one is looked for in the queue,
 * and by its key.
 */
export function shownStatus(row: string): RawBuilder<unknown> {
  const [id, status] = [sql.ref(`${row}.id`), sql.ref(`${row}.status`)];
  return sql`
    relay.shown_status(${status}, case when ${status} = 'pending' then (
      select q.lease_expires_at from relay.queue q where q.delivery_id = ${id}) end)`;
}

/** One count for each status of the rows of an aggregate that have a column `status`. */
export const COUNTS_BY_STATUS = sql.join(
  SHOWN_STATUSES.map(
    (status) => sql`count(*) filter (where status = ${sql.lit(status)})::integer as ${sql.ref(status)}`,
  ),
);

export type StatusCounts = Record<ShownStatus, number>;

/** Counting goes no further than this: an event may have 65,535 deliveries. */
export const COUNTED_DELIVERIES = 10_000;

/** How many of an event's deliveries there are of each status, and whether there are more than were counted. */
export async function countEventDeliveries(
  db: Database,
  of: DeliveriesOfEvent,
): Promise<{ counts: StatusCounts; capped: boolean }> {
  const { rows } = await sql<StatusCounts & { capped: boolean }>`
    select ${COUNTS_BY_STATUS}, count(*) > ${COUNTED_DELIVERIES} as capped
    from (
      select case when row_number() over (order by d.id) <= ${COUNTED_DELIVERIES} then ${shownStatus('d')} end as status
      from relay.deliveries d
      where ${ofEvent(of)}
      order by d.id
      limit ${COUNTED_DELIVERIES + 1}
    ) s`.execute(db);
  const { capped, ...counts } = rows[0]!;
  return { counts, capped };
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
