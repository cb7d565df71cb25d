import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { expect } from 'vitest';
import type { HealthEvidence, HealthPolicy } from '../../lib/store/endpoint-health.ts';
import { givenEndpoint } from './given-queue.ts';

export const DAY_MS = 86_400_000;
export const POLICY: HealthPolicy = {
  breaker: { enabled: true, threshold: 5, cooldownMs: 30_000, maxCooldownMs: 300_000 },
  autoDisableMs: 5 * DAY_MS,
};

/** An endpoint with columns as an SQL `set` list has them. */
export async function givenHealth(pool: pg.Pool, columns?: string): Promise<string> {
  const id = await givenEndpoint(pool);
  if (columns) await pool.query(`update relay.endpoints set ${columns} where id = $1`, [id]);
  return id;
}

export const PROBE = randomUUID();
export const OPEN = `breaker_state = 'open', breaker_failures = 5, breaker_trips = 3, breaker_streak = 2, breaker_until = now() + interval '1 min'`;
export const COOLED = `breaker_state = 'open', breaker_failures = 5, breaker_trips = 3, breaker_streak = 2, breaker_until = now()`;
export const HALF_OPEN = `breaker_state = 'half_open', breaker_failures = 5, breaker_trips = 3, breaker_streak = 2,
  breaker_probe = '${PROBE}', breaker_until = now() + interval '20 s'`;

export function evidence(endpointId: string, item: Partial<HealthEvidence> = {}): HealthEvidence {
  return { endpointId, kind: 'failing', success: false, trips: 0, probe: null, retryAfterMs: null, ...item };
}

export const success = (endpointId: string, item: Partial<HealthEvidence> = {}) =>
  evidence(endpointId, { kind: 'alive', success: true, ...item });

const fromNow = (column: string) => `(date_part('epoch', ${column}) - date_part('epoch', now())) * 1000`;

export interface HealthRow {
  state: string;
  failures: number;
  trips: number;
  streak: number;
  probe: string | null;
  until_in: number | null;
  failing_for: number | null;
  paused_in: number | null;
  paused_reason: string | null;
  enabled: boolean;
  disabled_reason: string | null;
  version: number;
  slot_version: number;
  subscriptions: number;
  /** Which version of the row it is, and whether anybody has locked it. */
  written: string;
}

export async function healthRow(pool: pg.Pool, id: string): Promise<HealthRow> {
  const { rows } = await pool.query<HealthRow>(
    `select breaker_state as state, breaker_failures as failures, breaker_trips as trips, breaker_streak as streak,
       breaker_probe as probe, ${fromNow('breaker_until')} as until_in, -${fromNow('failing_since')} as failing_for,
       ${fromNow('paused_until')} as paused_in, paused_reason, enabled, disabled_reason, version, slot_version,
       (select count(*)::integer from relay.subscriptions s where s.endpoint_id = n.id) as subscriptions,
       concat_ws(' ', ctid, xmin, xmax) as written
     from relay.endpoints n where id = $1`,
    [id],
  );
  return rows[0]!;
}

/** Expects that neither a write nor a lock has touched the row. */
export async function expectUntouched(
  pool: pg.Pool,
  id: string,
  work: () => Promise<unknown>,
): Promise<void> {
  const before = await healthRow(pool, id);
  await work();
  expect((await healthRow(pool, id)).written).toBe(before.written);
}
