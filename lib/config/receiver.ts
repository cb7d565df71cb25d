import { z } from 'zod';
import { type Bind, bindAddress, type Env, parseEnv } from './env.ts';
import { headerPrefixSetting, type SharedConfig, sharedSettings } from './shared.ts';

export interface ReceiverConfig {
  bind: Bind;
  /** Any of them may match: two during a rotation. */
  secrets: string[];
  /** First part of the names of Relay's own headers. */
  headerPrefix: string;
  logLevel: SharedConfig['logLevel'];
  logFormat: SharedConfig['logFormat'];
}

const ReceiverEnv = z.object({
  RELAY_LOG_LEVEL: sharedSettings.RELAY_LOG_LEVEL,
  RELAY_LOG_FORMAT: sharedSettings.RELAY_LOG_FORMAT,
  RELAY_RECEIVER_BIND: bindAddress('127.0.0.1:9099'),
  RELAY_RECEIVER_SECRET: z
    .string()
    .default('whsec_test')
    .transform((list) => list.split(',').map((secret) => secret.trim()))
    .refine((secrets) => secrets.every((secret) => secret !== ''), {
      error: 'must be one secret or several parted by commas, none of them empty',
    }),
  RELAY_HEADER_PREFIX: headerPrefixSetting,
});

/** Reads the receiver's settings; throws ConfigurationError. */
export function parseReceiverConfig(env: Env): ReceiverConfig {
  const parsed = parseEnv(ReceiverEnv, env);
  return {
    bind: parsed.RELAY_RECEIVER_BIND,
    secrets: parsed.RELAY_RECEIVER_SECRET,
    headerPrefix: parsed.RELAY_HEADER_PREFIX,
    logLevel: parsed.RELAY_LOG_LEVEL,
    logFormat: parsed.RELAY_LOG_FORMAT,
  };
}
