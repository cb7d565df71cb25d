import { type RawBuilder, sql } from 'kysely';
import type { Database } from './database.ts';
import { idRange, SEARCH_ROWS, type SearchPage, type SearchRange, searchPage } from './search-page.ts';
import { typeMatches } from './type-filter.ts';

/** An event as people see it: without its payload. */
export interface Event {
  id: string;
  type: string;
  contentType: string;
  payloadBytes: number;
  /** How many endpoints it went to, or will; null for an event of before this was counted. */
  matched: number | null;
  deliverAt: Date | null;
  expiresAt: Date | null;
  createdAt: Date;
}

// The size is known without reading the payload itself.
const SHOWN = sql`
  e.id, e.type, e.content_type as "contentType", octet_length(e.payload) as "payloadBytes", e.matched,
  e.deliver_at as "deliverAt", e.expires_at as "expiresAt", e.created_at as "createdAt"`;

const oneEvent = (id: RawBuilder<unknown>) => sql`select ${SHOWN} from relay.events e where e.id = ${id}`;

export async function findEvent(db: Database, tenantId: string, id: string): Promise<Event | null> {
  const { rows } = await sql<Event>`${oneEvent(sql`${id}`)} and e.tenant_id = ${tenantId}`.execute(db);
  return rows[0] ?? null;
}

/** The bytes of an event as they were posted. */
export interface Payload {
  contentType: string;
  payload: Buffer;
}

export async function findPayload(db: Database, tenantId: string, id: string): Promise<Payload | null> {
  const row = await db
    .selectFrom('events')
    .select(['content_type as contentType', 'payload'])
    .where('id', '=', id)
    .where('tenant_id', '=', tenantId)
    .executeTakeFirst();
  return row ?? null;
}

export interface EventSearch extends SearchRange {
  /** A pattern over their types; null or absent does not narrow. */
  type?: string | null | undefined;
  /** Only events that matched nothing. */
  unmatched?: boolean | undefined;
  limit: number;
}

/** A tenant's events, newest first. */
export function searchEvents(
  db: Database,
  tenantId: string,
  search: EventSearch,
): Promise<SearchPage<Event>> {
  const [first, before] = idRange(search);
  // The tenant is compared together with the id, and stands in the order: see the walk of an endpoint's deliveries.
  const rows = sql`
    select e.id, e.id as place, e.tenant_id, e.type
    from relay.events e
    where (e.tenant_id, e.id) >= (${tenantId}::uuid, ${first}::uuid) and (e.tenant_id, e.id) < (${tenantId}::uuid, ${before}::uuid)
      and ${search.unmatched ? sql`e.matched = 0` : sql`true`}
    order by e.tenant_id desc, e.id desc
    limit ${SEARCH_ROWS}`;
  return searchPage(db, {
    walk: { rows, order: sql`w.tenant_id desc, w.id desc` },
    filter: typeMatches(sql.ref('w.type'), search.type),
    shown: oneEvent(sql.ref('h.id')),
    limit: search.limit,
  });
}
