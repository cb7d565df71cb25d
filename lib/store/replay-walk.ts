import { type RawBuilder, sql } from 'kysely';
import type { DeadReason, FinishedStatus } from '../domain/vocabulary.ts';
import type { Connection } from './database.ts';
import { eventIdOf } from './event-ids.ts';
import { firstIdAt } from './search-page.ts';
import { typeMatches } from './type-filter.ts';

/** Which deliveries a replay job selects; what is null does not narrow. */
export interface ReplayFilter {
  status: FinishedStatus;
  endpointId: string | null;
  /** A pattern over the types of their events. */
  eventType: string | null;
  /** Only with the status `dead`. */
  reason: DeadReason | null;
  /** Dead ones by when they died, others by when their events were accepted; `from` is included, `to` is not. */
  from: Date | null;
  to: Date | null;
}

export interface ReplaySelection extends ReplayFilter {
  tenantId: string;
  /** What ended later is not selected; as the database prints it, to the microsecond. */
  endedBy: string;
}

/** Where a walk stands: after this place in its order. `at` is null where the ids are the order. */
export interface WalkPlace {
  at: string | null;
  id: string;
}

export interface WalkPage {
  /** How many of the rows that were looked at pass the filter. */
  matched: number;
  /** The first of these, in the order of the walk. */
  ids: string[];
  /** After the last of `ids` when there are as many as were asked for, else after the last row that was looked at. */
  next: WalkPlace;
  more: boolean;
}

const FIRST_ID = '00000000-0000-0000-0000-000000000000';

export function startOfWalk({ status, from }: ReplayFilter): WalkPlace {
  return status === 'dead'
    ? { at: from && from.getTime() > 0 ? from.toISOString() : '-infinity', id: FIRST_ID }
    : { at: null, id: from ? firstIdAt(from) : FIRST_ID };
}

interface Row {
  walked: number;
  matched: number;
  lastAt: string | null;
  lastId: string | null;
  ids: string[];
  takenAt: string | null;
}

/**
 * The next deliveries of a selection, oldest first: looks at up to `look` rows after a place and returns up to `take` of those that pass. Runs best on
 * connections whose planner is held to its indexes.
 */
export async function walkOn(
  db: Connection,
  selection: ReplaySelection,
  options: { after: WalkPlace; look: number; take: number },
): Promise<WalkPage> {
  const { rows } = await walkQuery(selection, options).execute(db);
  const { walked, matched, lastAt, lastId, ids, takenAt } = rows[0]!;
  // Full of what passes: the rest of what was looked at is looked at again.
  if (options.take > 0 && ids.length === options.take) {
    return { matched, ids, next: { at: takenAt, id: ids.at(-1)! }, more: true };
  }
  const next = lastId === null ? options.after : { at: lastAt, id: lastId };
  return { matched, ids, next, more: walked === options.look };
}

export function walkQuery(
  selection: ReplaySelection,
  { after, look, take }: { after: WalkPlace; look: number; take: number },
) {
  return sql<Row>`
    with walked as materialized (
      select w.id, w.at, ${passes(selection)} as passes
      from (${walkRows(selection, after, look)}) w
    ),
    taken as materialized (
      select id, at from walked where passes order by at, id limit ${take}
    ),
    last as (
      select id, at from walked order by at desc, id desc limit 1
    )
    select
      (select count(*)::integer from walked) as walked,
      (select count(*)::integer from walked where passes) as matched,
      (select at::text from last) as "lastAt",
      (select id from last) as "lastId",
      array(select id from taken order by at, id) as ids,
      (select at::text from taken order by at desc, id desc limit 1) as "takenAt"`;
}

// The bounds are rows that begin with the first column of the index: under an equality the planner may think another index just as
// good for the order, and under a range of one it reads the index from its beginning to find the place.
function walkRows(selection: ReplaySelection, after: WalkPlace, look: number): RawBuilder<unknown> {
  if (selection.status === 'dead') return deadRows(selection, after, look);
  const before = firstIdAt(lastMoment(selection));
  return selection.endpointId === null
    ? succeededRows(selection, { after: after.id, before }, look)
    : endpointRows(selection.endpointId, { after: after.id, before }, look);
}

