import { createHmac, createSecretKey, type KeyObject } from 'node:crypto';
import type { SigningScheme } from './vocabulary.ts';

const PREFIX = 'whsec_';
const VISIBLE_ASCII = /^[\x21-\x7e]+$/;
const BASE64 = /^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/;

/** A key made ready once per endpoint configuration. Being a KeyObject, it prints and serialises as nothing. */
export type SigningKey = KeyObject;

export interface SignatureInput {
  scheme: SigningScheme;
  /** One or two keys, newest first: during a rotation both sign, and a receiver that knows either one is content. */
  secrets: readonly SigningKey[];
  deliveryId: string;
  /** Unix seconds of *this* attempt: receivers refuse old timestamps, so a retry is signed anew. */
  timestampSeconds: number;
  /** The very bytes that are sent. */
  body: Buffer;
  /** First part of the header names of the `relay` scheme, usually `Relay`. `standard` has fixed names. */
  headerPrefix: string;
}

/** The signature headers of one attempt as a flat list: name, value, name, value. */
export function signatureHeaders(input: SignatureInput): string[] {
  return input.scheme === 'standard' ? standardHeaders(input) : relayHeaders(input);
}

function relayHeaders({
  secrets,
  deliveryId,
  timestampSeconds,
  body,
  headerPrefix,
}: SignatureInput): string[] {
  const signed = `${timestampSeconds}.`;
  return [
    `${headerPrefix}-Timestamp`,
    String(timestampSeconds),
    `${headerPrefix}-Signature`,
    eachKey(secrets, ',', (key) => `v1=${hmac(key, signed, body).digest('hex')}`),
    `${headerPrefix}-Delivery-Id`,
    deliveryId,
  ];
}

/** Standard Webhooks: the delivery id is signed too, and is the same on every attempt. */
function standardHeaders({ secrets, deliveryId, timestampSeconds, body }: SignatureInput): string[] {
  const signed = `${deliveryId}.${timestampSeconds}.`;
  return [
    'webhook-id',
    deliveryId,
    'webhook-timestamp',
    String(timestampSeconds),
    'webhook-signature',
    eachKey(secrets, ' ', (key) => `v1,${hmac(key, signed, body).digest('base64')}`),
  ];
}

function hmac(key: SigningKey, signed: string, body: Buffer) {
  return createHmac('sha256', key).update(signed).update(body);
}

/** One key is the case of nearly every send, so it costs no list. */
function eachKey(keys: readonly SigningKey[], separator: string, sign: (key: SigningKey) => string): string {
  const [newest, previous] = keys;
  if (newest === undefined) throw new Error('a signed endpoint has at least one secret');
  return previous === undefined ? sign(newest) : keys.map(sign).join(separator);
}

/**
 * Prepares a secret for signing. `relay` signs with the secret as it is written, prefix included; `standard` with the
 * bytes that its base64 stands for. Throws on a secret that `validateSecret` refuses for being undecodable.
 */
export function signingKey(scheme: SigningScheme, secret: string): SigningKey {
  if (scheme === 'relay') return createSecretKey(Buffer.from(secret, 'utf8'));
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
  if (scheme === 'relay') {
    return VISIBLE_ASCII.test(secret) && secret.length >= 8 && secret.length <= 255
      ? null
      : 'a secret is 8 to 255 visible ASCII characters, without spaces';
  }
  const encoded = secret.slice(PREFIX.length);
  if (!secret.startsWith(PREFIX) || !BASE64.test(encoded)) {
    return 'a secret of the standard scheme is whsec_ followed by padded base64';
  }
  const size = Buffer.byteLength(encoded, 'base64');
  return size >= 24 && size <= 64 ? null : 'a secret of the standard scheme holds 24 to 64 bytes';
}
