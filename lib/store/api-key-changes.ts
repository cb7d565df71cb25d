import { type RawBuilder, sql } from 'kysely';
import {
  type ApiKey,
  findApiKey,
  insertKey,
  KEY_COLUMNS,
  type KeyRef,
  keyOf,
  type MadeKey,
} from './api-keys.ts';
import type { Connection, Database } from './database.ts';
import { holdTenant } from './tenants.ts';

/** What may be changed of a key; what is absent stays. Its scopes may not: whoever holds it was told what it can do. */
export interface KeyChange {
  name?: string | undefined;
  expiresAt?: Date | null | undefined;
  requestsPerSecond?: number | null | undefined;
}

export type KeyChangeResult =
  | { kind: 'changed'; apiKey: ApiKey }
  | { kind: 'not_found' }
  /** Revoked or past its end: what has ended stays so. */
  | { kind: 'ended' }
  /** The new end has passed by the database's clock. */
  | { kind: 'past' };

export async function changeApiKey(db: Database, ref: KeyRef, change: KeyChange): Promise<KeyChangeResult> {
  return db.transaction().execute(async (trx): Promise<KeyChangeResult> => {
    const before = await holdKey(trx, ref);
    if (!before) return { kind: 'not_found' };
    if (before.ended) return { kind: 'ended' };
    const { name, expiresAt, requestsPerSecond } = change;
    if (expiresAt && expiresAt.getTime() <= before.nowMs) return { kind: 'past' };
    const apiKey = await trx
      .updateTable('api_keys')
      .set({
        ...(name === undefined ? {} : { name }),
        ...(expiresAt === undefined ? {} : { expires_at: expiresAt }),
        ...(requestsPerSecond === undefined ? {} : { requests_per_second: requestsPerSecond }),
        // An update of nothing is no statement.
        id: ref.id,
      })
      .where('id', '=', ref.id)
      .returning(KEY_COLUMNS)
      .executeTakeFirstOrThrow();
    return { kind: 'changed', apiKey };
  });
}

function holdKey(trx: Connection, ref: KeyRef) {
  return keyOf(trx, ref)
    .select([
      sql<boolean>`revoked_at is not null or coalesce(expires_at <= now(), false)`.as('ended'),
      sql<number>`(date_part('epoch', now()) * 1000)::float8`.as('nowMs'),
    ])
    .forUpdate()
    .executeTakeFirst();
}

export interface RotationOptions {
  /** How long the old key works beside the new one, ms. */
  overlapMs: number;
  /** Left out, the new key lives as long as the old one was made to, or without an end. */
  expiresAt?: Date | null | undefined;
}

export type RotationResult =
  | ({ kind: 'rotated'; previous: ApiKey } & MadeKey)
  | { kind: 'not_found' | 'ended' | 'past' }
  | { kind: 'replaced'; by: string };

/**
 * Makes a key with the same grants and lets the old one end after the overlap, or sooner if it was to. A key is rotated once: two who rotate it
 * at the same moment would make two heirs, and one of them would be nobody's to watch.
 */
export async function rotateApiKey(
  db: Database,
  ref: KeyRef,
  { overlapMs, expiresAt }: RotationOptions,
): Promise<RotationResult> {
  return db.transaction().execute(async (trx): Promise<RotationResult> => {
    const found = await findApiKey(trx, ref);
    if (!found) return { kind: 'not_found' };
    // The tenant first, as its deletion does, which revokes all keys.
    if (found.tenantId !== null && !(await holdTenant(trx, found.tenantId))) return { kind: 'ended' };
    const old = await holdKey(trx, ref);
    if (!old) return { kind: 'not_found' };
    if (old.replacedBy !== null) return { kind: 'replaced', by: old.replacedBy };
    if (old.ended) return { kind: 'ended' };
    if (expiresAt && expiresAt.getTime() <= old.nowMs) return { kind: 'past' };
    const end = expiresAt === undefined ? sameSpan(old) : expiresAt;
    const made = await insertKey(trx, { ...old, expiresAt: end });
    const previous = await trx
      .updateTable('api_keys')
      .set({
        replaced_by: made.apiKey.id,
        expires_at: sql<Date>`least(expires_at, now() + ${overlapMs}::float8 * interval '1 ms')`,
      })
      .where('id', '=', old.id)
      .returning(KEY_COLUMNS)
      .executeTakeFirstOrThrow();
    return { kind: 'rotated', previous, ...made };
  });
}

function sameSpan({ createdAt, expiresAt }: ApiKey): RawBuilder<Date> | null {
  if (expiresAt === null) return null;
  return sql<Date>`now() + ${expiresAt.getTime() - createdAt.getTime()}::float8 * interval '1 ms'`;
}
