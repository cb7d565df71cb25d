/** What stands in the place of a secret. */
export const REDACTED = '[redacted]';

const SECRET_NAME = /secret|token|passw|credential|authori[sz]ation|cookie|signing_key|private|api_?key/i;
const UNSTORABLE = /[\0\p{Surrogate}]/gu;

/**
 * A copy of what a request asked for, fit to be kept: no secret, no value of a custom header (which often is one), and no character that
 * Postgres cannot store. Fields that are not given are left out.
 */
export function redacted(fields: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(fields)
      .filter(([, value]) => value !== undefined)
      .map(([name, value]) => [storable(name), kept(name, value)]),
  );
}

function kept(name: string, value: unknown): unknown {
  // That a secret was taken away is no secret.
  if (value === null) return null;
  if (SECRET_NAME.test(name)) return REDACTED;
  if (name === 'headers' && typeof value === 'object')
    return Object.fromEntries(Object.keys(value).map((header) => [storable(header), REDACTED]));
  return plain(value);
}

function plain(value: unknown): unknown {
  if (typeof value === 'string') return storable(value);
  if (Array.isArray(value)) return value.map(plain);
  if (value instanceof Date || value === null || typeof value !== 'object') return value;
  return redacted(value as Record<string, unknown>);
}

function storable(text: string): string {
  return text.replace(UNSTORABLE, '\uFFFD');
}
