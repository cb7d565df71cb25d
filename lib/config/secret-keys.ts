import { createHash } from 'node:crypto';
import { z } from 'zod';

/** One key that encrypts stored secrets: 32 bytes, named by a fingerprint so that a stored secret says which key it needs. */
export interface SecretKey {
  id: Buffer;
  key: Buffer;
}

/** The first key encrypts, all of them decrypt. */
export type SecretKeys = readonly [SecretKey, ...SecretKey[]];

const RULE =
  'must be a comma-separated list of keys of 32 bytes in base64 (make one with: openssl rand -base64 32)';

export const secretKeysSetting = z
  .string({ error: `is required to encrypt endpoint secrets: ${RULE}` })
  .refine((value) => value.split(',').every((entry) => decode(entry) !== null), { error: RULE });

/** Reads RELAY_SECRET_KEYS, already checked by `secretKeysSetting`. */
export function parseSecretKeys(value: string): SecretKeys {
  const keys = value.split(',').map((entry) => {
    const key = decode(entry);
    if (!key) throw new Error(RULE);
    return {
      key,
      id: createHash('sha256').update('relay/secret-key/v1').update(key).digest().subarray(0, 4),
    };
  });
  const [first, ...rest] = keys;
  if (!first) throw new Error(RULE);
  return [first, ...rest];
}

function decode(entry: string): Buffer | null {
  const bytes = Buffer.from(entry.trim(), 'base64');
  return bytes.length === 32 ? bytes : null;
}
