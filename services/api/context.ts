import type { ApiConfig } from '../../lib/config/api.ts';
import type { IngestMetrics } from '../../lib/metrics/ingest.ts';
import type { Metrics } from '../../lib/metrics/registry.ts';
import type { Logger } from '../../lib/runtime/log.ts';
import type { Database } from '../../lib/store/database.ts';
import type { Queryable } from '../../lib/store/pool.ts';
import type { Bound } from '../../lib/store/transaction.ts';
import type { Authenticator } from './http/authentication.ts';
import type { KeyLimits } from './http/key-limits.ts';
import type { KeyUsage } from './http/key-usage.ts';
import type { Tenancy } from './http/tenancy.ts';
import type { Acceptor } from './ingest/acceptor.ts';
import type { HttpMetrics } from './metrics.ts';
import type { Readiness } from './readiness.ts';

/** What the handlers of the API work with. */
export interface ApiContext {
  config: ApiConfig;
  /** For single statements; in a handler that changes something they run in the transaction of its audit row. */
  pool: Queryable;
  db: Database;
  /** Runs work in one transaction of the general pool. */
  transact: <T>(work: (bound: Bound) => Promise<T>) => Promise<T>;
  /** For reads that look through many rows, on connections that nothing else waits for; see `search`. */
  searchDb: Database;
  acceptor: Acceptor;
  authenticator: Authenticator;
  tenancy: Tenancy;
  keyLimits: KeyLimits;
  keyUsage: KeyUsage;
  readiness: Readiness;
  metrics: Metrics;
  ingestMetrics: IngestMetrics;
  httpMetrics: HttpMetrics;
  log: Logger;
}
