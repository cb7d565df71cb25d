import { createPrivateKey, createPublicKey, type KeyObject } from 'node:crypto';
import type { SigningKey } from './signing.ts';

/** An Ed25519 key pair in the writing of Standard Webhooks. */
export interface KeyPair {
  /** `whsk_` and the base64 of the seed with the public key behind it. */
  privateKey: string;
  /** `whpk_` and the base64 of the public key. */
  publicKey: string;
}

const PRIVATE_PREFIX = 'whsk_';
const PUBLIC_PREFIX = 'whpk_';
const SEED_BYTES = 32;
const PAIR_BYTES = 64;
/** What RFC 8410 puts before the seed; node:crypto reads nothing barer. */
const PKCS8_HEAD = Buffer.from('302e020100300506032b657004220420', 'hex');

/** The key pair that 32 random bytes stand for. */
export function newKeyPair(randomBytes32: Buffer): KeyPair {
  const publicKey = publicHalf(fromSeed(randomBytes32));
  return {
    privateKey: PRIVATE_PREFIX + Buffer.concat([randomBytes32, publicKey]).toString('base64'),
    publicKey: PUBLIC_PREFIX + publicKey.toString('base64'),
  };
}

/** Prepares a private key for signing. Throws, without repeating it, when it is none. */
export function privateSigningKey(privateKey: string): SigningKey {
  const pair = Buffer.from(privateKey.slice(PRIVATE_PREFIX.length), 'base64');
  if (!privateKey.startsWith(PRIVATE_PREFIX) || pair.length !== PAIR_BYTES) {
    throw new Error('the signing key is no private key');
  }
  return fromSeed(pair.subarray(0, SEED_BYTES));
}

function fromSeed(seed: Buffer): KeyObject {
  if (seed.length !== SEED_BYTES) throw new Error(`an Ed25519 key is made of ${SEED_BYTES} bytes`);
  return createPrivateKey({ key: Buffer.concat([PKCS8_HEAD, seed]), format: 'der', type: 'pkcs8' });
}

function publicHalf(key: KeyObject): Buffer {
  return createPublicKey(key).export({ format: 'der', type: 'spki' }).subarray(-SEED_BYTES);
}
