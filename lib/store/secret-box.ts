import { createCipheriv, createDecipheriv, randomBytes } from 'node:crypto';
import type { Pool } from 'pg';
import type { SecretKey, SecretKeys } from '../config/secret-keys.ts';

/** version (1) | key id (4) | nonce (12) | tag (16) | ciphertext */
const VERSION = 1;
const KEY_ID = { start: 1, end: 5 };
const NONCE = { start: 5, end: 17 };
const TAG = { start: 17, end: 33 };

/** A stored secret needs a key that RELAY_SECRET_KEYS does not hold. Names the key by its fingerprint, never by itself. */
export class SecretKeyMissingError extends Error {
  override readonly name = 'SecretKeyMissingError';
  readonly fingerprint: string;

  constructor(fingerprint: string) {
    super(
      `stored endpoint secrets were encrypted under a key with the fingerprint ${fingerprint}, which RELAY_SECRET_KEYS ` +
        'does not hold: add that key after the first one, then run `npm run secrets:reencrypt` before you take it out',
    );
    this.fingerprint = fingerprint;
  }
}

/** A stored secret that no longer is what was stored: changed, cut, or copied from another endpoint. */
export class SecretUnreadableError extends Error {
  override readonly name = 'SecretUnreadableError';
}

/**
 * Encrypts a secret for one endpoint with the first key (AES-256-GCM under a random nonce). The endpoint's id is part of what is
 * authenticated, so a sealed secret copied to another endpoint's row does not open.
 */
export function sealSecret(keys: SecretKeys, endpointId: string, secret: string): Buffer {
  const [{ id, key }] = keys;
  const nonce = randomBytes(12);
  const cipher = createCipheriv('aes-256-gcm', key, nonce).setAAD(Buffer.from(endpointId));
  const ciphertext = Buffer.concat([cipher.update(secret, 'utf8'), cipher.final()]);
  return Buffer.concat([Buffer.of(VERSION), id, nonce, cipher.getAuthTag(), ciphertext]);
}

/** Decrypts what `sealSecret` made. Throws SecretKeyMissingError or SecretUnreadableError, neither of which holds any of it. */
export function openSecret(keys: SecretKeys, endpointId: string, sealed: Buffer): string {
  if (sealed[0] !== VERSION || sealed.length < TAG.end) {
    throw new SecretUnreadableError(
      'a stored endpoint secret is not in a form that this version of Relay writes',
    );
  }
  const { key } = requireKey(keys, sealedUnder(sealed));
  const decipher = createDecipheriv('aes-256-gcm', key, sealed.subarray(NONCE.start, NONCE.end))
    .setAAD(Buffer.from(endpointId))
    .setAuthTag(sealed.subarray(TAG.start, TAG.end));
  try {
    return decipher.update(sealed.subarray(TAG.end), undefined, 'utf8') + decipher.final('utf8');
  } catch (cause) {
    throw new SecretUnreadableError(`the stored secret of endpoint ${endpointId} does not decrypt`, {
      cause,
    });
  }
}

/** The id of the key that a stored secret needs. */
export function sealedUnder(sealed: Buffer): Buffer {
  return sealed.subarray(KEY_ID.start, KEY_ID.end);
}

function requireKey(keys: SecretKeys, id: Buffer): SecretKey {
  const found = keys.find((key) => key.id.equals(id));
  if (!found) throw new SecretKeyMissingError(id.toString('hex'));
  return found;
}

/**
 * Throws SecretKeyMissingError when a secret that is in use needs a key that is not configured. Call it before serving. What is no sealed
 * secret at all needs no key: that is its endpoint's trouble, and must not keep the others from being served.
 */
export async function requireSecretKeys(pool: Pool, keys: SecretKeys): Promise<void> {
  const { rows } = await pool.query<{ id: Buffer }>(`
    select distinct substring(s.sealed from 2 for 4) as id
    from relay.endpoints e
    cross join lateral (
      values (e.secret), (e.headers), (e.signing_key),
        (case when e.previous_secret_expires_at > now() then e.previous_secret end),
        (case when e.previous_signing_key_expires_at > now() then e.previous_signing_key end)
    ) s (sealed)
    where e.deleted_at is null and octet_length(s.sealed) >= ${TAG.end} and substring(s.sealed from 1 for 1) = '\\x0${VERSION}'`);
  for (const { id } of rows) requireKey(keys, id);
}
