const HEADER_BYTES = 20;
const BYTEA_OID = 17;

/**
 * A `bytea[]` parameter in Postgres's binary form. The driver sends a Buffer as it is, so payloads cross without being printed as
 * hexadecimal, which would double them on the wire and cost both sides a conversion.
 */
export function byteaArray(values: readonly (Buffer | null)[]): Buffer {
  let size = HEADER_BYTES;
  for (const value of values) size += 4 + (value?.length ?? 0);
  const out = Buffer.allocUnsafe(size);
  const hasNull = values.some((value) => value === null);
  out.writeInt32BE(values.length === 0 ? 0 : 1, 0);
  out.writeInt32BE(hasNull ? 1 : 0, 4);
  out.writeInt32BE(BYTEA_OID, 8);
  if (values.length === 0) return out.subarray(0, 12);
  out.writeInt32BE(values.length, 12);
  out.writeInt32BE(1, 16);
  let offset = HEADER_BYTES;
  for (const value of values) {
    out.writeInt32BE(value === null ? -1 : value.length, offset);
    offset += 4;
    if (value) offset += value.copy(out, offset);
  }
  return out;
}
