import pg from 'pg';

/** A pool or one connection: where a single statement can run. */
export interface Queryable {
  query<R extends pg.QueryResultRow>(statement: pg.QueryConfig): Promise<pg.QueryResult<R>>;
}

/** What a connection is for decides its settings; they travel in the start-up packet, so no connection is ever without them. */
export type PoolPurpose = 'ingest' | 'ingest_alone' | 'hot' | 'sweep' | 'general' | 'search' | 'migrate';

const COMMON = ['timezone=UTC', 'tcp_keepalives_idle=30', 'jit=off'];

// On a young or nearly empty table the planner prefers to read all of it; these statements know their index. (The plan is
// proved by tests, on an unanalysed table too.)
const INDEXES_ONLY = [
  'enable_seqscan=off',
  'enable_hashjoin=off',
  'enable_mergejoin=off',
  'enable_bitmapscan=off',
];

// So the plan need not be made anew for each call either: for a batch of 20 rows, planning was a tenth of the statement.
const BY_INDEX = [...INDEXES_ONLY, 'plan_cache_mode=force_generic_plan'];

/** How long a search may take, ms. */
export const SEARCH_LIMIT_MS = 5_000;

const SETTINGS: Record<PoolPurpose, readonly string[]> = {
  // A key held by somebody's open transaction must stop only those who use that key.
  ingest: [...BY_INDEX, 'lock_timeout=250', 'statement_timeout=10000'],
  // Whoever is tried alone may well meet a held key: it waits outside, without a connection.
  ingest_alone: [...BY_INDEX, 'lock_timeout=20', 'statement_timeout=10000'],
  hot: [...BY_INDEX, 'statement_timeout=15000'],
  sweep: [...BY_INDEX, 'statement_timeout=5000', 'idle_in_transaction_session_timeout=10000'],
  // Building an index on a large table takes as long as it takes; waiting for a lock must not stall the traffic behind it.
  migrate: ['lock_timeout=10000'],
  general: ['statement_timeout=15000', 'idle_in_transaction_session_timeout=30000'],
  // Reads that look through many rows for one page: whoever asks for too much is told so.
  search: [...INDEXES_ONLY, `statement_timeout=${SEARCH_LIMIT_MS}`],
};

export interface PoolOptions {
  url: string;
  purpose: PoolPurpose;
  max: number;
  applicationName: string;
  /** Told of a connection that died while idle; the pool replaces it. */
  onIdleError?: (error: Error) => void;
}

/**
 * A pool whose connections carry the settings of their purpose. An idle connection that dies is reported and replaced; a
 * connection that cannot be had within 5 s, or an answer that takes over 20 s (12 s for a commit that a producer waits for), is an error.
 */
export function createPool(options: PoolOptions): pg.Pool {
  const pool = new pg.Pool({
    connectionString: options.url,
    max: options.max,
    application_name: options.applicationName,
    options: startupOptions(options.purpose),
    connectionTimeoutMillis: 5_000,
    idleTimeoutMillis: 60_000,
    ...(options.purpose === 'migrate' ? {} : { query_timeout: answerLimitMs(options.purpose) }),
    keepAlive: true,
    keepAliveInitialDelayMillis: 5_000,
  });
  pool.on('error', (error) => options.onIdleError?.(error));
  // A connection that breaks while somebody holds it fails that one's query and then says so as an event too, which nobody would hear:
  // an unheard error event ends the process.
  pool.on('connect', (client) => client.on('error', () => undefined));
  return pool;
}

// A little longer than the server's own limit: only a connection that is dead is this late.
function answerLimitMs(purpose: PoolPurpose): number {
  return purpose === 'ingest' || purpose === 'ingest_alone' ? 12_000 : 20_000;
}

export function startupOptions(purpose: PoolPurpose): string {
  return [...COMMON, ...SETTINGS[purpose]].map((setting) => `-c ${setting}`).join(' ');
}
