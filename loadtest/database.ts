import pg from 'pg';
import type { LatencySummary } from './latency.ts';

/** What Postgres says about itself; opened only where the database may be looked into. */
export interface Database {
  settings(): Promise<DatabaseSettings>;
  /** Running totals, to be subtracted from one another. */
  totals(): Promise<DatabaseTotals>;
  /** What became of deliveries that did not arrive. */
  whereabouts(deliveryIds: readonly string[]): Promise<Whereabouts>;
  /** How late sends began after they were due, since a moment (ms, epoch); null when nothing was recorded. */
  lateness(sinceMs: number): Promise<LatencySummary | null>;
  /** Starts the list of statements anew; without pg_stat_statements nothing happens. */
  resetStatements(): Promise<void>;
  /** The dearest statements since then; null without pg_stat_statements. */
  statements(): Promise<StatementCost[] | null>;
  close(): Promise<void>;
}

export interface DatabaseSettings {
  version: string;
  fsync: string;
  synchronous_commit: string;
}

export interface DatabaseTotals {
  walBytes: number;
  commits: number;
}

export interface Whereabouts {
  /** Still owed: late, not lost. */
  pending: number;
  /** Given up, with a reason that the dead-letter list tells. */
  dead: number;
  /** Marked as succeeded, though the receiver knows nothing of it. */
  succeeded: number;
  /** No row: lost. */
  absent: number;
}

export interface StatementCost {
  calls: number;
  rows: number;
  totalMs: number;
  text: string;
}

const CHUNK = 10_000;
const LISTED = 40;

export async function openDatabase(url: string): Promise<Database> {
  // One connection, which is made anew after a restart of the server; the event of its end alone must not end the process.
  const client = new pg.Pool({ connectionString: url, application_name: 'relay-loadtest', max: 1 });
  client.on('error', () => undefined);
  const one = async <T extends object>(text: string, values: unknown[] = []): Promise<T> => {
    const { rows } = await client.query<T>(text, values);
    return rows[0]!;
  };
  const { loaded } = await one<{ loaded: boolean }>(
    `select current_setting('shared_preload_libraries') ~ 'pg_stat_statements' as loaded`,
  );
  if (loaded) await client.query('create extension if not exists pg_stat_statements');
  return {
    settings: () =>
      one(`select current_setting('server_version') as version, current_setting('fsync') as fsync,
        current_setting('synchronous_commit') as synchronous_commit`),
    async totals() {
      const row = await one<{ wal: string; commits: string }>(
        `select (select wal_bytes from pg_stat_wal) as wal,
           (select xact_commit from pg_stat_database where datname = current_database()) as commits`,
      );
      return { walBytes: Number(row.wal), commits: Number(row.commits) };
    },
    whereabouts: (ids) => whereabouts(client, ids),
    lateness: (sinceMs) => lateness(client, sinceMs),
    async resetStatements() {
      if (loaded) await client.query('select pg_stat_statements_reset()');
    },
    statements: async () => (loaded ? statements(client) : null),
    close: () => client.end(),
  };
}

async function whereabouts(client: pg.Pool, ids: readonly string[]): Promise<Whereabouts> {
  const found: Whereabouts = { pending: 0, dead: 0, succeeded: 0, absent: ids.length };
  for (let from = 0; from < ids.length; from += CHUNK) {
    const { rows } = await client.query<{ status: 'pending' | 'dead' | 'succeeded'; count: string }>(
      'select status, count(*) from relay.deliveries where id = any($1::uuid[]) group by status',
      [ids.slice(from, from + CHUNK)],
    );
    for (const { status, count } of rows) {
      found[status] += Number(count);
      found.absent -= Number(count);
    }
  }
  return found;
}

async function lateness(client: pg.Pool, sinceMs: number): Promise<LatencySummary | null> {
  const { rows } = await client.query<Record<keyof LatencySummary, string>>(
    `select count(*) as count, avg(lateness_ms) as mean, max(lateness_ms) as max,
       percentile_disc(0.5) within group (order by lateness_ms) as p50,
       percentile_disc(0.9) within group (order by lateness_ms) as p90,
       percentile_disc(0.99) within group (order by lateness_ms) as p99,
       percentile_disc(0.999) within group (order by lateness_ms) as p999
     from relay.delivery_attempts
     where class = 'success' and lateness_ms is not null and at >= to_timestamp($1::float8 / 1000)`,
    [sinceMs],
  );
  const row = rows[0]!;
  if (Number(row.count) === 0) return null;
  const summary = Object.entries(row).map(([name, value]) => [name, Math.round(Number(value) * 100) / 100]);
  return Object.fromEntries(summary) as LatencySummary;
}

async function statements(client: pg.Pool): Promise<StatementCost[]> {
  const { rows } = await client.query<{ calls: string; rows: string; ms: number; query: string }>(
    `select calls, rows, total_exec_time + total_plan_time as ms, query
     from pg_stat_statements where dbid = (select oid from pg_database where datname = current_database())
     order by 3 desc limit ${LISTED}`,
  );
  return rows.map(({ calls, rows: count, ms, query }) => ({
    calls: Number(calls),
    rows: Number(count),
    totalMs: Math.round(ms),
    text: query.replace(/\s+/g, ' ').trim().slice(0, 120),
  }));
}
