import type pg from 'pg';

/**
 * What the database holds, table by table, as text that can be compared: without beats, without when a key was last used, and without what
 * stands under one tenant, when one is to be left out.
 */
export async function dumpOf(pool: pg.Pool, without: string): Promise<Record<string, string[]>> {
  const tables = await pool.query<{ name: string }>(
    `select c.relname as name from pg_class c
     where c.relnamespace = 'relay'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
       and c.relname <> 'process_heartbeats' order by 1`,
  );
  const dump: Record<string, string[]> = {};
  for (const { name } of tables.rows) {
    const { rows } = await pool.query<{ row: string }>(
      `select row::text from (select to_jsonb(t) - 'last_used_at' as row from relay.${name} t) r
       where (row ->> 'tenant_id') is distinct from $1 order by 1`,
      [without],
    );
    dump[name] = rows.map(({ row }) => row);
  }
  return dump;
}
