import { MAX_BATCH } from './limits.ts';

/**
 * A stream entry: the ids of the deliveries of one commit, packed, because an entry for each id costs ten times as much. It carries a
 * format version, so that a fleet in the middle of a roll-out can leave to others what it cannot read.
 */
export const STREAM_ENTRY_VERSION = '1';

/** Field names and values for XADD; one entry for each 128 ids. */
export function packEntries(deliveryIds: readonly string[]): string[][] {
  const entries: string[][] = [];
  for (let start = 0; start < deliveryIds.length; start += MAX_BATCH) {
    const ids = deliveryIds.slice(start, start + MAX_BATCH);
    entries.push(['v', STREAM_ENTRY_VERSION, 'n', String(ids.length), 'ids', ids.join(',')]);
  }
  return entries;
}

export type UnpackedEntry =
  | { kind: 'ids'; ids: string[] }
  /** Written by a newer Relay: not ours to judge. */
  | { kind: 'unknown_version' }
  /** Not an entry of Relay's: nobody can use it. */
  | { kind: 'malformed' };

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

/** Reads the flat field list of an entry as XREADGROUP returns it. */
export function unpackEntry(fields: readonly string[] | null): UnpackedEntry {
  const value = (name: string) => {
    const at = fields?.findIndex((field, index) => index % 2 === 0 && field === name) ?? -1;
    return at < 0 ? undefined : fields?.[at + 1];
  };
  const version = value('v');
  if (version === undefined) return { kind: 'malformed' };
  if (version !== STREAM_ENTRY_VERSION) return { kind: 'unknown_version' };
  const ids = value('ids')?.split(',') ?? [];
  const whole =
    ids.length === Number(value('n')) && ids.length <= MAX_BATCH && ids.every((id) => UUID.test(id));
  return whole ? { kind: 'ids', ids } : { kind: 'malformed' };
}
