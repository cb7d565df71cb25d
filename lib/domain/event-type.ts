/**
 * Event types and the patterns that subscribe to them. A pattern is `*`, an exact type, or a prefix and `.*`:
 * `order.*` matches `order.created` and `order.created.v2`, but not `order`.
 */

const EVENT_TYPE = /^[A-Za-z0-9_.:-]{1,128}$/;

/** All that an endpoint without events of producers subscribes to: no type holds this character, so it matches none. */
export const NO_EVENTS: readonly string[] = ['~'];

/** The rule in words, for error messages. */
export const EVENT_TYPE_RULE = 'an event type is 1 to 128 characters of A-Z a-z 0-9 _ . : -';

export function isEventType(value: string): boolean {
  return EVENT_TYPE.test(value);
}

/** Returns null when the pattern is usable, else the rule it breaks. */
export function validatePattern(pattern: string): string | null {
  if (pattern === '*' || isEventType(pattern)) return null;
  if (pattern.endsWith('.*') && pattern.length <= 128 && isEventType(pattern.slice(0, -2))) return null;
  return `a pattern is *, an event type, or a prefix followed by .* (at most 128 characters); ${EVENT_TYPE_RULE}`;
}

export function matchesPattern(pattern: string, type: string): boolean {
  if (pattern === '*') return true;
  return pattern.endsWith('.*') ? type.startsWith(pattern.slice(0, -1)) : pattern === type;
}

/**
 * Every pattern that could match this type, from the widest to the narrowest: `a.b` gives `* a.* a.b`. The fan-out asks
 * the database for endpoints that hold one of these, which is an equality and so an index can answer it.
 */
export function patternCandidates(type: string): string[] {
  const candidates = ['*'];
  // A leading dot has no prefix before it, and no pattern starts with one dot and a star.
  for (let dot = type.indexOf('.', 1); dot > 0; dot = type.indexOf('.', dot + 1)) {
    candidates.push(`${type.slice(0, dot)}.*`);
  }
  candidates.push(type);
  return candidates;
}

/**
 * The same subscription in its shortest form: no pattern covers another, so that a type never has two of its candidates
 * in the list and one event is never fanned out twice to one endpoint. No pattern at all means everything.
 */
export function normalizePatterns(patterns: readonly string[]): string[] {
  if (patterns.length === 0) return ['*'];
  const unique = [...new Set(patterns)];
  return unique
    .filter((pattern) => !unique.some((other) => other !== pattern && covers(other, pattern)))
    .sort();
}

/** `a.*` covers `a.b.*`: whatever starts with `a.b.` starts with `a.`. It does not cover `a`. */
function covers(wide: string, narrow: string): boolean {
  if (wide === '*') return true;
  return wide.endsWith('.*') && narrow.startsWith(wide.slice(0, -1));
}
