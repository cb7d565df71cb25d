import { printIdCursor } from './cursor.ts';

/** A page of rows in order of id, from one row more than the page holds. */
export function pageById<T extends { id: string }>(
  rows: readonly T[],
  limit: number,
  show: (row: T) => unknown,
) {
  const items = rows.slice(0, limit);
  const next = rows.length > limit ? items.at(-1)!.id : null;
  return { count: items.length, items: items.map(show), next_cursor: printIdCursor(next) };
}
