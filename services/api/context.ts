import type { ApiConfig } from '../../lib/config/api.ts';
import type { IngestMetrics } from '../../lib/metrics/ingest.ts';
import type { Metrics } from '../../lib/metrics/registry.ts';
import type { Logger } from '../../lib/runtime/log.ts';
import type { Database } from '../../lib/store/database.ts';
import type { Queryable } from '../../lib/store/pool.ts';
import type { Authenticator } from './http/authentication.ts';
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
  acceptor: Acceptor;
  authenticator: Authenticator;
  tenancy: Tenancy;
  keyUsage: KeyUsage;
  readiness: Readiness;
  metrics: Metrics;
  ingestMetrics: IngestMetrics;
  httpMetrics: HttpMetrics;
  log: Logger;
}
