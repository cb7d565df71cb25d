import type { Pool } from 'pg';

/** An answer that took longer says little about the moment at which it was given. */
const MAX_ROUND_TRIP_MS = 1_000;

/** How far the database's clock is ahead of this process's, ms; null when the answer took too long to tell. */
export async function measureClockAhead(pool: Pool): Promise<number | null> {
  const [clock, startedAt] = [Date.now(), performance.now()];
  const { rows } = await pool.query<{ now: number }>(
    'select (extract(epoch from clock_timestamp()) * 1000)::float8 as now',
  );
  const tookMs = performance.now() - startedAt;
  if (tookMs > MAX_ROUND_TRIP_MS) return null;
  return rows[0]!.now - (clock + tookMs / 2);
}
