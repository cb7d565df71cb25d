import type { Pool } from 'pg';

/** Throws when the database does not answer. */
export async function pingDatabase(pool: Pool): Promise<void> {
  await pool.query('select 1');
}

/** The age of the newest beat of any dispatcher, ms by the database's clock; null when none ever beat. */
export async function newestDispatcherBeatMs(pool: Pool): Promise<number | null> {
  const { rows } = await pool.query<{ age: number | null }>(
    `select (extract(epoch from now() - max(beat_at)) * 1000)::float8 as age
    from relay.process_heartbeats where role = 'dispatcher'`,
  );
  return rows[0]!.age;
}

/** How long the delivery that is late by most has been due without anybody sending it, ms; null when none is late. */
export async function queueLatenessMs(pool: Pool): Promise<number | null> {
  const { rows } = await pool.query<{ late: number | null }>(
    `select (extract(epoch from now() - min(due_at)) * 1000)::float8 as late
    from relay.queue where due_at <= now() and lease_expires_at is null and not cancel_requested`,
  );
  return rows[0]!.late;
}
