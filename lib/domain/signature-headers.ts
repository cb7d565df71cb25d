import { createHmac, type Hmac, sign } from 'node:crypto';
import type { HeaderNames } from './header-names.ts';
import type { SigningKey } from './signing.ts';
import type { SigningScheme } from './vocabulary.ts';

export interface SignatureInput {
  scheme: SigningScheme;
  /**
   * The endpoint's secrets, newest first: during a rotation both sign, and a receiver that knows either one is content. Behind them come
   * the private keys of its key pairs, newest first, which sign under `standard` only.
   */
  keys: readonly SigningKey[];
  deliveryId: string;
  eventType: string;
  /** Unix seconds of *this* attempt: receivers refuse old timestamps, so a retry is signed anew. */
  timestampSeconds: number;
  /** The very bytes that are sent. */
  body: Buffer;
  /** Of the headers that carry the prefix. What the other schemes are known by has fixed names. */
  names: HeaderNames;
}

/** The signature headers of one attempt as a flat list: name, value, name, value. */
export function signatureHeaders(input: SignatureInput): string[] {
  switch (input.scheme) {
    case 'relay':
      return relayHeaders(input);
    case 'standard':
      return standardHeaders(input);
    case 'stripe':
      return stripeHeaders(input);
    case 'github':
      return githubHeaders(input);
  }
}

function relayHeaders({ keys, deliveryId, timestampSeconds, body, names }: SignatureInput): string[] {
  const signed = `${timestampSeconds}.`;
  return [
    names.timestamp,
    String(timestampSeconds),
    names.signature,
    eachKey(keys, ',', (key) => `v1=${hmac(key, signed, body).digest('hex')}`),
    names.deliveryId,
    deliveryId,
  ];
}

/** Standard Webhooks: the delivery id is signed too, and is the same on every attempt. */
function standardHeaders({ keys, deliveryId, timestampSeconds, body }: SignatureInput): string[] {
  const signed = `${deliveryId}.${timestampSeconds}.`;
  return [
    'webhook-id',
    deliveryId,
    'webhook-timestamp',
    String(timestampSeconds),
    'webhook-signature',
    eachKey(keys, ' ', (key) =>
      key.type === 'private'
        ? `v1a,${ed25519(key, signed, body)}`
        : `v1,${hmac(key, signed, body).digest('base64')}`,
    ),
  ];
}

function stripeHeaders({ keys, timestampSeconds, body }: SignatureInput): string[] {
  const signed = `${timestampSeconds}.`;
  const signatures = eachKey(keys, ',', (key) => `v1=${hmac(key, signed, body).digest('hex')}`);
  return ['Stripe-Signature', `t=${timestampSeconds},${signatures}`];
}

/** GitHub's receivers compare the whole header with one value, so only the newest secret can sign. */
function githubHeaders({ keys, deliveryId, eventType, body }: SignatureInput): string[] {
  return [
    'X-Hub-Signature-256',
    `sha256=${hmac(newest(keys), '', body).digest('hex')}`,
    'X-GitHub-Event',
    eventType,
    'X-GitHub-Delivery',
    deliveryId,
  ];
}

function hmac(key: SigningKey, signed: string, body: Buffer): Hmac {
  return createHmac('sha256', key).update(signed).update(body);
}

/** Ed25519 goes over its message twice, so that it must stand in one piece. */
function ed25519(key: SigningKey, signed: string, body: Buffer): string {
  return sign(null, Buffer.concat([Buffer.from(signed), body]), key).toString('base64');
}

/** One key is the case of nearly every send, so it costs no list. */
function eachKey(keys: readonly SigningKey[], separator: string, one: (key: SigningKey) => string): string {
  return keys.length > 1 ? keys.map(one).join(separator) : one(newest(keys));
}

function newest([first]: readonly SigningKey[]): SigningKey {
  if (first === undefined) throw new Error('a signed endpoint has at least one secret');
  return first;
}
