import { packEntries } from '../domain/stream-entry.ts';
import type { Lane } from '../domain/vocabulary.ts';
import { streamKey } from './client.ts';
import type { RedisLink } from './link.ts';

/** Far above any healthy backlog (of up to 128 ids each): a stuck fleet must not fill Redis, and what is trimmed is announced again. */
const MAX_ENTRIES = 500_000;

/**
 * Puts committed row ids on a lane's stream. Returns the ids that could not be put there; the caller makes those rows due to be found in the
 * database. Never throws.
 */
export async function announce(
  link: RedisLink,
  deliveryIds: readonly string[],
  lane: Lane,
): Promise<string[]> {
  if (deliveryIds.length === 0) return [];
  const entries = packEntries(deliveryIds);
  const results = await Promise.allSettled(
    entries.map((fields) =>
      link.client.xadd(streamKey(link.options, lane), 'MAXLEN', '~', MAX_ENTRIES, '*', ...fields),
    ),
  );
  const failed: string[] = [];
  for (const [index, result] of results.entries()) {
    if (result.status === 'fulfilled') continue;
    link.reportFailure(result.reason);
    failed.push(...(entries[index]?.at(-1)?.split(',') ?? []));
  }
  return failed;
}
