import { sql } from 'kysely';
import type { SecretKeys } from '../config/secret-keys.ts';
import type { Connection, Database } from './database.ts';
import { openSecret, sealedUnder, sealSecret } from './secret-box.ts';

/**
 * Writes again, under the first key, everything in use that another key encrypted: secrets, private keys and custom headers; afterwards
 * the other keys can go. Goes endpoint by endpoint in order of id, in batches of one short transaction each, and may be interrupted and
 * repeated. A previous secret or key whose overlap has ended is dropped. Returns how many endpoints were written. Throws SecretKeyMissingError.
 */
export async function reencryptSecrets(
  db: Database,
  keys: SecretKeys,
  options: { batch: number },
): Promise<number> {
  let written = 0;
  let after: string | null = null;
  for (;;) {
    const ids: string[] = await db
      .transaction()
      .execute((trx) => reencryptBatch(trx, keys, after, options.batch));
    written += ids.length;
    after = ids.at(-1) ?? null;
    if (ids.length < options.batch) return written;
  }
}

/** Every column that holds something sealed. */
const SEALED = ['secret', 'previous_secret', 'headers', 'signing_key', 'previous_signing_key'] as const;

async function reencryptBatch(
  trx: Connection,
  keys: SecretKeys,
  after: string | null,
  limit: number,
): Promise<string[]> {
  const current = keys[0].id;
  const rows = await trx
    .selectFrom('endpoints')
    .select(['id', ...SEALED])
    .select(sql<boolean>`coalesce(previous_secret_expires_at > now(), false)`.as('overlaps'))
    .select(sql<boolean>`coalesce(previous_signing_key_expires_at > now(), false)`.as('key_overlaps'))
    .where('deleted_at', 'is', null)
    .where((where) =>
      where.or(
        SEALED.map((column) => sql<boolean>`substring(${sql.ref(column)} from 2 for 4) <> ${current}`),
      ),
    )
    .$if(after !== null, (query) => query.where('id', '>', after))
    .orderBy('id')
    .limit(limit)
    .forUpdate()
    .execute();
  for (const row of rows) {
    const again = (sealed: Buffer) =>
      sealedUnder(sealed).equals(current)
        ? sealed
        : sealSecret(keys, row.id, openSecret(keys, row.id, sealed));
    await trx
      .updateTable('endpoints')
      // Not a change of configuration: whoever holds the opened secret holds the right one.
      .set({
        secret: again(row.secret),
        headers: row.headers && again(row.headers),
        signing_key: row.signing_key && again(row.signing_key),
        ...(row.overlaps
          ? { previous_secret: row.previous_secret && again(row.previous_secret) }
          : { previous_secret: null, previous_secret_expires_at: null }),
        ...(row.key_overlaps
          ? { previous_signing_key: row.previous_signing_key && again(row.previous_signing_key) }
          : { previous_signing_key: null, previous_signing_key_expires_at: null }),
      })
      .where('id', '=', row.id)
      .execute();
  }
  return rows.map((row) => row.id);
}
