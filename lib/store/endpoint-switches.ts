import { sql, type UpdateObject } from 'kysely';
import type { BreakerState, DisabledReason, PauseReason } from '../domain/vocabulary.ts';
import type { Connection, Database } from './database.ts';
import { requestJob } from './endpoint-jobs.ts';
import { type Endpoint, type EndpointRef, findEndpoint, SHOWN_COLUMNS } from './endpoints.ts';
import { removeSubscriptions, replaceSubscriptions } from './subscriptions.ts';
import type { Tables } from './tables.ts';

/**
 * What an operator may switch. Each is one transaction that locks the endpoint's row first, and a change of nothing changes no version.
 * Whatever lets waiting deliveries go earlier raises `slot_version` and asks for the job that times them anew in the same transaction:
 * a deferral that was decided under the old version then finds it changed, and nothing stays behind.
 */

/** Matches events again and lets go what waited; the breaker starts anew. Null when there is no such endpoint. */
export async function enableEndpoint(db: Database, ref: EndpointRef): Promise<Endpoint | null> {
  return db.transaction().execute(async (trx) => {
    const before = await hold(trx, ref);
    if (!before || before.enabled) return findEndpoint(trx, ref);
    const enabled = await retime(trx, ref.id, {
      ...HEALTHY,
      enabled: true,
      disabled_reason: null,
      disabled_at: null,
    });
    await replaceSubscriptions(trx, enabled);
    return enabled;
  });
}

/** Matches no further events for the endpoint. Null when it does not exist; disabled already, it keeps its first reason. */
export async function disableEndpoint(
  db: Database,
  ref: EndpointRef,
  reason: DisabledReason,
): Promise<Endpoint | null> {
  return db.transaction().execute(async (trx) => {
    const before = await hold(trx, ref);
    if (!before?.enabled) return findEndpoint(trx, ref);
    // First, or it would be told of its own end: the row's trigger tells whoever is subscribed.
    await removeSubscriptions(trx, ref.id);
    return change(trx, ref.id, {
      enabled: false,
      disabled_reason: reason,
      disabled_at: sql`now()`,
    });
  });
}

/** When a pause ends: at a moment, so long from the database's now, or not by itself. */
export type PauseEnd = Date | { forMs: number } | null;

export type PauseResult =
  | { kind: 'paused'; endpoint: Endpoint }
  | { kind: 'not_found' }
  /** The end that was asked for has passed by the database's clock; nothing was changed. */
  | { kind: 'past' };

/**
 * Sends nothing to the endpoint until the pause ends. Events still match it. An operator's word takes the place of whatever pause there
 * is, also when that lasted longer.
 */
export async function pauseEndpoint(db: Database, ref: EndpointRef, end: PauseEnd): Promise<PauseResult> {
  return db.transaction().execute(async (trx): Promise<PauseResult> => {
    const before = await hold(trx, ref);
    if (!before) return { kind: 'not_found' };
    const endMs = endOf(end, before.nowMs);
    if (endMs <= before.nowMs) return { kind: 'past' };
    const columns = {
      paused_until: Number.isFinite(endMs) ? new Date(endMs) : sql<Date>`'infinity'`,
      paused_reason: 'operator' as const,
    };
    const { pausedUntilMs, pausedReason } = before;
    if (pausedUntilMs === endMs && pausedReason === 'operator') {
      return { kind: 'paused', endpoint: (await findEndpoint(trx, ref))! };
    }
    const write = pausedUntilMs !== null && endMs < pausedUntilMs ? retime : change;
    return { kind: 'paused', endpoint: await write(trx, ref.id, columns) };
  });
}

function endOf(end: PauseEnd, nowMs: number): number {
  if (end === null) return Number.POSITIVE_INFINITY;
  return end instanceof Date ? end.getTime() : nowMs + end.forMs;
}

/** Ends whatever pause there is. Null when there is no such endpoint. */
export async function resumeEndpoint(db: Database, ref: EndpointRef): Promise<Endpoint | null> {
  return db.transaction().execute(async (trx) => {
    const before = await hold(trx, ref);
    if (!before || before.pausedUntilMs === null) return findEndpoint(trx, ref);
    return retime(trx, ref.id, { paused_until: null, paused_reason: null });
  });
}

/** Closes the breaker and forgets the failures that it counted. Null when there is no such endpoint. */
export async function resetBreaker(db: Database, ref: EndpointRef): Promise<Endpoint | null> {
  return db.transaction().execute(async (trx) => {
    const before = await hold(trx, ref);
    if (!before?.unwell) return findEndpoint(trx, ref);
    // While it is closed nothing was timed by a cooldown.
    const write = before.breakerState === 'closed' ? change : retime;
    return write(trx, ref.id, HEALTHY);
  });
}

type Columns = UpdateObject<Tables, 'endpoints', 'endpoints'>;

/** A new era: evidence of what was claimed before is ignored. */
const HEALTHY = {
  breaker_state: 'closed',
  breaker_failures: 0,
  breaker_streak: 0,
  breaker_until: null,
  breaker_probe: null,
  breaker_trips: sql<number>`breaker_trips + 1`,
  failing_since: null,
} as const satisfies Columns;

interface Held {
  enabled: boolean;
  nowMs: number;
  /** Of a pause that still runs; `Infinity` without an end. */
  pausedUntilMs: number | null;
  pausedReason: PauseReason | null;
  breakerState: BreakerState;
  unwell: boolean;
}

async function hold(trx: Connection, ref: EndpointRef): Promise<Held | undefined> {
  return trx
    .selectFrom('endpoints')
    .select([
      'enabled',
      'paused_reason as pausedReason',
      'breaker_state as breakerState',
      sql<number>`date_part('epoch', now()) * 1000`.as('nowMs'),
      sql<number | null>`case when paused_until = 'infinity' then 'Infinity'::float8
        when paused_until > now() then round(date_part('epoch', paused_until) * 1000) end`.as(
        'pausedUntilMs',
      ),
      sql<boolean>`breaker_state <> 'closed' or breaker_failures > 0 or breaker_streak > 0
        or failing_since is not null`.as('unwell'),
    ])
    .where('id', '=', ref.id)
    .where('tenant_id', '=', ref.tenantId)
    .where('deleted_at', 'is', null)
    .forUpdate()
    .executeTakeFirst();
}

async function change(trx: Connection, id: string, columns: Columns): Promise<Endpoint> {
  return trx
    .updateTable('endpoints')
    .set({ ...columns, version: sql<number>`version + 1`, updated_at: sql<Date>`now()` })
    .where('id', '=', id)
    .returning(SHOWN_COLUMNS)
    .executeTakeFirstOrThrow();
}

async function retime(trx: Connection, id: string, columns: Columns): Promise<Endpoint> {
  await requestJob(trx, id, 'retime');
  return change(trx, id, { ...columns, slot_version: sql<number>`slot_version + 1` });
}
