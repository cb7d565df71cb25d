import type pg from 'pg';
import type { ApiConfig } from '../../lib/config/api.ts';
import { ConfigurationError } from '../../lib/config/env.ts';
import { ingestMetrics } from '../../lib/metrics/ingest.ts';
import { registerProcessMetrics } from '../../lib/metrics/process.ts';
import { Metrics } from '../../lib/metrics/registry.ts';
import type { RunningService } from '../../lib/runtime/lifecycle.ts';
import type { Logger } from '../../lib/runtime/log.ts';
import { pause } from '../../lib/runtime/pause.ts';
import { adminKeyExists, findKeyGrant, touchApiKeys } from '../../lib/store/api-keys.ts';
import { createDatabase } from '../../lib/store/database.ts';
import { warnUnlessDurable } from '../../lib/store/durability.ts';
import { requireCurrentSchema } from '../../lib/store/migrate.ts';
import { findPortalGrant } from '../../lib/store/portal-tokens.ts';
import { requireSecretKeys } from '../../lib/store/secret-box.ts';
import { findTenant } from '../../lib/store/tenants.ts';
import { type Bound, inOneTransaction } from '../../lib/store/transaction.ts';
import { endPools, loggedPool, startLink } from '../fleet/connections.ts';
import { FleetMember } from '../fleet/member.ts';
import type { ApiContext } from './context.ts';
import { Authenticator } from './http/authentication.ts';
import { KeyLimits } from './http/key-limits.ts';
import { KeyUsage } from './http/key-usage.ts';
import { Tenancy } from './http/tenancy.ts';
import { type Acceptor, createAcceptor } from './ingest/acceptor.ts';
import { httpMetrics } from './metrics.ts';
import { Readiness } from './readiness.ts';
import { routes } from './routes.ts';
import { ApiServer } from './server.ts';

const LAME_DUCK_MS = 2_000;
/** What is kept of the shutdown deadline for everything that follows the last answer. */
const LEAVE_MS = 1_500;
/** Requests whose key somebody else holds wait here, so that they hold up nobody. */
const ALONE_CONNECTIONS = 4;
/** Lists and statistics that look through much wait here for each other, and nobody's key does behind them. */
const SEARCH_CONNECTIONS = 4;

export interface ApiOptions {
  config: ApiConfig;
  log: Logger;
  /** How long a stopping API goes on serving, so that clients and proxies move on before its door is shut, ms. */
  lameDuckMs?: number;
}

/**
 * Starts an API: any number of them may run. Throws when the schema is behind, a secret's key is missing, nobody could be let in, or the
 * database is away.
 */
export async function startApi(options: ApiOptions): Promise<RunningService & { url: string }> {
  const { config, log } = options;
  await requireCurrentSchema(config.databaseUrl);
  const pools = createPools(config, log);
  try {
    await requireSecretKeys(pools.general, config.secretKeys);
    await warnUnlessDurable(pools.general, log);
    await requireSomebody(pools.general, config);
    return await start(options, pools);
  } catch (error) {
    await endPools(pools);
    throw error;
  }
}

