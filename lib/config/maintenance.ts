import { z } from 'zod';
import { type Env, parseEnv } from './env.ts';
import { parseSecretKeys, type SecretKeys, secretKeysSetting } from './secret-keys.ts';
import { sharedSettings } from './shared.ts';

const { DATABASE_URL } = sharedSettings;

/** The settings of commands that only need the database; throws ConfigurationError. */
export function parseDatabaseConfig(env: Env): { databaseUrl: string } {
  return { databaseUrl: parseEnv(z.object({ DATABASE_URL }), env).DATABASE_URL };
}

/** The settings of `secrets:reencrypt`; throws ConfigurationError. */
export function parseReencryptConfig(env: Env): { databaseUrl: string; secretKeys: SecretKeys } {
  const parsed = parseEnv(z.object({ DATABASE_URL, RELAY_SECRET_KEYS: secretKeysSetting }), env);
  return { databaseUrl: parsed.DATABASE_URL, secretKeys: parseSecretKeys(parsed.RELAY_SECRET_KEYS) };
}
