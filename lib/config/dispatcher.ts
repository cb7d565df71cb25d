import { z } from 'zod';
import type { BreakerPolicy } from '../domain/breaker.ts';
import { LOCAL_WAIT_MS, SETTLE_MARGIN_MS } from '../domain/limits.ts';
import { type Bind, bindAddress, type Env, onOff, parseEnv, seconds, wholeNumber } from './env.ts';
import { parseSecretKeys, type SecretKeys, secretKeysSetting } from './secret-keys.ts';
import {
  type DestinationPolicyConfig,
  destinationSettings,
  headerPrefixSetting,
  portsProblem,
  type SharedConfig,
  sharedSettings,
  toDestinationPolicy,
  toSharedConfig,
} from './shared.ts';
import { type SmtpConfig, smtpProblems, smtpSettings, toSmtpConfig } from './smtp.ts';

export interface RetryPolicyConfig {
  maxAttempts: number;
  baseMs: number;
  factor: number;
  capMs: number;
}

export interface DispatcherConfig extends SharedConfig {
  metricsBind: Bind;
  secretKeys: SecretKeys;
  destination: DestinationPolicyConfig;
  leaseMs: number;
  requestTimeoutMs: number;
  connectTimeoutMs: number;
  idleTimeoutMs: number;
  maxResponseBytes: number;
  maxInFlight: number;
  maxIdleClients: number;
  claimBatch: number;
  claimLingerMs: number;
  claimConnections: number;
  settleBatch: number;
  settleLingerMs: number;
  settleConnections: number;
  blockMs: number;
  takeoverIdleMs: number;
  pollIntervalMs: number;
  shutdownDeadlineMs: number;
  retryPolicy: RetryPolicyConfig;
  headerPrefix: string;
  /** Null: no email goes out. */
  smtp: SmtpConfig | null;
  breaker: BreakerPolicy;
  /** Off: only the caps hold an endpoint's deliveries back. */
  rateLimit: boolean;
  /** How long an endpoint may do nothing but fail before it is disabled; null: for ever. */
  autoDisableMs: number | null;
}

const DAY_MS = 86_400_000;

const DispatcherEnv = z
  .object({
    ...sharedSettings,
    ...destinationSettings,
    RELAY_METRICS_BIND: bindAddress('0.0.0.0:9091'),
    RELAY_SECRET_KEYS: secretKeysSetting,
    RELAY_LEASE_TTL_SECS: seconds(30, { max: 3600 }),
    RELAY_REQUEST_TIMEOUT_SECS: seconds(10, { max: 600 }),
    RELAY_CONNECT_TIMEOUT_SECS: seconds(5, { max: 600 }),
    RELAY_READ_TIMEOUT_SECS: seconds(5, { max: 600 }),
    RELAY_MAX_RESPONSE_BYTES: wholeNumber({ min: 0, max: 65_536, default: 2048 }),
    RELAY_MAX_IN_FLIGHT: wholeNumber({ min: 1, max: 10_000, default: 256 }),
    RELAY_MAX_IDLE_CLIENTS: wholeNumber({ min: 1, max: 50_000, default: 1024 }),
    RELAY_BATCH_SIZE: wholeNumber({ min: 1, max: 128, default: 128 }),
    RELAY_CLAIM_LINGER_MS: wholeNumber({ min: 0, max: 1000, default: 10 }),
    RELAY_CLAIM_CONNECTIONS: wholeNumber({ min: 1, max: 16, default: 2 }),
    RELAY_SETTLE_LINGER_MS: wholeNumber({ min: 0, max: 1000, default: 15 }),
    RELAY_SETTLE_CONNECTIONS: wholeNumber({ min: 1, max: 16, default: 2 }),
    RELAY_BROKER_BLOCK_MS: wholeNumber({ min: 10, max: 10_000, default: 1_000 }),
    RELAY_BROKER_RECLAIM_IDLE_SECS: seconds(30, { min: 15, max: 3600 }),
    RELAY_IDLE_POLL_MS: wholeNumber({ min: 10, max: 1000, default: 250 }),
    RELAY_SHUTDOWN_DEADLINE_SECS: seconds(15, { max: 600 }),
    RELAY_MAX_ATTEMPTS: wholeNumber({ min: 1, max: 1000, default: 16 }),
    RELAY_RETRY_BASE_MS: wholeNumber({ min: 1, max: 86_400_000, default: 10_000 }),
    RELAY_RETRY_FACTOR: z
      .string()
      .regex(/^\d+(\.\d+)?$/, 'must be a number of at least 1')
      .transform(Number)
      .refine((value) => value >= 1 && value <= 100, { error: 'must lie between 1 and 100' })
      .default(3),
    RELAY_RETRY_CAP_SECS: seconds(43_200, { max: 604_800 }),
    RELAY_BREAKER: onOff(true),
    RELAY_BREAKER_THRESHOLD: wholeNumber({ min: 1, max: 1000, default: 5 }),
    RELAY_BREAKER_COOLDOWN_SECS: seconds(30, { max: 86_400 }),
    RELAY_BREAKER_MAX_COOLDOWN_SECS: seconds(300, { max: 86_400 }),
    RELAY_RATE_LIMIT: onOff(true),
    RELAY_AUTO_DISABLE_DAYS: wholeNumber({ min: 0, max: 3650, default: 5 }),
    RELAY_HEADER_PREFIX: headerPrefixSetting,
    ...smtpSettings,
  })
  .superRefine((env, context) => {
    const fault = (path: string, message: string) =>
      context.addIssue({ code: 'custom', path: [path], message });
    const ports = portsProblem(env.RELAY_ALLOWED_PORTS);
    if (ports) fault('RELAY_ALLOWED_PORTS', ports);
    for (const [name, rule] of smtpProblems(env)) fault(name, rule);
    const busyMs = LOCAL_WAIT_MS + env.RELAY_REQUEST_TIMEOUT_SECS + SETTLE_MARGIN_MS;
    if (env.RELAY_LEASE_TTL_SECS <= busyMs) {
      fault(
        'RELAY_LEASE_TTL_SECS',
        `must exceed RELAY_REQUEST_TIMEOUT_SECS by more than ${(LOCAL_WAIT_MS + SETTLE_MARGIN_MS) / 1000} s ` +
          `(so be over ${busyMs / 1000}), or a second dispatcher sends while the first still waits`,
      );
    }
    for (const name of ['RELAY_CONNECT_TIMEOUT_SECS', 'RELAY_READ_TIMEOUT_SECS'] as const) {
      if (env[name] > env.RELAY_REQUEST_TIMEOUT_SECS) {
        fault(name, 'must not exceed RELAY_REQUEST_TIMEOUT_SECS, or it could never be reached');
      }
    }
    if (env.RELAY_BREAKER_MAX_COOLDOWN_SECS < env.RELAY_BREAKER_COOLDOWN_SECS) {
      fault(
        'RELAY_BREAKER_MAX_COOLDOWN_SECS',
        'must not be below RELAY_BREAKER_COOLDOWN_SECS, which a cooldown begins with',
      );
    }
    if (env.RELAY_RETRY_CAP_SECS < env.RELAY_RETRY_BASE_MS) {
      fault('RELAY_RETRY_CAP_SECS', 'must not be below RELAY_RETRY_BASE_MS, or no delay would grow');
    }
  });

