import type { ReconcilerConfig } from '../../lib/config/reconciler.ts';
import { registerProcessMetrics } from '../../lib/metrics/process.ts';
import { rateMetrics } from '../../lib/metrics/rate.ts';
import { reconcileMetrics } from '../../lib/metrics/reconcile.ts';
import { Metrics } from '../../lib/metrics/registry.ts';
import type { RunningService } from '../../lib/runtime/lifecycle.ts';
import type { Logger } from '../../lib/runtime/log.ts';
import { warnUnlessDurable } from '../../lib/store/durability.ts';
import { requireCurrentSchema } from '../../lib/store/migrate.ts';
import { readHorizons } from '../../lib/store/slots.ts';
import { loggedPool, startLink } from '../fleet/connections.ts';
import { FleetMember } from '../fleet/member.ts';
import { FleetRateLimiter } from '../fleet/rate-limiter.ts';
import { startStatusServer } from '../fleet/status-server.ts';
import { FanOuts } from './fan-outs.ts';
import { EndpointJobs } from './jobs.ts';
import { Leader } from './leader.ts';
import { ReplayJobs } from './replays.ts';
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
  const jobsPool = loggedPool(
    { url: config.databaseUrl, purpose: 'sweep', max: 1, applicationName: 'relay-reconciler-jobs' },
    log,
  );
  const replaysPool = loggedPool(
    { url: config.databaseUrl, purpose: 'sweep', max: 1, applicationName: 'relay-reconciler-replays' },
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
  const jobs = new EndpointJobs({
    pool: jobsPool,
    limiter: new FleetRateLimiter({
      link,
      readHorizons: (endpoints) => readHorizons(jobsPool, endpoints),
      // It gives out slots and sends nothing, and only the leader does: nobody has a part of the rate beside it.
      liveDispatchers: () => 1,
      metrics: rateMetrics(metrics),
    }),
    leader: () => leader.leading,
    metrics: counted,
    log,
  });
  const replays = new ReplayJobs({
    pool: replaysPool,
    leader: () => leader.leading,
    metrics: counted,
    log,
  });
  const fanOuts = new FanOuts({ pool: jobsPool, leader: () => leader.leading, metrics: counted, log });
  await leader.start();
  upkeep.start();
  jobs.start();
  fanOuts.start();
  replays.start();
  const loops = [member.loop, leader.loop, jobs.loop, fanOuts.loop, replays.loop, ...upkeep.loops];
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
      await Promise.all([leader.stop(), upkeep.stop(), jobs.stop(), fanOuts.stop(), replays.stop()]);
      await member.stop();
      await Promise.all([status.close(), link?.stop(), pool.end(), jobsPool.end(), replaysPool.end()]);
      log.info('reconciler stopped');
    },
  };
}
