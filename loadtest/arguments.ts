/** Wrong usage: the message says what, and the usage follows it. */
export class UsageError extends Error {
  override readonly name = 'UsageError';
}

const MAX = 1_000_000_000;

/** Reads a whole number from `min` to a billion. Throws UsageError. */
export function whole(name: string, value: string, min: number): number {
  const number = Number(value);
  if (/^\d+$/.test(value) && number >= min && number <= MAX) return number;
  throw new UsageError(`--${name} takes a whole number of at least ${min}, and got ${value}`);
}

/** Reads a number above 0, fractions too. Throws UsageError. */
export function positive(name: string, value: string): number {
  const number = Number(value);
  if (/^\d+(\.\d+)?$/.test(value) && number > 0 && number <= MAX) return number;
  throw new UsageError(`--${name} takes a number above 0, and got ${value}`);
}

/** Reads entries of the form NAME=VALUE; the value may hold anything. Throws UsageError. */
export function pairs(name: string, entries: readonly string[]): Record<string, string> {
  return Object.fromEntries(
    entries.map((entry) => {
      const equals = entry.indexOf('=');
      if (equals < 1) throw new UsageError(`--${name} takes NAME=VALUE, and got ${entry}`);
      return [entry.slice(0, equals), entry.slice(equals + 1)];
    }),
  );
}
