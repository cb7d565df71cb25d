const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

/** Any version, dashes in place. Postgres would also take other spellings, and then print this one. */
export function isUuid(text: string): boolean {
  return UUID.test(text);
}

/**
 * A version 7 uuid: rows named by it list in the order they were made.
 *
 * @param unixMs milliseconds since 1970
 * @param random ten random bytes
 */
export function uuidV7(unixMs: number, random: Buffer): string {
  if (random.length !== 10) throw new Error('a version 7 uuid takes ten random bytes');
  const hex = Math.max(0, Math.floor(unixMs)).toString(16).padStart(12, '0') + random.toString('hex');
  const variant = ((random[2]! & 0x3f) | 0x80).toString(16);
  return (
    `${hex.slice(0, 8)}-${hex.slice(8, 12)}-7${hex.slice(13, 16)}` +
    `-${variant}${hex.slice(18, 20)}-${hex.slice(20, 32)}`
  );
}
