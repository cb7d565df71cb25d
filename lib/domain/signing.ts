import { createSecretKey, type KeyObject } from 'node:crypto';
import type { SigningScheme } from './vocabulary.ts';

const PREFIX = 'whsec_';
const VISIBLE_ASCII = /^[\x21-\x7e]+$/;
const BASE64 = /^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/;

/** A key made ready once per endpoint configuration. Being a KeyObject, it prints and serialises as nothing. */
export type SigningKey = KeyObject;

/**
 * Prepares a secret for signing. `standard` signs with the bytes that its base64 stands for, the others with the secret as it is written,
 * prefix included. Throws on a secret that `validateSecret` refuses for being undecodable.
 */
export function signingKey(scheme: SigningScheme, secret: string): SigningKey {
  if (scheme !== 'standard') return createSecretKey(Buffer.from(secret, 'utf8'));
  const problem = validateSecret(scheme, secret);
  if (problem !== null) throw new Error(`the secret cannot sign: ${problem}`);
  return createSecretKey(Buffer.from(secret.slice(PREFIX.length), 'base64'));
}

/** A new secret, good for every scheme, from 32 random bytes. */
export function newSecret(randomBytes32: Buffer): string {
  if (randomBytes32.length !== 32) throw new Error('a secret is made of 32 random bytes');
  return PREFIX + randomBytes32.toString('base64');
}

/** Judges a secret that a customer brings along. Null when it can be used, else the rule it breaks. */
export function validateSecret(scheme: SigningScheme, secret: string): string | null {
  if (scheme !== 'standard') {
    return VISIBLE_ASCII.test(secret) && secret.length >= 8 && secret.length <= 255
      ? null
      : `a secret of the ${scheme} scheme is 8 to 255 visible ASCII characters, without spaces`;
  }
  const encoded = secret.slice(PREFIX.length);
  if (!secret.startsWith(PREFIX) || !BASE64.test(encoded)) {
    return 'a secret of the standard scheme is whsec_ followed by padded base64';
  }
  const size = Buffer.byteLength(encoded, 'base64');
  return size >= 24 && size <= 64 ? null : 'a secret of the standard scheme holds 24 to 64 bytes';
}

/** Whether a replaced secret can go on signing beside the new one: GitHub's header has room for one signature. */
export function overlaps(scheme: SigningScheme): boolean {
  return scheme !== 'github';
}

/** Whether a key pair can sign beside the secret: only Standard Webhooks has a signature of that kind. */
export function takesKeyPair(scheme: SigningScheme): boolean {
  return scheme === 'standard';
}
