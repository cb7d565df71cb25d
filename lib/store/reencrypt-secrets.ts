import { sql } from 'kysely';
import type { SecretKeys } from '../config/secret-keys.ts';
import type { Connection, Database } from './database.ts';
import { openSecret, sealedUnder, sealSecret } from './secret-box.ts';

/**
 * Writes again, under the first key, every secret in use that another key encrypted; afterwards the other keys can go. Goes
 * endpoint by endpoint in order of id, in batches of one short transaction each, and may be interrupted and repeated. A previous
 * secret whose overlap has ended is dropped. Returns how many endpoints were written. Throws SecretKeyMissingError.
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

async function reencryptBatch(
  trx: Connection,
  keys: SecretKeys,
  after: string | null,
  limit: number,
): Promise<string[]> {
  const current = keys[0].id;
  const rows = await trx
    .selectFrom('endpoints')
    .select(['id', 'secret', 'previous_secret', 'previous_secret_expires_at'])
    .select(sql<boolean>`previous_secret_expires_at > now()`.as('overlaps'))
    .where('deleted_at', 'is', null)
    .where(sql<boolean>`(substring(secret from 2 for 4) <> ${current}
      or substring(previous_secret from 2 for 4) <> ${current})`)
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
    const previous = row.overlaps && row.previous_secret ? again(row.previous_secret) : null;
    await trx
      .updateTable('endpoints')
      // Not a change of configuration: whoever holds the opened secret holds the right one.
      .set({
        secret: again(row.secret),
        previous_secret: previous,
        previous_secret_expires_at: previous && row.previous_secret_expires_at,
      })
      .where('id', '=', row.id)
      .execute();
  }
  return rows.map((row) => row.id);
}
