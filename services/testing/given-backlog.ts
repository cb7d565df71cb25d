import type pg from 'pg';
import { expect } from 'vitest';
import type { Arrivals } from './arrivals.ts';
import { eventually } from './eventually.ts';
import type { Fleet } from './fleet.ts';
import { givenOwed } from './given-queue.ts';

export interface Backlog {
  endpointId: string;
  /** Of the receiver. */
  path: string;
  deliveryIds: string[];
}

/**
 * An endpoint at a path of the receiver that is owed so many deliveries, found by the sweep. They are not posted: the receiver runs in this
 * process, and while it posts it would see late what it is sent.
 */
export async function givenBacklog(
  { fleet, pool }: { fleet: Fleet; pool: pg.Pool },
  path: string,
  { count, ...settings }: { count: number } & Record<string, unknown>,
): Promise<Backlog> {
  const { id: endpointId } = await fleet.endpoint(path, { event_types: ['nothing.else'], ...settings });
  const deliveryIds = await givenOwed(pool, count, { endpointId, announced: false });
  return { endpointId, path, deliveryIds };
}

/** Resolves when each of a backlog's deliveries has been sent or turned away once. */
export async function firstPassDone(pool: pg.Pool, { endpointId }: Backlog): Promise<void> {
  await eventually(async () => {
    const { rows } = await pool.query<{ unseen: number }>(
      'select count(*)::integer as unseen from relay.queue where endpoint_id = $1 and deferrals = 0 and sends = 0',
      [endpointId],
    );
    expect(rows[0]!.unseen).toBe(0);
  }, 30_000);
}

/** How many deliveries an endpoint is still owed. */
export async function owedTo(pool: pg.Pool, { endpointId }: Backlog): Promise<number> {
  const { rows } = await pool.query<{ owed: number }>(
    'select count(*)::integer as owed from relay.queue where endpoint_id = $1',
    [endpointId],
  );
  return rows[0]!.owed;
}

/** Resolves when a backlog is delivered: one success each, and the receiver saw no request that is not in the log. */
export async function deliveredWithoutRepeats(
  { fleet, pool, arrivals }: { fleet: Fleet; pool: pg.Pool; arrivals: Arrivals },
  { path, deliveryIds }: Backlog,
): Promise<void> {
  await fleet.delivered(deliveryIds, 45_000);
  await eventually(async () => {
    const { rows } = await pool.query<{ succeeded: number; sends: number }>(
      `select count(*) filter (where class = 'success')::integer as succeeded, count(send)::integer as sends
       from relay.delivery_attempts where delivery_id = any($1::uuid[])`,
      [deliveryIds],
    );
    expect(rows[0]).toEqual({ succeeded: deliveryIds.length, sends: arrivals.of(path).length });
  });
}

/** Resolves when so many dispatchers have beaten since the last of them came: each has heard of all the others. */
export async function knowEachOther(pool: pg.Pool, dispatchers: number): Promise<void> {
  await eventually(async () => {
    const { rows } = await pool.query<{ informed: number }>(
      `select count(*) filter (where beat_at > last_came + interval '1 second')::integer as informed
       from (select beat_at, max(started_at) over () as last_came from relay.process_heartbeats where role = 'dispatcher') h`,
    );
    expect(rows[0]!.informed).toBe(dispatchers);
  });
}

/** Resolves at a moment of the wall clock, ms since 1970. */
export function waitUntil(atMs: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, Math.max(0, atMs - Date.now())));
}
