import type { Pool } from 'pg';
import type { Logger } from '../runtime/log.ts';

/** Says so when this server may forget what it has committed: a 202 then promises less than it should. */
export async function warnUnlessDurable(pool: Pool, log: Logger): Promise<void> {
  const { rows } = await pool.query<{ fsync: string; synchronous_commit: string; full_page_writes: string }>(
    `select current_setting('fsync') as fsync, current_setting('synchronous_commit') as synchronous_commit,
       current_setting('full_page_writes') as full_page_writes`,
  );
  const off = Object.entries(rows[0] ?? {}).filter(([, value]) => value === 'off');
  for (const [setting] of off) {
    log.warn({ setting }, 'Postgres may lose committed events in a crash: this setting is off');
  }
}
