import { type RawBuilder, sql } from 'kysely';
import { OUTCOME_CLASSES, type OutcomeClass } from '../domain/vocabulary.ts';
import type { Database } from './database.ts';
import { COUNTS_BY_STATUS, type StatusCounts, shownStatus } from './deliveries-read.ts';

/** The middle and the slow end of something, ms; null without any. */
export interface Spread {
  p50: number | null;
  p95: number | null;
}

/** What became of the deliveries that were accepted in a window, and of their attempts. */
export interface DeliveryStats {
  /** Since when everything was looked at: the beginning of the window, or later when there was too much. */
  from: Date;
  to: Date;
  deliveries: StatusCounts;
  attempts: Record<OutcomeClass, number>;
  /** Of the sends: from the request to the end of the answer. */
  duration: Spread;
  /** Of the sends: from the due moment to the request. */
  lateness: Spread;
  /** Whether there may be more than was looked at: the numbers are then of the newest part. */
  truncated: boolean;
}

/** The newest deliveries of a window that are looked at, and the attempts of those. */
export const STATS_DELIVERIES = 50_000;
export const STATS_ATTEMPTS = 200_000;

/** Statistics of an endpoint. Whose endpoint it is has been asked before. Takes a second or two at its bounds. */
export function readEndpointStats(
  db: Database,
  endpointId: string,
  windowMs: number,
): Promise<DeliveryStats> {
  const source = sql`
    select d.id, d.status, d.created_at, d.finished_at
    from relay.deliveries d
    where (d.endpoint_id, d.id) >= (${endpointId}::uuid, ${firstIdWithin(windowMs)}) and d.endpoint_id <= ${endpointId}
    order by d.endpoint_id desc, d.id desc
    limit ${STATS_DELIVERIES}`;
  return readStats(db, windowMs, source);
}

/** Statistics of a tenant, through its events: an event's deliveries are a range of ids after its own (of rows: see the walk of a tenant's deliveries). One without any counts as looked at. */
export function readTenantStats(db: Database, tenantId: string, windowMs: number): Promise<DeliveryStats> {
  const source = sql`
    select d.id, d.status, coalesce(d.created_at, e.created_at) as created_at, d.finished_at
    from (
      select e.tenant_id, e.id, e.created_at, (left(e.id::text, 32) || 'ffff')::uuid as last
      from relay.events e
      where (e.tenant_id, e.id) >= (${tenantId}::uuid, ${firstIdWithin(windowMs)}) and e.tenant_id <= ${tenantId}
      order by e.tenant_id desc, e.id desc
      limit ${STATS_DELIVERIES}
    ) e
    left join lateral (
      select d.id, d.status, d.created_at, d.finished_at from relay.deliveries d
      where (d.id, d.event_id) > (e.id, e.last) and (d.id, d.event_id) <= (e.last, e.last)
      order by d.id desc
      limit ${STATS_DELIVERIES}
    ) d on true
    order by e.tenant_id desc, e.id desc, d.id desc
    limit ${STATS_DELIVERIES}`;
  return readStats(db, windowMs, source);
}

/** The least id of a window that ends now: ids begin with the milliseconds of the database's clock. */
function firstIdWithin(windowMs: number): RawBuilder<unknown> {
  return sql`
    (lpad(to_hex((extract(epoch from now()) * 1000)::bigint - ${windowMs}::bigint), 12, '0') || repeat('0', 20))::uuid`;
}

type Row = StatusCounts &
  Record<OutcomeClass, number> & {
    from: Date;
    to: Date;
    truncated: boolean;
    duration: [number, number] | null;
    lateness: [number, number] | null;
  };

// A delivery's attempts lie between its acceptance and its end, so few days' partitions are looked into for each.
async function readStats(
  db: Database,
  windowMs: number,
  source: RawBuilder<unknown>,
): Promise<DeliveryStats> {
  const { rows } = await sql<Row>`
    with looked as materialized (${source}),
    attempted as materialized (
      select a.class, a.duration_ms, a.lateness_ms
      from looked l
      cross join lateral (
        select a.class, a.duration_ms, a.lateness_ms from relay.delivery_attempts a
        where a.delivery_id = l.id and a.at >= l.created_at and a.at <= coalesce(l.finished_at, now())
      ) a
      limit ${STATS_ATTEMPTS}
    )
    select d.*, a.*, now() as to, d.reached or a.reached as truncated,
      case when d.reached then d.oldest else now() - ${windowMs}::double precision * interval '1 ms' end as from
    from (
      select ${COUNTS_BY_STATUS}, min(created_at) as oldest, count(*) = ${STATS_DELIVERIES} as reached
      from (select created_at, ${shownStatus('l')} as status from looked l) s
    ) d
    cross join (
      select ${COUNTS_BY_CLASS}, ${spreadOf('duration_ms')} as duration, ${spreadOf('lateness_ms')} as lateness,
        count(*) = ${STATS_ATTEMPTS} as reached
      from attempted
    ) a`.execute(db);
  return toStats(rows[0]!);
}

const COUNTS_BY_CLASS = sql.join(
  OUTCOME_CLASSES.map(
    (name) => sql`count(*) filter (where class = ${sql.lit(name)})::integer as ${sql.ref(name)}`,
  ),
);

function spreadOf(column: string): RawBuilder<unknown> {
  return sql`percentile_cont(array[0.5, 0.95]) within group (order by ${sql.ref(column)})`;
}

function toStats(row: Row): DeliveryStats {
  const { pending, inflight, succeeded, dead } = row;
  return {
    from: row.from,
    to: row.to,
    deliveries: { pending, inflight, succeeded, dead },
    attempts: Object.fromEntries(OUTCOME_CLASSES.map((name) => [name, row[name]])) as Record<
      OutcomeClass,
      number
    >,
    duration: toSpread(row.duration),
    lateness: toSpread(row.lateness),
    truncated: row.truncated,
  };
}

function toSpread(percentiles: [number, number] | null): Spread {
  const [p50, p95] = (percentiles ?? []).map(Math.round);
  return { p50: p50 ?? null, p95: p95 ?? null };
}
