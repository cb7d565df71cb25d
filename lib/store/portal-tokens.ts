import { randomBytes } from 'node:crypto';
import { sql } from 'kysely';
import type { PortalScope } from '../domain/vocabulary.ts';
import { hashApiKey } from './api-keys.ts';
import type { Connection, Database } from './database.ts';
import { newId } from './new-id.ts';
import type { Queryable } from './pool.ts';
import { holdTenant } from './tenants.ts';

/** Tells a portal token from an API key, for people, for secret scanners, and for whoever looks it up. */
export const PORTAL_PREFIX = 'rlp_';
const SHOWN_CHARACTERS = PORTAL_PREFIX.length + 6;

/** What is known of a token; the token itself is shown once, when it is made, and never stored. */
export interface PortalToken {
  id: string;
  tenantId: string;
  name: string;
  prefix: string;
  scopes: PortalScope[];
  /** Null: every endpoint of the tenant. */
  endpointIds: string[] | null;
  createdAt: Date;
  expiresAt: Date;
}

export interface NewPortalToken {
  tenantId: string;
  name: string;
  scopes: readonly PortalScope[];
  endpointIds: readonly string[] | null;
  /** Counted from now by the database's clock; a day at most. */
  livesMs: number;
  /** The key that makes it; null for the key of RELAY_ADMIN_KEY. */
  madeBy: string | null;
}

export type PortalTokenResult =
  | { kind: 'made'; token: string; portalToken: PortalToken }
  | { kind: 'no_tenant' }
  /** The tenant has no such endpoint. */
  | { kind: 'no_endpoint'; endpointId: string };

const SHOWN_COLUMNS = [
  'id',
  'tenant_id as tenantId',
  'name',
  'prefix',
  'scopes',
  'endpoint_ids as endpointIds',
  'created_at as createdAt',
  'expires_at as expiresAt',
] as const;

/** Makes a token and returns it with its only appearance in the clear. */
export async function createPortalToken(db: Database, options: NewPortalToken): Promise<PortalTokenResult> {
  const token = PORTAL_PREFIX + randomBytes(32).toString('base64url');
  const { tenantId, endpointIds } = options;
  return db.transaction().execute(async (trx): Promise<PortalTokenResult> => {
    if (!(await holdTenant(trx, tenantId))) return { kind: 'no_tenant' };
    const absent = endpointIds && (await firstAbsent(trx, tenantId, endpointIds));
    if (absent) return { kind: 'no_endpoint', endpointId: absent };
    await dropSomeEnded(trx, tenantId);
    const portalToken = await trx
      .insertInto('portal_tokens')
      .values({
        id: newId(),
        tenant_id: tenantId,
        name: options.name,
        prefix: token.slice(0, SHOWN_CHARACTERS),
        token_hash: Buffer.from(hashApiKey(token), 'base64'),
        scopes: [...options.scopes],
        endpoint_ids: endpointIds && [...endpointIds],
        made_by: options.madeBy,
        expires_at: sql<Date>`now() + ${options.livesMs}::float8 * interval '1 ms'`,
      })
      .returning(SHOWN_COLUMNS)
      .executeTakeFirstOrThrow();
    return { kind: 'made', token, portalToken };
  });
}

async function firstAbsent(
  trx: Connection,
  tenantId: string,
  ids: readonly string[],
): Promise<string | undefined> {
  const found = await trx
    .selectFrom('endpoints')
    .select('id')
    .where('id', 'in', [...ids])
    .where('tenant_id', '=', tenantId)
    .where('deleted_at', 'is', null)
    .execute();
  const known = new Set(found.map((row) => row.id));
  return ids.find((id) => !known.has(id));
}

const DROPPED_AT_ONCE = 10;

/** Each new token sweeps up a few that ended a week ago, so that they are never many and need no job. */
async function dropSomeEnded(trx: Connection, tenantId: string): Promise<void> {
  const ended = trx
    .selectFrom('portal_tokens')
    .select('id')
    .where('tenant_id', '=', tenantId)
    .where('expires_at', '<', sql<Date>`now() - interval '7 days'`)
    .orderBy('id')
    .limit(DROPPED_AT_ONCE)
    .forUpdate()
    .skipLocked();
  await trx.deleteFrom('portal_tokens').where('id', 'in', ended).execute();
}

/** A tenant's tokens that work, oldest first. */
export async function listPortalTokens(
  db: Database,
  tenantId: string,
  page: { after: string | null; limit: number },
): Promise<PortalToken[]> {
  const { after } = page;
  return db
    .selectFrom('portal_tokens')
    .select(SHOWN_COLUMNS)
    .where('tenant_id', '=', tenantId)
    .where('revoked_at', 'is', null)
    .where('expires_at', '>', sql<Date>`now()`)
    .$if(after !== null, (query) => query.where('id', '>', after!))
    .orderBy('id')
    .limit(page.limit)
    .execute();
}

/** Revokes a token; caches may honour it for 5 s more. Tells whether there was one that worked. */
export async function revokePortalToken(
  db: Database,
  ref: { tenantId: string; id: string },
): Promise<boolean> {
  const row = await db
    .updateTable('portal_tokens')
    .set({ revoked_at: sql`now()` })
    .where('id', '=', ref.id)
    .where('tenant_id', '=', ref.tenantId)
    .where('revoked_at', 'is', null)
    .where('expires_at', '>', sql<Date>`now()`)
    .returning('id')
    .executeTakeFirst();
  return row !== undefined;
}

/** What a request may do, as far as its token says. */
export interface PortalGrant {
  tokenId: string;
  tenantId: string;
  scopes: readonly PortalScope[];
  endpointIds: readonly string[] | null;
  /** From the moment of the query, by the database's clock. */
  expiresInMs: number;
}

// A token is no foreign thing to its tenant's end: it dies with it, without anybody having to remember it.
const BY_HASH = `
select p.id as "tokenId", p.tenant_id as "tenantId", p.scopes, p.endpoint_ids as "endpointIds",
  (extract(epoch from p.expires_at - now()) * 1000)::float8 as "expiresInMs"
from relay.portal_tokens p
join relay.tenants t on t.id = p.tenant_id
where p.token_hash = decode($1, 'base64') and p.revoked_at is null and p.expires_at > now() and t.deleted_at is null`;

/** Looks a token up by its hash; null when it is unknown, revoked or past its end, or its tenant is deleted. */
export async function findPortalGrant(db: Queryable, tokenHash: string): Promise<PortalGrant | null> {
  const { rows } = await db.query<PortalGrant>({
    name: 'relay_portal_grant',
    text: BY_HASH,
    values: [tokenHash],
  });
  return rows[0] ?? null;
}
