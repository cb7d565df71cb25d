import { isNoGroup, streamKey } from './client.ts';
import { removeConsumer } from './consumer.ts';
import type { RedisLink } from './link.ts';

export interface StreamState {
  /** Entries in the stream: unread or undecided. 0 also when the stream does not exist. */
  length: number;
  /** Read and not yet decided. */
  pending: number;
  /** Redis's clock, ms. */
  redisNowMs: number;
  /** The time, on Redis's clock, of the newest entry that the group has read; null when it has read none. */
  readUntilMs: number | null;
}

/** XINFO's `lag` is not used: after one trim it is wrong for ever. */
export function unreadEntries(state: StreamState): number {
  return Math.max(0, state.length - state.pending);
}

/** Reads how far the group has come. Throws when Redis is away. */
export async function readStreamState(link: RedisLink): Promise<StreamState> {
  const key = streamKey(link.options);
  const [time, length, groups] = await Promise.all([
    link.client.time() as Promise<[string | number, string | number]>,
    link.client.xlen(key),
    groupInfo(link, key),
  ]);
  const own = groups.find((group) => group.get('name') === link.options.group);
  return {
    length,
    pending: Number(own?.get('pending') ?? 0),
    redisNowMs: Number(time[0]) * 1000 + Number(time[1]) / 1000,
    readUntilMs: idTime(own?.get('last-delivered-id')),
  };
}

/**
 * The moment, on the database's clock, up to which announcements are known to have been read. An empty stream is read to its end.
 * Otherwise it is the newest entry read, less a margin: an announcement is marked in the database a little before it is in the stream.
 */
export function drainedUntil(state: StreamState, databaseNow: Date, databaseAheadMs: number): Date | null {
  if (state.length === 0) return databaseNow;
  if (state.readUntilMs === null) return null;
  return new Date(state.readUntilMs + databaseAheadMs - MARGIN_MS);
}

const MARGIN_MS = 1_500;

/** The mean number of ids in the oldest entries, which turns a lag in entries into one in deliveries. */
export async function meanIdsPerEntry(link: RedisLink): Promise<number> {
  const entries = await link.client.xrange(streamKey(link.options), '-', '+', 'COUNT', 100);
  if (entries.length === 0) return 0;
  const total = entries.reduce((sum, [, fields]) => sum + Number(fields[fields.indexOf('n') + 1] ?? 0), 0);
  return total / entries.length;
}

/** Removes consumers that nobody has been for `idleMs` and that hold nothing. Returns how many. */
export async function removeDeadConsumers(link: RedisLink, idleMs: number): Promise<number> {
  let removed = 0;
  for (const consumer of await consumerInfo(link)) {
    const dead = Number(consumer.get('idle')) > idleMs && Number(consumer.get('pending')) === 0;
    if (dead && (await removeConsumer(link, String(consumer.get('name'))))) removed += 1;
  }
  return removed;
}

type Info = Map<string, string | number>;

async function groupInfo(link: RedisLink, key: string): Promise<Info[]> {
  try {
    return toInfo(await link.client.xinfo('GROUPS', key));
  } catch (error) {
    if (error instanceof Error && error.message.includes('no such key')) return [];
    throw error;
  }
}

async function consumerInfo(link: RedisLink): Promise<Info[]> {
  try {
    return toInfo(await link.client.xinfo('CONSUMERS', streamKey(link.options), link.options.group));
  } catch (error) {
    if (isNoGroup(error) || (error instanceof Error && error.message.includes('no such key'))) return [];
    throw error;
  }
}

function toInfo(reply: unknown): Info[] {
  return (reply as (string | number)[][]).map((flat) => {
    const info: Info = new Map();
    for (let i = 0; i + 1 < flat.length; i += 2) info.set(String(flat[i]), flat[i + 1] ?? '');
    return info;
  });
}

function idTime(entryId: string | number | undefined): number | null {
  const ms = Number(String(entryId ?? '0-0').split('-')[0]);
  return ms > 0 ? ms : null;
}
