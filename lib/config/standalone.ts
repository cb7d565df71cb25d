import { z } from 'zod';
import { type Bind, bindAddress, type Env, parseEnv } from './env.ts';
import { secretKeysSetting } from './secret-keys.ts';
import { sharedSettings } from './shared.ts';

/** What `npm start` itself reads; everything else in the environment is handed on to the services. */
export interface StandaloneConfig {
  /** Where data and remembered secrets lie; null for the default inside the project. */
  dataDir: string | null;
  /** Null: an embedded server is started. */
  databaseUrl: string | null;
  /** Null: a local server is started where there is one to be had. */
  brokerUrl: string | null;
  /** Null: made once and remembered, like the next. */
  adminKey: string | null;
  secretKeys: string | null;
  apiBind: Bind;
  metricsBind: Bind;
  receiverBind: Bind;
  logLevel: z.output<typeof sharedSettings.RELAY_LOG_LEVEL>;
  logFormat: z.output<typeof sharedSettings.RELAY_LOG_FORMAT>;
}

/** Development defaults: this is the first command of the README, on somebody's own machine. */
const DEFAULTS: Env = {
  RELAY_API_BIND: '127.0.0.1:8080',
  RELAY_METRICS_BIND: '127.0.0.1:9091',
  RELAY_RECEIVER_BIND: '127.0.0.1:9099',
  RELAY_ALLOW_PRIVATE_ENDPOINTS: 'true',
  // The live summary is the thing to look at.
  RELAY_LOG_LEVEL: 'warn',
};

const StandaloneEnv = z.object({
  DATABASE_URL: z.string().optional(),
  RELAY_BROKER_URL: sharedSettings.RELAY_BROKER_URL,
  RELAY_DATA_DIR: z.string().optional(),
  RELAY_ADMIN_KEY: z.string().optional(),
  RELAY_SECRET_KEYS: secretKeysSetting.optional(),
  RELAY_API_BIND: bindAddress(''),
  RELAY_METRICS_BIND: bindAddress(''),
  RELAY_RECEIVER_BIND: bindAddress(''),
  RELAY_LOG_LEVEL: sharedSettings.RELAY_LOG_LEVEL,
  RELAY_LOG_FORMAT: sharedSettings.RELAY_LOG_FORMAT,
});

/** The environment with the defaults of `npm start` where it says nothing. Empty counts as nothing. */
export function withStandaloneDefaults(env: Env): Env {
  const said = Object.entries(env).filter(([, value]) => value !== undefined && value !== '');
  return { ...DEFAULTS, ...Object.fromEntries(said) };
}

/** Reads the settings of `npm start` from an environment that has its defaults; throws ConfigurationError. */
export function parseStandaloneConfig(env: Env): StandaloneConfig {
  const parsed = parseEnv(StandaloneEnv, env);
  return {
    dataDir: parsed.RELAY_DATA_DIR ?? null,
    databaseUrl: parsed.DATABASE_URL ?? null,
    brokerUrl: parsed.RELAY_BROKER_URL ?? null,
    adminKey: parsed.RELAY_ADMIN_KEY ?? null,
    secretKeys: parsed.RELAY_SECRET_KEYS ?? null,
    apiBind: parsed.RELAY_API_BIND,
    metricsBind: parsed.RELAY_METRICS_BIND,
    receiverBind: parsed.RELAY_RECEIVER_BIND,
    logLevel: parsed.RELAY_LOG_LEVEL,
    logFormat: parsed.RELAY_LOG_FORMAT,
  };
}
