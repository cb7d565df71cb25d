import { type RawBuilder, sql } from 'kysely';
import type { DeadReason, OutcomeClass } from '../domain/vocabulary.ts';
import type { Database } from './database.ts';

export interface DeadLetter {
  deliveryId: string;
  endpointId: string;
  eventId: string;
  eventType: string;
  url: string | null;
  attempts: number;
  generation: number;
  reason: DeadReason;
  lastClass: OutcomeClass | null;
  lastHttpStatus: number | null;
  lastError: string | null;
  createdAt: Date;
  diedAt: Date;
}

/** Which dead letters; what is null or absent does not narrow. `from` is included, `to` is not. */
export interface DeadLetterFilter {
  endpointId?: string | null | undefined;
  reason?: DeadReason | null | undefined;
  eventType?: string | null | undefined;
  from?: Date | null | undefined;
  to?: Date | null | undefined;
}

/** A place in the list. The moment is the database's own text, because a Date would cut off its microseconds. */
export interface DeadLetterCursor {
  diedAt: string;
  deliveryId: string;
}

export interface DeadLetterPage {
  letters: DeadLetter[];
  /** Null at the end. A page with filters may be short, or empty, and still have a next. */
  next: DeadLetterCursor | null;
}

/** How far one page looks for letters that pass the filters which no index answers. */
export const DEAD_LETTER_SCAN_ROWS = 10_000;

const NO_ID = '00000000-0000-0000-0000-000000000000';

interface Row extends DeadLetter {
  diedAtText: string;
}

interface ScanRow {
  boundary_died_at: string | null;
  boundary_id: string | null;
}

/** A tenant's dead letters, newest first, before the cursor. */
export async function listDeadLetters(
  db: Database,
  tenantId: string,
  options: { filter: DeadLetterFilter; before: DeadLetterCursor | null; limit: number },
): Promise<DeadLetterPage> {
  const { rows } = await deadLettersQuery(tenantId, options).execute(db);
  const found = rows.filter((row) => row.deliveryId !== null) as (Row & ScanRow)[];
  const page = found.slice(0, options.limit);
  const letters = page.map(
    ({ diedAtText: _text, boundary_died_at: _diedAt, boundary_id: _id, ...letter }) => letter,
  );
  const last = page.at(-1);
  if (last && found.length > options.limit) {
    return { letters, next: { diedAt: last.diedAtText, deliveryId: last.deliveryId } };
  }
  const [first] = rows;
  return {
    letters,
    next: first?.boundary_id ? { diedAt: first.boundary_died_at!, deliveryId: first.boundary_id } : null,
  };
}

/** Exported for the test that reads its plan. */
export function deadLettersQuery(
  tenantId: string,
  options: { filter: DeadLetterFilter; before: DeadLetterCursor | null; limit: number },
) {
  const { filter } = options;
  const range = sql`${scope(tenantId, filter)}
    and (l.died_at, l.delivery_id) < (${options.before?.diedAt ?? 'infinity'}::timestamptz, ${options.before?.deliveryId ?? NO_ID}::uuid)`;
  return sql<ScanRow & (Row | { deliveryId: null })>`
    select b.died_at::text as boundary_died_at, b.delivery_id as boundary_id, p.*
    from (select 1) one
    left join lateral (
      select l.died_at, l.delivery_id from relay.dead_letters l
      where ${isNarrowed(filter)} and ${range}
      order by l.died_at desc, l.delivery_id desc
      offset ${DEAD_LETTER_SCAN_ROWS - 1} limit 1
    ) b on true
    left join lateral (
      select l.delivery_id as "deliveryId", l.endpoint_id as "endpointId", l.event_id as "eventId",
        coalesce(e.type, '') as "eventType", n.url, coalesce(d.attempts, 0) as attempts, coalesce(d.generation, 1) as generation,
        l.reason, l.last_class as "lastClass", l.last_http_status as "lastHttpStatus", l.last_error as "lastError",
        coalesce(d.created_at, l.died_at) as "createdAt", l.died_at as "diedAt", l.died_at::text as "diedAtText"
      from relay.dead_letters l
      left join relay.events e on e.id = l.event_id
      left join relay.deliveries d on d.id = l.delivery_id
      left join relay.endpoints n on n.id = l.endpoint_id
      where ${range}
        and (l.died_at, l.delivery_id) >= (coalesce(b.died_at, '-infinity'), coalesce(b.delivery_id, ${NO_ID}::uuid))
        ${narrowed(filter)}
      order by l.died_at desc, l.delivery_id desc
      limit ${options.limit + 1}
    ) p on true`;
}

/**
 * The deliveries of dead letters that pass a filter, oldest first: what a bulk replay takes.
 */
export async function selectDeadLetters(
  db: Database,
  tenantId: string,
  options: { filter: DeadLetterFilter; limit: number },
): Promise<string[]> {
  const { rows } = await sql<{ delivery_id: string }>`
    select l.delivery_id
    from relay.dead_letters l
    left join relay.events e on e.id = l.event_id
    where ${scope(tenantId, options.filter)} ${narrowed(options.filter)}
    order by l.died_at, l.delivery_id
    limit ${options.limit}`.execute(db);
  return rows.map((row) => row.delivery_id);
}

/** What the indexes answer: by endpoint when one is named, by tenant otherwise, within a range of time. */
function scope(tenantId: string, filter: DeadLetterFilter): RawBuilder<unknown> {
  // An endpoint's own letters are found by its own index: `is true` keeps the tenant's from being chosen in its stead.
  const conditions = filter.endpointId
    ? [sql`l.endpoint_id = ${filter.endpointId} and (l.tenant_id = ${tenantId}) is true`]
    : [sql`l.tenant_id = ${tenantId}`];
  if (filter.from) conditions.push(sql`l.died_at >= ${filter.from}`);
  if (filter.to) conditions.push(sql`l.died_at < ${filter.to}`);
  return sql.join(conditions, sql` and `);
}

/** A page that no filter can empty needs no boundary: it is found within its own limit. */
function isNarrowed(filter: DeadLetterFilter): RawBuilder<unknown> {
  return filter.reason || filter.eventType ? sql`true` : sql`false`;
}

function narrowed(filter: DeadLetterFilter): RawBuilder<unknown> {
  const conditions: RawBuilder<unknown>[] = [];
  if (filter.reason) conditions.push(sql`and l.reason = ${filter.reason}`);
  if (filter.eventType) conditions.push(sql`and e.type = ${filter.eventType}`);
  return conditions.length === 0 ? sql`` : sql.join(conditions, sql` `);
}
