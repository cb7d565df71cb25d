import { createHash } from 'node:crypto';

const KEY = /^[\x21-\x7e]{1,255}$/;

/** The rule in words, for error messages. */
export const IDEMPOTENCY_KEY_RULE = 'an idempotency key is 1 to 255 visible ASCII characters, without spaces';

/** Returns null when the key is usable, else the rule it breaks. */
export function validateIdempotencyKey(key: string): string | null {
  return KEY.test(key) ? null : IDEMPOTENCY_KEY_RULE;
}

/**
 * Tells whether a second request under one key is the same request. Every part carries its length, so that no two
 * different requests have the same bytes to hash; the tag keeps this digest apart from any other use of the hash.
 */
export function requestDigest(
  type: string,
  contentType: string,
  targetEndpointId: string | null,
  body: Uint8Array,
): Buffer {
  const hash = createHash('sha256').update('relay/request/v1\0');
  const add = (part: Uint8Array) => {
    const length = Buffer.allocUnsafe(8);
    length.writeBigUInt64BE(BigInt(part.byteLength));
    hash.update(length).update(part);
  };
  add(Buffer.from(type));
  add(Buffer.from(contentType));
  // Absent and empty differ in the number of parts that follow.
  hash.update(targetEndpointId === null ? '\0' : '\x01');
  if (targetEndpointId !== null) add(Buffer.from(targetEndpointId));
  add(body);
  return hash.digest();
}
