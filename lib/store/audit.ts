import { type RawBuilder, sql } from 'kysely';
import type { AuditActor } from '../domain/vocabulary.ts';
import type { Connection, Database } from './database.ts';
import { newId } from './new-id.ts';

/** One change, as it is written down in the transaction that makes it. */
export interface NewAuditEntry {
  /** Null for what belongs to no tenant. */
  tenantId: string | null;
  actor: AuditActor;
  /** The id of the key or token; null for `admin`. */
  actorId: string | null;
  action: string;
  resource: string;
  resourceId: string | null;
  /** What was asked for. Without any secret: whoever calls has seen to that. */
  changes: Record<string, unknown>;
  requestId: string;
}

export interface AuditEntry extends NewAuditEntry {
  id: string;
  at: Date;
}

/** Which entries; what is absent does not narrow. `from` is included, `to` is not. */
export interface AuditFilter {
  action?: string | undefined;
  resourceId?: string | undefined;
  /** The id of a key or token, or `admin`. */
  actor?: string | undefined;
  from?: Date | undefined;
  to?: Date | undefined;
}

/** A place in the list. The moment is the database's own text, because a Date would cut off its microseconds. */
export interface AuditCursor {
  at: string;
  id: string;
}

export interface AuditPage {
  entries: AuditEntry[];
  /** Null at the end. A page with filters may be short, or empty, and still have a next. */
  next: AuditCursor | null;
}

/** How far one page looks for entries that pass the filters which no index answers. */
export const AUDIT_SCAN_ROWS = 10_000;

export async function recordAudit(db: Connection, entry: NewAuditEntry): Promise<void> {
  await db
    .insertInto('audit_log')
    .values({
      id: newId(),
      tenant_id: entry.tenantId,
      actor: entry.actor,
      actor_id: entry.actorId,
      action: entry.action,
      resource: entry.resource,
      resource_id: entry.resourceId,
      changes: JSON.stringify(entry.changes),
      request_id: entry.requestId,
    })
    .execute();
}

const NO_ID = '00000000-0000-0000-0000-000000000000';

type Found = AuditEntry & { atText: string };
type Row = { boundaryAt: string | null; boundaryId: string | null } & (Found | { id: null });

/** The log, newest first, before the cursor: a tenant's, or with `tenantId` null everybody's. */
export async function listAudit(
  db: Database,
  tenantId: string | null,
  options: { filter: AuditFilter; before: AuditCursor | null; limit: number },
): Promise<AuditPage> {
  const { rows } = await auditQuery(tenantId, options).execute(db);
  const found = rows.filter((row): row is Row & Found => row.id !== null);
  const entries = found
    .slice(0, options.limit)
    .map(({ atText: _text, boundaryAt: _at, boundaryId: _id, ...entry }) => entry);
  const last = found[options.limit - 1];
  if (last && found.length > options.limit) return { entries, next: { at: last.atText, id: last.id } };
  const [first] = rows;
  return { entries, next: first?.boundaryId ? { at: first.boundaryAt!, id: first.boundaryId } : null };
}

/** Exported for the test that reads its plan. */
export function auditQuery(
  tenantId: string | null,
  options: { filter: AuditFilter; before: AuditCursor | null; limit: number },
) {
  const { filter } = options;
  const range = sql`${scope(tenantId, filter)}
    and (l.at, l.id) < (${options.before?.at ?? 'infinity'}::timestamptz, ${options.before?.id ?? NO_ID}::uuid)`;
  return sql<Row>`
    select b.at::text as "boundaryAt", b.id as "boundaryId", p.*
    from (select 1) one
    left join lateral (
      select l.at, l.id from relay.audit_log l
      where ${isNarrowed(filter)} and ${range}
      order by l.at desc, l.id desc
      offset ${AUDIT_SCAN_ROWS - 1} limit 1
    ) b on true
    left join lateral (
      select l.id, l.tenant_id as "tenantId", l.at, l.actor, l.actor_id as "actorId", l.action, l.resource,
        l.resource_id as "resourceId", l.changes, l.request_id as "requestId", l.at::text as "atText"
      from relay.audit_log l
      where ${range}
        and (l.at, l.id) >= (coalesce(b.at, '-infinity'), coalesce(b.id, ${NO_ID}::uuid))
        ${narrowed(filter)}
      order by l.at desc, l.id desc
      limit ${options.limit + 1}
    ) p on true`;
}

/** What the indexes answer: by resource when one is named, by tenant otherwise, within a range of time. */
function scope(tenantId: string | null, filter: AuditFilter): RawBuilder<unknown> {
  const conditions: RawBuilder<unknown>[] = [];
  if (filter.resourceId !== undefined) {
    conditions.push(sql`l.resource_id = ${filter.resourceId}`);
    // `is true` keeps the tenant's index from being chosen in the stead of the resource's, which is far shorter.
    if (tenantId !== null) conditions.push(sql`(l.tenant_id = ${tenantId}) is true`);
  } else {
    conditions.push(tenantId === null ? sql`true` : sql`l.tenant_id = ${tenantId}`);
  }
  if (filter.from) conditions.push(sql`l.at >= ${filter.from}`);
  if (filter.to) conditions.push(sql`l.at < ${filter.to}`);
  return sql.join(conditions, sql` and `);
}

/** A page that no filter can empty needs no boundary: it is found within its own limit. */
function isNarrowed(filter: AuditFilter): RawBuilder<unknown> {
  return filter.action !== undefined || filter.actor !== undefined ? sql`true` : sql`false`;
}

function narrowed(filter: AuditFilter): RawBuilder<unknown> {
  const conditions: RawBuilder<unknown>[] = [];
  if (filter.action !== undefined) conditions.push(sql`and l.action = ${filter.action}`);
  if (filter.actor === 'admin') conditions.push(sql`and l.actor = 'admin'`);
  else if (filter.actor !== undefined) conditions.push(sql`and l.actor_id = ${filter.actor}::uuid`);
  return conditions.length === 0 ? sql`` : sql.join(conditions, sql` `);
}
