import { sql } from 'kysely';
import type { SecretKeys } from '../config/secret-keys.ts';
import type { KeyPair } from '../domain/key-pair.ts';
import type { Database } from './database.ts';
import { type Endpoint, type EndpointRef, findEndpoint, SHOWN_COLUMNS } from './endpoints.ts';
import { sealSecret } from './secret-box.ts';

export type KeyPairResult =
  | { kind: 'changed'; endpoint: Endpoint }
  | { kind: 'not_found' }
  /** Its signing scheme has no signature that a key pair could make. */
  | { kind: 'no_key_pair' };

/** Gives an endpoint a key pair. One that it has goes on signing beside the new one for `overlapMs`; a third never signs. */
export async function replaceKeyPair(
  db: Database,
  ref: EndpointRef,
  pair: KeyPair,
  { keys, overlapMs }: { keys: SecretKeys; overlapMs: number },
): Promise<KeyPairResult> {
  const overlap = sql<Date>`now() + ${overlapMs}::float8 * interval '1 ms'`;
  const endpoint = await db
    .updateTable('endpoints')
    .set({
      signing_key: sealSecret(keys, ref.id, pair.privateKey),
      public_key: pair.publicKey,
      previous_signing_key: sql<Buffer | null>`signing_key`,
      previous_signing_key_expires_at: sql<Date | null>`case when signing_key is not null then ${overlap} end`,
      version: sql<number>`version + 1`,
      updated_at: sql<Date>`now()`,
    })
    .where('id', '=', ref.id)
    .where('tenant_id', '=', ref.tenantId)
    .where('deleted_at', 'is', null)
    .where('signing_scheme', '=', 'standard')
    .returning(SHOWN_COLUMNS)
    .executeTakeFirst();
  if (endpoint) return { kind: 'changed', endpoint };
  return { kind: (await findEndpoint(db, ref)) ? 'no_key_pair' : 'not_found' };
}

/** Takes an endpoint's key pair away, a previous one too, at once. False when there is no such endpoint; one without a pair is not changed. */
export async function removeKeyPair(db: Database, ref: EndpointRef): Promise<boolean> {
  const removed = await db
    .updateTable('endpoints')
    .set({ ...NO_KEY_PAIR, version: sql<number>`version + 1`, updated_at: sql<Date>`now()` })
    .where('id', '=', ref.id)
    .where('tenant_id', '=', ref.tenantId)
    .where('deleted_at', 'is', null)
    .where('signing_key', 'is not', null)
    .returning('id')
    .executeTakeFirst();
  return removed !== undefined || (await findEndpoint(db, ref)) !== null;
}

export const NO_KEY_PAIR = {
  signing_key: null,
  public_key: null,
  previous_signing_key: null,
  previous_signing_key_expires_at: null,
};
