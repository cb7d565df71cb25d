import { z } from 'zod';
import { type Bind, bindAddress, type Env, parseEnv, seconds, wholeNumber } from './env.ts';
import { type SharedConfig, sharedSettings, toSharedConfig } from './shared.ts';

export interface ReconcilerConfig extends SharedConfig {
  metricsBind: Bind;
  sweepBatch: number;
  sweepIdleMs: number;
  partitionDaysAhead: number;
  /** A consumer of the group that nobody has been for this long, and that holds nothing, is removed. */
  deadConsumerIdleMs: number;
  invariantIntervalMs: number;
}

const ReconcilerEnv = z.object({
  ...sharedSettings,
  RELAY_METRICS_BIND: bindAddress('0.0.0.0:9092'),
  RELAY_SWEEP_BATCH: wholeNumber({ min: 1, max: 10_000, default: 1024 }),
  RELAY_SWEEP_IDLE_MS: wholeNumber({ min: 10, max: 200, default: 200 }),
  RELAY_BROKER_DEAD_CONSUMER_SECS: seconds(60, { min: 5, max: 86_400 }),
  RELAY_PARTITION_DAYS_AHEAD: wholeNumber({ min: 1, max: 365, default: 14 }),
  RELAY_INVARIANT_INTERVAL_SECS: seconds(86_400),
});

/** Reads a reconciler's settings; throws ConfigurationError. */
export function parseReconcilerConfig(env: Env): ReconcilerConfig {
  const parsed = parseEnv(ReconcilerEnv, env);
  return {
    ...toSharedConfig(parsed),
    metricsBind: parsed.RELAY_METRICS_BIND,
    sweepBatch: parsed.RELAY_SWEEP_BATCH,
    sweepIdleMs: parsed.RELAY_SWEEP_IDLE_MS,
    deadConsumerIdleMs: parsed.RELAY_BROKER_DEAD_CONSUMER_SECS,
    partitionDaysAhead: parsed.RELAY_PARTITION_DAYS_AHEAD,
    invariantIntervalMs: parsed.RELAY_INVARIANT_INTERVAL_SECS,
  };
}
