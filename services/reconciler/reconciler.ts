import type { ReconcilerConfig } from '../../lib/config/reconciler.ts';
import { registerProcessMetrics } from '../../lib/metrics/process.ts';
import { reconcileMetrics } from '../../lib/metrics/reconcile.ts';
import { Metrics } from '../../lib/metrics/registry.ts';
import type { RunningService } from '../../lib/runtime/lifecycle.ts';
import type { Logger } from '../../lib/runtime/log.ts';
import { warnUnlessDurable } from '../../lib/store/durability.ts';
import { requireCurrentSchema } from '../../lib/store/migrate.ts';
import { loggedPool, startLink } from '../fleet/connections.ts';
import { FleetMember } from '../fleet/member.ts';
import { startStatusServer } from '../fleet/status-server.ts';
import { Leader } from './leader.ts';
import { Upkeep } from './upkeep.ts';

export interface ReconcilerOptions {
  config: ReconcilerConfig;
  log: Logger;
}

/** Starts a reconciler. Run two: one leads, the other takes over within seconds. Throws when the schema is behind or the database is away. */
export async function startReconciler({
  config,
  log,
}: ReconcilerOptions): Promise<RunningService & { metricsUrl: string }> {
  await requireCurrentSchema(config.databaseUrl);
  const pool = loggedPool(
    {
      url: config.databaseUrl,
      purpose: 'general',
      max: 3,
      applicationName: 'relay-reconciler',
    },
    log,
  );
  await warnUnlessDurable(pool, log);
  const link = await startLink(config.broker, log);
  const member = await new FleetMember({ pool, role: 'reconciler', link, log }).start();
  const metrics = new Metrics({ processMetrics: true });
  const counted = reconcileMetrics(metrics, { leader: () => leader.leading, gauges: () => upkeep.gauges });
  const leader: Leader = new Leader({
    databaseUrl: config.databaseDirectUrl,
    link,
    pollMode: () => member.pollMode,
    batch: config.sweepBatch,
    idleMs: config.sweepIdleMs,
    metrics: counted,
    log,
  });
  const upkeep: Upkeep = new Upkeep({
    pool,
    link,
    leader: () => leader.leading,
    deadConsumerIdleMs: config.deadConsumerIdleMs,
    partitionDaysAhead: config.partitionDaysAhead,
    invariantIntervalMs: config.invariantIntervalMs,
    metrics: counted,
    log,
  });
  await leader.start();
  upkeep.start();
  const loops = [member.loop, leader.loop, ...upkeep.loops];
  registerProcessMetrics(
    metrics,
    loops.map((loop) => loop.name),
    { wake: () => member.wake, brokerUp: () => link?.up ?? false, loops: () => loops },
  );
  const status = await startStatusServer({
    bind: config.metricsBind,
    registry: metrics.registry,
    pool,
    loops,
  });
  log.info({ number: member.number, wake: member.wake, metrics: status.url }, 'reconciler started');
  return {
    metricsUrl: status.url,
    async stop() {
      await Promise.all([leader.stop(), upkeep.stop()]);
      await member.stop();
      await Promise.all([status.close(), link?.stop(), pool.end()]);
      log.info('reconciler stopped');
    },
  };
}
