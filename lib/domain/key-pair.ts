import { createPrivateKey, createPublicKey, type KeyObject } from 'node:crypto';
import type { SigningKey } from './signing.ts';

/** An Ed25519 key pair in the writing of Standard Webhooks: base64 behind `whsk_` and `whpk_`. */
export interface KeyPair {
  /** Its 32-byte seed, which is the whole of it. */
  privateKey: string;
  publicKey: string;
}

const PRIVATE_PREFIX = 'whsk_';
const PUBLIC_PREFIX = 'whpk_';
const SEED_BYTES = 32;
/** What RFC 8410 puts before the seed; the key derivation of node:crypto reads nothing barer. */
const PKCS8_HEAD = Buffer.from('302e020100300506032b657004220420', 'hex');

/** The key pair that 32 random bytes stand for. */
export function newKeyPair(randomBytes32: Buffer): KeyPair {
  const publicKey = createPublicKey(fromSeed(randomBytes32)).export({ format: 'jwk' }).x;
  if (publicKey === undefined) throw new Error('an Ed25519 key has a public half');
  return {
    privateKey: PRIVATE_PREFIX + randomBytes32.toString('base64'),
    publicKey: PUBLIC_PREFIX + Buffer.from(publicKey, 'base64url').toString('base64'),
  };
}

/** Prepares a private key for signing. Throws, without repeating it, when it is none. */
export function privateSigningKey(privateKey: string): SigningKey {
  if (!privateKey.startsWith(PRIVATE_PREFIX)) throw new Error('the signing key is no private key');
  return fromSeed(Buffer.from(privateKey.slice(PRIVATE_PREFIX.length), 'base64'));
}

function fromSeed(seed: Buffer): KeyObject {
  if (seed.length !== SEED_BYTES) throw new Error(`an Ed25519 key is made of ${SEED_BYTES} bytes`);
  return createPrivateKey({ key: Buffer.concat([PKCS8_HEAD, seed]), format: 'der', type: 'pkcs8' });
}
