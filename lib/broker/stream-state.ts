import { LANES, type Lane } from '../domain/vocabulary.ts';
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
  /** Entries ever added and the newest ever deleted, which only grow while the stream lives; null where Redis does not tell (before 7.0). */
  added: number | null;
  deletedUntilMs: number | null;
}

/** Whether the stream of `now` cannot be the stream of `before`: it was flushed away, or Redis came back empty. */
export function isOtherStream(before: StreamState, now: StreamState): boolean {
  const shrunk = (a: number | null, b: number | null) => (b ?? 0) < (a ?? 0);
  return (
    shrunk(before.readUntilMs, now.readUntilMs) ||
    shrunk(before.added, now.added) ||
    shrunk(before.deletedUntilMs, now.deletedUntilMs)
  );
}

/** XINFO's `lag` is not used: after one trim it is wrong for ever. */
export function unreadEntries(state: StreamState): number {
  return Math.max(0, state.length - state.pending);
}

/** Reads how far a lane's group has come. Throws when Redis is away. */
export async function readStreamState(link: RedisLink, lane: Lane): Promise<StreamState> {
  const key = streamKey(link.options, lane);
  const [time, groups, stream] = await Promise.all([
    link.client.time() as Promise<[string | number, string | number]>,
    groupInfo(link, key),
    streamInfo(link, key),
  ]);
  const own = groups.find((group) => group.get('name') === link.options.group);
  return {
    length: Number(stream.get('length') ?? 0),
    pending: Number(own?.get('pending') ?? 0),
    redisNowMs: Number(time[0]) * 1000 + Number(time[1]) / 1000,
    readUntilMs: idTime(own?.get('last-delivered-id')),
    added: stream.has('entries-added') ? Number(stream.get('entries-added')) : null,
    deletedUntilMs: idTime(stream.get('max-deleted-entry-id')),
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
export async function meanIdsPerEntry(link: RedisLink, lane: Lane): Promise<number> {
  const entries = await link.client.xrange(streamKey(link.options, lane), '-', '+', 'COUNT', 100);
  if (entries.length === 0) return 0;
  return entries.reduce((sum, [, fields]) => sum + countField(fields), 0) / entries.length;
}

function countField(fields: readonly string[]): number {
  const at = fields.indexOf('n');
  const count = at < 0 ? 0 : Number(fields[at + 1]);
  return Number.isFinite(count) ? count : 0;
}

/** Removes consumers of both lanes that nobody has been for `idleMs` and that hold nothing. Returns how many. */
export async function removeDeadConsumers(link: RedisLink, idleMs: number): Promise<number> {
  let removed = 0;
  for (const lane of LANES) {
    for (const info of await consumerInfo(link, lane)) {
      const dead = Number(info.get('idle')) > idleMs && Number(info.get('pending')) === 0;
      const consumer = String(info.get('name'));
      if (dead && (await removeConsumer(link, { lane, consumer }))) removed += 1;
    }
  }
  return removed;
}

type Info = Map<string, string | number>;

async function groupInfo(link: RedisLink, key: string): Promise<Info[]> {
  return ((await ifKeyExists(link.client.xinfo('GROUPS', key))) as unknown[][] | null)?.map(toInfo) ?? [];
}

async function streamInfo(link: RedisLink, key: string): Promise<Info> {
  return toInfo(((await ifKeyExists(link.client.xinfo('STREAM', key))) as unknown[] | null) ?? []);
}

async function ifKeyExists<T>(reply: Promise<T>): Promise<T | null> {
  try {
    return await reply;
  } catch (error) {
    if (error instanceof Error && error.message.includes('no such key')) return null;
    throw error;
  }
}

async function consumerInfo(link: RedisLink, lane: Lane): Promise<Info[]> {
  try {
    const reply = await ifKeyExists(
      link.client.xinfo('CONSUMERS', streamKey(link.options, lane), link.options.group),
    );
    return ((reply as unknown[][] | null) ?? []).map(toInfo);
  } catch (error) {
    if (isNoGroup(error)) return [];
    throw error;
  }
}

function toInfo(flat: readonly unknown[]): Info {
  const info: Info = new Map();
  for (let i = 0; i + 1 < flat.length; i += 2) {
    const value = flat[i + 1];
    info.set(String(flat[i]), typeof value === 'number' ? value : String(value));
  }
  return info;
}

function idTime(entryId: string | number | undefined): number | null {
  const ms = Number(String(entryId ?? '0-0').split('-')[0]);
  return ms > 0 ? ms : null;
}