async function start(
  { config, log, lameDuckMs = LAME_DUCK_MS }: ApiOptions,
  pools: Pools,
): Promise<RunningService & { url: string }> {
  if (!config.authRequired) log.warn('RELAY_AUTH is off: whoever reaches this port may do everything');
  const link = await startLink(config.broker, log);
  const member = await new FleetMember({ pool: pools.general, role: 'api', link, log }).start();
  const metrics = new Metrics({ processMetrics: true });
  const counted = ingestMetrics(metrics, { queued: () => acceptor.queued });
  const acceptor: Acceptor = createAcceptor({
    plainPool: pools.plain,
    keyedPool: pools.keyed,
    alonePool: pools.alone,
    generalPool: pools.general,
    link,
    pollMode: () => member.pollMode,
    liveApis: () => member.fleet.liveApis,
    metrics: counted,
    log,
    lanes: config.ingestConnections,
    maxBatch: config.ingestBatch,
    lingerMs: config.ingestLingerMs,
    maxQueued: config.ingestQueue,
    retentionMs: config.idempotencyRetentionMs,
  });
  registerProcessMetrics(metrics, [member.loop.name], {
    wake: () => member.wake,
    brokerUp: () => link?.up ?? false,
    loops: () => [member.loop],
  });
  const context: ApiContext = {
    config,
    log,
    metrics,
    acceptor,
    ...accessTo(pools.general, config, { liveApis: () => member.fleet.liveApis, log }),
    searchDb: createDatabase(pools.search),
    ingestMetrics: counted,
    httpMetrics: httpMetrics(
      metrics,
      routes.map((route) => route.name),
    ),
  };
  const server = new ApiServer(context);
  const address = await server.listen(config.bind).catch(async (error: unknown) => {
    await Promise.all([context.keyUsage.stop(), member.stop()]);
    await link?.stop();
    throw error;
  });
  const host = address.host.includes(':') ? `[${address.host}]` : address.host;
  const url = `http://${host === '0.0.0.0' || host === '[::]' ? '127.0.0.1' : host}:${address.port}`;
  log.info({ number: member.number, wake: member.wake, url }, 'api started');
  return {
    url,
    async stop() {
      const deadline = performance.now() + config.shutdownDeadlineMs;
      const left = () => Math.max(0, deadline - performance.now());
      await server.drain({ lameDuckMs, deadlineMs: Math.max(0, left() - LEAVE_MS) });
      const leave = async () => {
        await acceptor.close();
        await Promise.all([context.keyUsage.stop(), member.stop()]);
        await Promise.all([link?.stop(), endPools(pools)]);
      };
      // The database may be away: what is committed is committed, and nobody waits for an answer any more.
      await Promise.race([
        leave().catch((err: unknown) => log.warn({ err }, 'left untidily')),
        pause(left()),
      ]);
      log.info('api stopped');
    },
  };
}

function accessTo(
  pool: pg.Pool,
  config: ApiConfig,
  { liveApis, log }: { liveApis: () => number; log: Logger },
) {
  const db = createDatabase(pool);
  return {
    pool,
    db,
    transact: <T>(work: (bound: Bound) => Promise<T>) => inOneTransaction(pool, work),
    authenticator: new Authenticator({
      lookUpKey: (keyHash) => findKeyGrant(pool, keyHash),
      lookUpToken: (tokenHash) => findPortalGrant(pool, tokenHash),
      adminKey: config.adminKey,
      required: config.authRequired,
    }),
    tenancy: new Tenancy(async (tenantId) => (await findTenant(db, tenantId)) !== null),
    keyLimits: new KeyLimits({ perSecond: config.keyRatePerSecond, liveApis }),
    keyUsage: new KeyUsage((keyIds) => touchApiKeys(pool, keyIds), log),
    readiness: new Readiness(pool, config),
  };
}

async function requireSomebody(pool: pg.Pool, config: ApiConfig): Promise<void> {
  if (!config.authRequired || config.adminKey !== null || (await adminKeyExists(pool))) return;
  throw new ConfigurationError(
    'RELAY_ADMIN_KEY: is needed, because the database holds no admin key and nobody could make one; ' +
      'to let everybody in instead, say RELAY_AUTH=off',
  );
}

type Pools = ReturnType<typeof createPools>;

function createPools(config: ApiConfig, log: Logger) {
  const pool = (purpose: 'ingest' | 'ingest_alone' | 'general' | 'search', name: string, max: number) =>
    loggedPool(
      {
        url: config.databaseUrl,
        purpose,
        max,
        applicationName: `relay-api-${name}`,
      },
      log,
    );
  return {
    plain: pool('ingest', 'plain', config.ingestConnections),
    keyed: pool('ingest', 'keyed', config.ingestConnections),
    alone: pool('ingest_alone', 'alone', ALONE_CONNECTIONS),
    general: pool('general', 'general', config.readConnections),
    search: pool('search', 'search', SEARCH_CONNECTIONS),
  };
}
