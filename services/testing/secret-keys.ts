import { randomBytes } from 'node:crypto';
import { parseSecretKeys, type SecretKeys } from '../../lib/config/secret-keys.ts';

/** Fresh keys, newest first; `setting` is what RELAY_SECRET_KEYS would hold. */
export function givenSecretKeys(count = 1): { keys: SecretKeys; setting: string } {
  const setting = Array.from({ length: count }, () => randomBytes(32).toString('base64')).join(',');
  return { keys: parseSecretKeys(setting), setting };
}
