import { type RawBuilder, sql } from 'kysely';

/** A condition on an event's type by a pattern as endpoints subscribe with: `*`, an exact type, or `order.*`. */
export function typeMatches(
  type: RawBuilder<unknown>,
  pattern: string | null | undefined,
): RawBuilder<unknown> {
  if (pattern === null || pattern === undefined || pattern === '*') return sql`true`;
  return pattern.endsWith('.*')
    ? sql`starts_with(${type}, ${pattern.slice(0, -1)})`
    : sql`${type} = ${pattern}`;
}
