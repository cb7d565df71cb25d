import { z } from 'zod';
import { HEADER_PREFIX, HEADER_PREFIX_RULE } from '../domain/header-names.ts';
import { DEFAULT_MAX_PAYLOAD_BYTES } from '../domain/limits.ts';
import { ConfigurationError, onOff, onOffValue, wholeNumber } from './env.ts';

const LOG_LEVELS = ['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'] as const;

/** What every process reads. */
export const sharedSettings = {
  DATABASE_URL: z.string({ error: 'is required: the URL of the Postgres that Relay keeps its record in' }),
  RELAY_DATABASE_DIRECT_URL: z.string().optional(),
  RELAY_BROKER_URL: z
    .string()
    .regex(/^rediss?:\/\//, 'must start with redis:// or rediss://')
    .optional(),
  RELAY_BROKER_STREAM: z.string().min(1).default('relay:deliveries'),
  RELAY_BROKER_GROUP: z.string().min(1).default('relay-dispatchers'),
  RELAY_BROKER_KEY_PREFIX: z.string().default(''),
  RELAY_BROKER_SENTINELS: z
    .string()
    .regex(
      /^\s*[^\s:,]+(:\d{1,5})?(\s*,\s*[^\s:,]+(:\d{1,5})?)*\s*$/,
      'must be host:port, several parted by commas; 26379 where no port is given',
    )
    .optional(),
  RELAY_BROKER_SENTINEL_NAME: z.string().default('mymaster'),
  RELAY_LOG_LEVEL: z.enum(LOG_LEVELS).default('info'),
  RELAY_LOG_FORMAT: z.enum(['json', 'text', 'auto']).default('auto'),
  RELAY_MAX_PAYLOAD_BYTES: wholeNumber({ min: 1, max: 64 * 1024 * 1024, default: DEFAULT_MAX_PAYLOAD_BYTES }),
};

/** Where deliveries may go: read by the API at registration and by the dispatcher at every send. */
export const destinationSettings = {
  RELAY_ALLOW_PRIVATE_ENDPOINTS: onOff(false),
  RELAY_REQUIRE_HTTPS: onOffValue.optional(),
  RELAY_ALLOWED_PORTS: z.string().optional(),
};

/** The first part of the names of Relay's own headers, for endpoints that have none of their own. */
export const headerPrefixSetting = z.string().regex(HEADER_PREFIX, HEADER_PREFIX_RULE).default('Relay');

export interface BrokerConfig {
  url: string;
  stream: string;
  group: string;
  keyPrefix: string;
  sentinels: readonly { host: string; port: number }[];
  sentinelName: string;
}

export interface SharedConfig {
  databaseUrl: string;
  /** Reaches Postgres past any transaction pooler: leadership and LISTEN need a session of their own. */
  databaseDirectUrl: string;
  broker: BrokerConfig | null;
  logLevel: (typeof LOG_LEVELS)[number];
  logFormat: 'json' | 'text' | 'auto';
  maxPayloadBytes: number;
}

export interface DestinationPolicyConfig {
  allowPrivate: boolean;
  requireHttps: boolean;
  allowedPorts: 'any' | ReadonlySet<number>;
}

type SharedEnv = z.output<z.ZodObject<typeof sharedSettings>>;

export function toSharedConfig(env: SharedEnv): SharedConfig {
  return {
    databaseUrl: env.DATABASE_URL,
    databaseDirectUrl: env.RELAY_DATABASE_DIRECT_URL ?? env.DATABASE_URL,
    broker: brokerConfig(env),
    logLevel: env.RELAY_LOG_LEVEL,
    logFormat: env.RELAY_LOG_FORMAT,
    maxPayloadBytes: env.RELAY_MAX_PAYLOAD_BYTES,
  };
}

function brokerConfig(env: SharedEnv): BrokerConfig | null {
  if (!env.RELAY_BROKER_URL) {
    if (!env.RELAY_BROKER_SENTINELS) return null;
    throw new ConfigurationError(
      'RELAY_BROKER_SENTINELS: needs RELAY_BROKER_URL, which says as whom to speak to the server that they name; without it there is no Redis',
    );
  }
  return {
    url: env.RELAY_BROKER_URL,
    stream: env.RELAY_BROKER_STREAM,
    group: env.RELAY_BROKER_GROUP,
    keyPrefix: env.RELAY_BROKER_KEY_PREFIX,
    sentinels: (env.RELAY_BROKER_SENTINELS ?? '')
      .split(',')
      .filter((entry) => entry.trim() !== '')
      .map((entry) => {
        const [host = '', port = '26379'] = entry.trim().split(':');
        return { host, port: Number(port) };
      }),
    sentinelName: env.RELAY_BROKER_SENTINEL_NAME,
  };
}

/** Private endpoints are a development switch: it relaxes address, scheme and port together; each can be set by itself. */
export function toDestinationPolicy(env: {
  RELAY_ALLOW_PRIVATE_ENDPOINTS: boolean;
  RELAY_REQUIRE_HTTPS?: boolean | undefined;
  RELAY_ALLOWED_PORTS?: string | undefined;
}): DestinationPolicyConfig {
  const allowPrivate = env.RELAY_ALLOW_PRIVATE_ENDPOINTS;
  return {
    allowPrivate,
    requireHttps: env.RELAY_REQUIRE_HTTPS ?? !allowPrivate,
    allowedPorts: parsePorts(env.RELAY_ALLOWED_PORTS) ?? (allowPrivate ? 'any' : new Set([443])),
  };
}

/** Tells whether a list of ports can be read; one bad entry refuses the list, because dropping it would refuse a port silently. */
export function portsProblem(value: string | undefined): string | null {
  if (value === undefined || value.trim() === '*') return null;
  const bad = value
    .split(',')
    .find((entry) => !/^\s*\d{1,5}\s*$/.test(entry) || Number(entry) < 1 || Number(entry) > 65_535);
  return bad === undefined
    ? null
    : `must be * or a comma-separated list of ports, and "${bad.trim()}" is not a port`;
}

function parsePorts(value: string | undefined): 'any' | ReadonlySet<number> | undefined {
  if (value === undefined) return undefined;
  if (value.trim() === '*') return 'any';
  return new Set(value.split(',').map(Number));
}