/** Reads a dispatcher's settings; throws ConfigurationError. */
export function parseDispatcherConfig(env: Env): DispatcherConfig {
  const parsed = parseEnv(DispatcherEnv, env);
  const destination = toDestinationPolicy(parsed);
  return {
    ...toSharedConfig(parsed),
    metricsBind: parsed.RELAY_METRICS_BIND,
    secretKeys: parseSecretKeys(parsed.RELAY_SECRET_KEYS),
    destination,
    leaseMs: parsed.RELAY_LEASE_TTL_SECS,
    requestTimeoutMs: parsed.RELAY_REQUEST_TIMEOUT_SECS,
    connectTimeoutMs: parsed.RELAY_CONNECT_TIMEOUT_SECS,
    idleTimeoutMs: parsed.RELAY_READ_TIMEOUT_SECS,
    maxResponseBytes: parsed.RELAY_MAX_RESPONSE_BYTES,
    maxInFlight: parsed.RELAY_MAX_IN_FLIGHT,
    maxIdleClients: parsed.RELAY_MAX_IDLE_CLIENTS,
    claimBatch: parsed.RELAY_BATCH_SIZE,
    claimLingerMs: parsed.RELAY_CLAIM_LINGER_MS,
    claimConnections: parsed.RELAY_CLAIM_CONNECTIONS,
    settleBatch: parsed.RELAY_BATCH_SIZE,
    settleLingerMs: parsed.RELAY_SETTLE_LINGER_MS,
    settleConnections: parsed.RELAY_SETTLE_CONNECTIONS,
    blockMs: parsed.RELAY_BROKER_BLOCK_MS,
    takeoverIdleMs: parsed.RELAY_BROKER_RECLAIM_IDLE_SECS,
    pollIntervalMs: parsed.RELAY_IDLE_POLL_MS,
    shutdownDeadlineMs: parsed.RELAY_SHUTDOWN_DEADLINE_SECS,
    retryPolicy: {
      maxAttempts: parsed.RELAY_MAX_ATTEMPTS,
      baseMs: parsed.RELAY_RETRY_BASE_MS,
      factor: parsed.RELAY_RETRY_FACTOR,
      capMs: parsed.RELAY_RETRY_CAP_SECS,
    },
    headerPrefix: parsed.RELAY_HEADER_PREFIX,
    smtp: toSmtpConfig(parsed, destination),
    breaker: {
      enabled: parsed.RELAY_BREAKER,
      threshold: parsed.RELAY_BREAKER_THRESHOLD,
      cooldownMs: parsed.RELAY_BREAKER_COOLDOWN_SECS,
      maxCooldownMs: parsed.RELAY_BREAKER_MAX_COOLDOWN_SECS,
    },
    rateLimit: parsed.RELAY_RATE_LIMIT,
    autoDisableMs: parsed.RELAY_AUTO_DISABLE_DAYS === 0 ? null : parsed.RELAY_AUTO_DISABLE_DAYS * DAY_MS,
  };
}