/** Ids are made up to a millisecond before the statement that accepts has ended. */
function lastMoment({ endedBy, to }: ReplaySelection): Date {
  const ended = new Date(new Date(endedBy).getTime() + 1_000);
  return to !== null && to < ended ? to : ended;
}

function deadRows(selection: ReplaySelection, { at, id }: WalkPlace, look: number): RawBuilder<unknown> {
  const { endpointId, tenantId, endedBy, to } = selection;
  const [owner, value] =
    endpointId === null ? [sql`l.tenant_id`, tenantId] : [sql`l.endpoint_id`, endpointId];
  return sql`
    select l.delivery_id as id, l.died_at as at, l.tenant_id, l.event_id, l.reason
    from relay.dead_letters l
    where (${owner}, l.died_at, l.delivery_id) > (${value}::uuid, ${at}::timestamptz, ${id}::uuid)
      and (${owner}, l.died_at) <= (${value}::uuid, ${endedBy}::timestamptz)
      and (${owner}, l.died_at) < (${value}::uuid, coalesce(${to}::timestamptz, 'infinity'))
    order by ${owner}, l.died_at, l.delivery_id
    limit ${look}`;
}

interface IdRange {
  after: string;
  before: string;
}

function endpointRows(endpointId: string, { after, before }: IdRange, look: number): RawBuilder<unknown> {
  return sql`
    select d.id, null::timestamptz as at, d.tenant_id, d.event_id, d.status, d.finished_at
    from relay.deliveries d
    where (d.endpoint_id, d.id) > (${endpointId}::uuid, ${after}::uuid)
      and (d.endpoint_id, d.id) < (${endpointId}::uuid, ${before}::uuid)
    order by d.endpoint_id, d.id
    limit ${look}`;
}

// Through the tenant's events, each with the range of its deliveries. An event without any is a row too, at the end of its range, so that a
// step is as bounded among events that match nothing. The range is one of rows, because a plain one can also be had by skipping through the
// index of the endpoints' deliveries, which is dearer by as many times as there are endpoints; no planner knows how few ids lie in it.
function succeededRows(
  selection: ReplaySelection,
  { after, before }: IdRange,
  look: number,
): RawBuilder<unknown> {
  const { tenantId, eventType } = selection;
  const first = after.endsWith('ffff') ? after : eventIdOf(after);
  return sql`
    select coalesce(d.id, e.last) as id, null::timestamptz as at, e.tenant_id, e.id as event_id, d.status, d.finished_at
    from (
      select e.tenant_id, e.id, e.type, (left(e.id::text, 32) || 'ffff')::uuid as last
      from relay.events e
      where (e.tenant_id, e.id) >= (${tenantId}::uuid, ${first}::uuid)
        and (e.tenant_id, e.id) < (${tenantId}::uuid, ${before}::uuid)
      order by e.tenant_id, e.id
      limit ${look}
    ) e
    left join lateral (
      select d.id, d.status, d.finished_at
      from relay.deliveries d
      where ${typeMatches(sql.ref('e.type'), eventType)} and (d.id, d.event_id) > (greatest(e.id, ${after}::uuid), e.last) and (d.id, d.event_id) <= (e.last, e.last)
      order by d.id
      limit ${look}
    ) d on true
    order by e.tenant_id, e.id, d.id
    limit ${look}`;
}

/** A condition on a row `w` of the walk. A type is looked up only for what passes otherwise. */
function passes(selection: ReplaySelection): RawBuilder<unknown> {
  const { status, tenantId, endpointId, reason, eventType, endedBy } = selection;
  const conditions: RawBuilder<unknown>[] = [sql`w.tenant_id = ${tenantId}`];
  if (status !== 'dead')
    conditions.push(sql`w.status = ${status} and w.finished_at <= ${endedBy}::timestamptz`);
  if (reason !== null) conditions.push(sql`w.reason = ${reason}`);
  const cheap = sql.join(conditions, sql` and `);
  // The walk through the events has looked at their types already.
  if (eventType === null || (status !== 'dead' && endpointId === null)) return sql`coalesce(${cheap}, false)`;
  const type = sql`(select e.type from relay.events e where e.id = w.event_id)`;
  return sql`coalesce(case when ${cheap} then ${typeMatches(type, eventType)} else false end, false)`;
}
