import type { Pool } from 'pg';
import { HEARTBEAT_FRESH_MS } from '../domain/limits.ts';
import type { WakeMode } from '../domain/vocabulary.ts';

export type ProcessRole = 'api' | 'dispatcher' | 'reconciler';

export interface Fleet {
  /** Any live process says `poll`: all must look into the queue themselves. */
  poll: boolean;
  liveApis: number;
  liveDispatchers: number;
  /** How many live dispatchers were registered before this process. */
  dispatchersBefore: number;
}

/** Enters a process into the table and returns its number, which names it in `queue.claimed_by`. */
export async function registerProcess(
  pool: Pool,
  process: { id: string; role: ProcessRole; wake: WakeMode },
): Promise<number> {
  const { rows } = await pool.query<{ number: number }>(
    `insert into relay.process_heartbeats (id, role, wake) values ($1, $2, $3)
     on conflict (id) do update set beat_at = now(), wake = excluded.wake
     returning number`,
    [process.id, process.role, process.wake],
  );
  const [row] = rows;
  if (!row) throw new Error('a process could not be entered into process_heartbeats');
  return row.number;
}

const BEAT = `
with mine as (
  update relay.process_heartbeats set beat_at = now(), wake = $2 where number = $1 returning number
)
select coalesce(bool_or(h.wake = 'poll'), false) as poll,
  count(*) filter (where h.role = 'api')::integer as apis,
  count(*) filter (where h.role = 'dispatcher')::integer as dispatchers,
  count(*) filter (where h.role = 'dispatcher' and h.number < $1)::integer as before,
  exists (select from mine) as known
from relay.process_heartbeats h
where h.beat_at > now() - interval '${HEARTBEAT_FRESH_MS} ms' and h.number <> $1`;

/** Beats, and reads what the rest of the fleet says. Null when the process's row was removed: it must register again. */
export async function beat(
  pool: Pool,
  process: { number: number; role: ProcessRole; wake: WakeMode },
): Promise<Fleet | null> {
  const { rows } = await pool.query<{
    poll: boolean;
    apis: number;
    dispatchers: number;
    before: number;
    known: boolean;
  }>({
    name: 'relay_beat',
    text: BEAT,
    values: [process.number, process.wake],
  });
  const [row] = rows;
  if (!row?.known) return null;
  return {
    poll: row.poll || process.wake === 'poll',
    liveApis: row.apis + (process.role === 'api' ? 1 : 0),
    liveDispatchers: row.dispatchers + (process.role === 'dispatcher' ? 1 : 0),
    dispatchersBefore: row.before,
  };
}

/** Leaves the fleet at a clean stop, so that nobody waits for the beat to grow old. */
export async function unregisterProcess(pool: Pool, number: number): Promise<void> {
  await pool.query('delete from relay.process_heartbeats where number = $1', [number]);
}

/** Removes rows of processes that have been silent for a day. */
export async function forgetDeadProcesses(pool: Pool): Promise<number> {
  const { rowCount } = await pool.query(
    `delete from relay.process_heartbeats where beat_at < now() - interval '1 day'`,
  );
  return rowCount ?? 0;
}
