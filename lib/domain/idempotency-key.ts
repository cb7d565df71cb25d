import { createHash, type Hash } from 'node:crypto';
import type { DeliveryTimes } from './delivery-times.ts';

const KEY = /^[\x21-\x7e]{1,255}$/;

/** The rule in words, for error messages. */
export const IDEMPOTENCY_KEY_RULE = 'an idempotency key is 1 to 255 visible ASCII characters, without spaces';

/** Returns null when the key is usable, else the rule it breaks. */
export function validateIdempotencyKey(key: string): string | null {
  return KEY.test(key) ? null : IDEMPOTENCY_KEY_RULE;
}

const NO_TIMES: DeliveryTimes = { deliverAt: null, expiresAt: null };

/**
 * Tells whether a second request under one key is the same request. Every part carries its length, so that no two
 * different requests have the same bytes to hash; the tag keeps this digest apart from any other use of the hash. `relay.request_digest` in
 * SQL makes the same bytes, so that either recognises a key that the other took.
 */
export function requestDigest(
  type: string,
  contentType: string,
  targetEndpointId: string | null,
  body: Uint8Array,
  times: DeliveryTimes = NO_TIMES,
): Buffer {
  const hash = createHash('sha256').update('relay/request/v1\0');
  add(hash, Buffer.from(type));
  add(hash, Buffer.from(contentType));
  // Absent and empty differ in the number of parts that follow.
  hash.update(targetEndpointId === null ? '\0' : '\x01');
  if (targetEndpointId !== null) add(hash, Buffer.from(targetEndpointId));
  add(hash, body);
  // Only what is there is hashed, so that a request without times has the digest that stored keys were made with.
  if (times.deliverAt) hash.update('\x02').update(int64(times.deliverAt.getTime()));
  if (times.expiresAt) hash.update('\x03').update(int64(times.expiresAt.getTime()));
  return hash.digest();
}

function add(hash: Hash, part: Uint8Array): void {
  hash.update(int64(part.byteLength)).update(part);
}

function int64(value: number): Buffer {
  const bytes = Buffer.allocUnsafe(8);
  bytes.writeBigInt64BE(BigInt(value));
  return bytes;
}
