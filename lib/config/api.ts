import { z } from 'zod';
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

export interface ApiConfig extends SharedConfig {
  bind: Bind;
  /** Lets an operator in before any key exists; null when keys in the database are the only way. */
  adminKey: string | null;
  authRequired: boolean;
  secretKeys: SecretKeys;
  destination: DestinationPolicyConfig;
  secretOverlapMs: number;
  /** What endpoints without a header prefix of their own go by: no custom header may begin with it. */
  headerPrefix: string;
  /** The limits of one send that the dispatchers are configured with: no endpoint may ask for more. */
  requestTimeoutMs: number;
  connectTimeoutMs: number;
  idleTimeoutMs: number;
  idempotencyRetentionMs: number;
  heartbeatMaxAgeMs: number;
  maxLatenessMs: number;
  /** How long a client may take to send a request body. */
  bodyTimeoutMs: number;
  ingestConnections: number;
  ingestBatch: number;
  ingestLingerMs: number;
  /** Requests that may wait for their commit; past it the answer is 503. */
  ingestQueue: number;
  readConnections: number;
  /** Requests per second of a key that has no limit of its own; 0 for no limit. */
  keyRatePerSecond: number;
  shutdownDeadlineMs: number;
}

const ApiEnv = z
  .object({
    ...sharedSettings,
    ...destinationSettings,
    RELAY_API_BIND: bindAddress('0.0.0.0:8080'),
    RELAY_ADMIN_KEY: z.string().min(16, 'must have at least 16 characters: it opens everything').optional(),
    RELAY_AUTH: onOff(true),
    RELAY_SECRET_KEYS: secretKeysSetting,
    RELAY_SECRET_OVERLAP_SECS: seconds(86_400),
    RELAY_HEADER_PREFIX: headerPrefixSetting,
    RELAY_REQUEST_TIMEOUT_SECS: seconds(10, { max: 600 }),
    RELAY_CONNECT_TIMEOUT_SECS: seconds(5, { max: 600 }),
    RELAY_READ_TIMEOUT_SECS: seconds(5, { max: 600 }),
    RELAY_IDEMPOTENCY_RETENTION_SECS: seconds(86_400),
    RELAY_HEARTBEAT_MAX_AGE_SECS: seconds(20, { min: 6 }),
    RELAY_MAX_LATENESS_SECS: seconds(60),
    RELAY_BODY_TIMEOUT_SECS: seconds(10),
    RELAY_INGEST_CONNECTIONS: wholeNumber({ min: 1, max: 16, default: 2 }),
    RELAY_INGEST_BATCH: wholeNumber({ min: 1, max: 1000, default: 256 }),
    RELAY_INGEST_LINGER_MS: wholeNumber({ min: 0, max: 100, default: 3 }),
    RELAY_INGEST_QUEUE: wholeNumber({ min: 1, max: 100_000, default: 10_000 }),
    RELAY_DB_CONNECTIONS: wholeNumber({ min: 1, max: 200, default: 8 }),
    RELAY_KEY_RATE_PER_SECOND: wholeNumber({ min: 0, max: 1_000_000, default: 0 }),
    RELAY_SHUTDOWN_DEADLINE_SECS: seconds(15),
  })
  .superRefine((env, context) => {
    const ports = portsProblem(env.RELAY_ALLOWED_PORTS);
    if (ports) context.addIssue({ code: 'custom', path: ['RELAY_ALLOWED_PORTS'], message: ports });
  });

/** Reads the API's settings; throws ConfigurationError. */
export function parseApiConfig(env: Env): ApiConfig {
  const parsed = parseEnv(ApiEnv, env);
  return {
    ...toSharedConfig(parsed),
    bind: parsed.RELAY_API_BIND,
    adminKey: parsed.RELAY_ADMIN_KEY ?? null,
    authRequired: parsed.RELAY_AUTH,
    secretKeys: parseSecretKeys(parsed.RELAY_SECRET_KEYS),
    destination: toDestinationPolicy(parsed),
    secretOverlapMs: parsed.RELAY_SECRET_OVERLAP_SECS,
    headerPrefix: parsed.RELAY_HEADER_PREFIX,
    requestTimeoutMs: parsed.RELAY_REQUEST_TIMEOUT_SECS,
    connectTimeoutMs: parsed.RELAY_CONNECT_TIMEOUT_SECS,
    idleTimeoutMs: parsed.RELAY_READ_TIMEOUT_SECS,
    idempotencyRetentionMs: parsed.RELAY_IDEMPOTENCY_RETENTION_SECS,
    heartbeatMaxAgeMs: parsed.RELAY_HEARTBEAT_MAX_AGE_SECS,
    maxLatenessMs: parsed.RELAY_MAX_LATENESS_SECS,
    bodyTimeoutMs: parsed.RELAY_BODY_TIMEOUT_SECS,
    ingestConnections: parsed.RELAY_INGEST_CONNECTIONS,
    ingestBatch: parsed.RELAY_INGEST_BATCH,
    ingestLingerMs: parsed.RELAY_INGEST_LINGER_MS,
    ingestQueue: parsed.RELAY_INGEST_QUEUE,
    readConnections: parsed.RELAY_DB_CONNECTIONS,
    keyRatePerSecond: parsed.RELAY_KEY_RATE_PER_SECOND,
    shutdownDeadlineMs: parsed.RELAY_SHUTDOWN_DEADLINE_SECS,
  };
}
