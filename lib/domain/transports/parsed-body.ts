/** An answer's body as JSON; null when it is none, or was cut. */
export function parsedBody(body: string): unknown {
  try {
    return JSON.parse(body);
  } catch {
    return null;
  }
}

/** The number at this place of a JSON value; null when there is none. */
export function numberAt(value: unknown, ...path: readonly string[]): number | null {
  let at = value;
  for (const name of path) {
    if (typeof at !== 'object' || at === null || !Object.hasOwn(at, name)) return null;
    at = (at as Record<string, unknown>)[name];
  }
  return typeof at === 'number' && Number.isFinite(at) ? at : null;
}
