import { hash, randomBytes } from 'node:crypto';
import { type RawBuilder, sql } from 'kysely';
import type { Pool } from 'pg';
import type { Scope } from '../domain/vocabulary.ts';
import { plainArray } from './array-literal.ts';
import type { Connection, Database } from './database.ts';
import { newId } from './new-id.ts';
import { holdTenant } from './tenants.ts';

const KEY_PREFIX = 'relay_';
/** As much of a key as is stored and shown: enough to tell keys apart, far too little to guess one. */
const SHOWN_CHARACTERS = KEY_PREFIX.length + 6;

/** What is known of a key; the key itself is shown once, when it is made, and never stored. */
export interface ApiKey {
  id: string;
  /** Null for an admin key, which may act for every tenant. */
  tenantId: string | null;
  name: string;
  prefix: string;
  scopes: Scope[];
  /** Null: the API's own limit. */
  requestsPerSecond: number | null;
  createdAt: Date;
  expiresAt: Date | null;
  revokedAt: Date | null;
  /** The key that a rotation put in its place. */
  replacedBy: string | null;
  lastUsedAt: Date | null;
}

export interface NewApiKey {
  tenantId: string | null;
  name: string;
  scopes: readonly Scope[];
  expiresAt: Date | null;
  requestsPerSecond?: number | null;
}

/** The SHA-256 of a key in base64: what keys are compared and looked up by. */
export function hashApiKey(key: string): string {
  return hash('sha256', key, 'base64');
}

export interface MadeKey {
  apiKey: ApiKey;
  /** Its only appearance in the clear. */
  key: string;
}

/** Makes a key; null when its tenant does not exist. */
export async function createApiKey(db: Database, options: NewApiKey): Promise<MadeKey | null> {
  const { tenantId } = options;
  return db.transaction().execute(async (trx) => {
    if (tenantId !== null && !(await holdTenant(trx, tenantId))) return null;
    return insertKey(trx, options);
  });
}

export async function insertKey(
  trx: Connection,
  options: Omit<NewApiKey, 'expiresAt'> & { expiresAt: Date | RawBuilder<Date | null> | null },
): Promise<MadeKey> {
  const key = KEY_PREFIX + randomBytes(32).toString('base64url');
  const apiKey = await trx
    .insertInto('api_keys')
    .values({
      id: newId(),
      tenant_id: options.tenantId,
      name: options.name,
      prefix: key.slice(0, SHOWN_CHARACTERS),
      key_hash: Buffer.from(hashApiKey(key), 'base64'),
      scopes: [...options.scopes],
      expires_at: options.expiresAt,
      requests_per_second: options.requestsPerSecond ?? null,
    })
    .returning(KEY_COLUMNS)
    .executeTakeFirstOrThrow();
  return { apiKey, key };
}

export const KEY_COLUMNS = [
  'id',
  'tenant_id as tenantId',
  'name',
  'prefix',
  'scopes',
  'requests_per_second as requestsPerSecond',
  'created_at as createdAt',
  'expires_at as expiresAt',
  'revoked_at as revokedAt',
  'replaced_by as replacedBy',
  'last_used_at as lastUsedAt',
] as const;

export interface KeyPage {
  after: string | null;
  limit: number;
  /** Also those that are revoked. */
  revoked?: boolean;
}

/** Keys, oldest first, also those past their end. `tenantId` null lists those of every tenant, and the admin keys. */
export async function listApiKeys(
  db: Database,
  tenantId: string | null,
  { after, limit, revoked = false }: KeyPage,
): Promise<ApiKey[]> {
  return db
    .selectFrom('api_keys')
    .select(KEY_COLUMNS)
    .$if(!revoked, (query) => query.where('revoked_at', 'is', null))
    .$if(tenantId !== null, (query) => query.where('tenant_id', '=', tenantId))
    .$if(after !== null, (query) => query.where('id', '>', after!))
    .orderBy('id')
    .limit(limit)
    .execute();
}

/** Names a key; `tenantId` null may name that of any tenant, and an admin key. */
export interface KeyRef {
  tenantId: string | null;
  id: string;
}

/** A key, revoked or not; null when there is none. */
export async function findApiKey(db: Connection, ref: KeyRef): Promise<ApiKey | null> {
  const row = await keyOf(db, ref).executeTakeFirst();
  return row ?? null;
}

export function keyOf(db: Connection, { tenantId, id }: KeyRef) {
  return db
    .selectFrom('api_keys')
    .select(KEY_COLUMNS)
    .where('id', '=', id)
    .$if(tenantId !== null, (query) => query.where('tenant_id', '=', tenantId));
}

/** Revokes a key; caches may honour it for 5 s more. Answers with the key, or null when there was none to revoke. */
export async function revokeApiKey(db: Database, { tenantId, id }: KeyRef): Promise<ApiKey | null> {
  const row = await db
    .updateTable('api_keys')
    .set({ revoked_at: sql`now()` })
    .where('id', '=', id)
    .where('revoked_at', 'is', null)
    .$if(tenantId !== null, (query) => query.where('tenant_id', '=', tenantId))
    .returning(KEY_COLUMNS)
    .executeTakeFirst();
  return row ?? null;
}

/** What a request may do, as far as its key says. */
export interface KeyGrant {
  keyId: string;
  tenantId: string | null;
  scopes: readonly Scope[];
  /** Null: the API's own limit. */
  requestsPerSecond: number | null;
  /** From the moment of the query, by the database's clock; null for a key without an end. */
  expiresInMs: number | null;
}

const BY_HASH = `
select id as "keyId", tenant_id as "tenantId", scopes, requests_per_second as "requestsPerSecond",
  (extract(epoch from expires_at - now()) * 1000)::float8 as "expiresInMs"
from relay.api_keys
where key_hash = decode($1, 'base64') and revoked_at is null and (expires_at is null or expires_at > now())`;

/** Looks a key up by its hash; null when it is unknown, revoked or past its end. */
export async function findKeyGrant(pool: Pool, keyHash: string): Promise<KeyGrant | null> {
  const { rows } = await pool.query<KeyGrant>({ name: 'relay_key_grant', text: BY_HASH, values: [keyHash] });
  return rows[0] ?? null;
}

/** Notes that keys were used, at most once a minute for each: it is for people, and must not cost a write per request. */
export async function touchApiKeys(pool: Pool, ids: readonly string[]): Promise<void> {
  await pool.query({
    name: 'relay_touch_keys',
    text: `update relay.api_keys set last_used_at = now()
      where id = any($1::uuid[]) and (last_used_at is null or last_used_at < now() - interval '1 minute')`,
    values: [plainArray(ids)],
  });
}

/** Tells whether anybody could make further keys: a usable admin key with the scope for it. */
export async function adminKeyExists(pool: Pool): Promise<boolean> {
  const { rows } = await pool.query(
    `select 1 from relay.api_keys
    where tenant_id is null and revoked_at is null and (expires_at is null or expires_at > now()) and 'manage' = any(scopes)
    limit 1`,
  );
  return rows.length > 0;
}
