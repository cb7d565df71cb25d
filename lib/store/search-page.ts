import { type RawBuilder, sql } from 'kysely';
import type { Database } from './database.ts';

/**
 * How far one page looks. No index holds a status, a type or a reason (ending a delivery would have to write it), so a page of rare rows
 * among millions is found in several bounded steps instead of one that has no end.
 */
export const SEARCH_ROWS = 10_000;

/** What a page looks through: at most `SEARCH_ROWS` rows `w`, in the order in which they are shown. */
export interface Walk {
  /** Columns: `id`, null for a row that is only walked past; `place`, the id where the walk stands; what `order` and the filter name. */
  rows: RawBuilder<unknown>;
  order: RawBuilder<unknown>;
}

export interface Search {
  walk: Walk;
  /** A condition on `w`. */
  filter: RawBuilder<unknown>;
  /** A select of one row of what is shown, by the id `h.id`, with the column `id`. */
  shown: RawBuilder<unknown>;
  limit: number;
}

export interface SearchPage<T> {
  items: T[];
  /** Where the next page begins; null at the end. A page may be short, or empty, and still have a next. */
  next: string | null;
}

/** Which part of a list a page is: ids from `from` on, which is included, down from `before`, which is not. */
export interface SearchRange {
  /** The `next` of the page before; null for the newest. */
  before: string | null;
  /** Accepted at this moment or later. */
  from?: Date | null | undefined;
  /** Accepted before this moment. */
  to?: Date | null | undefined;
}

type Row<T> = { place: string | null } & (T | { id: null });

/** The newest rows of a walk that pass a filter. Runs best on connections for searches, whose planner is held to its indexes. */
export async function searchPage<T extends { id: string }>(
  db: Database,
  search: Search,
): Promise<SearchPage<T>> {
  const { rows } = await searchQuery<T>(search).execute(db);
  const found = rows.filter((row) => row.id !== null) as ({ place: string | null } & T)[];
  const items = found.slice(0, search.limit).map(({ place: _, ...item }) => item as unknown as T);
  if (found.length > search.limit) return { items, next: items.at(-1)!.id };
  return { items, next: rows[0]?.place ?? null };
}

// Where the walk ended is asked in the same snapshot, and only when it had to be walked to its end: otherwise the next page begins after the
// last row of this one. What is shown is looked up row by row, by limit: joined, a queue that was empty when the planner looked at it
// is read whole.
function searchQuery<T>({ walk, filter, shown, limit }: Search) {
  return sql<Row<T>>`
    with hit as materialized (
      select w.id from (${walk.rows}) w
      where w.id is not null and ${filter}
      order by ${walk.order}
      limit ${limit + 1}
    )
    select b.place, p.*
    from (
      select case when (select count(*) from hit) <= ${limit} then (
        select w.place from (${walk.rows}) w order by ${walk.order} offset ${SEARCH_ROWS - 1} limit 1
      ) end as place
    ) b
    left join lateral (
      select s.* from hit h cross join lateral (${shown} limit 1) s
    ) p on true
    order by p.id desc`;
}

const FIRST_ID = '00000000-0000-0000-0000-000000000000';
const LAST_ID = 'ffffffff-ffff-ffff-ffff-ffffffffffff';
const LAST_MS = 0xffff_ffff_ffff;

/** The bounds of the ids in a range: from the first of them up to, and without, the second. */
export function idRange({ before, from, to }: SearchRange): [string, string] {
  const ends = [before ?? LAST_ID, to ? firstIdAt(to) : LAST_ID].sort();
  return [from ? firstIdAt(from) : FIRST_ID, ends[0]!];
}

/** The least id that is made at a moment: ids begin with the milliseconds of the database's clock. */
export function firstIdAt(moment: Date): string {
  const ms = Math.min(LAST_MS, Math.max(0, moment.getTime()));
  const hex = ms.toString(16).padStart(12, '0');
  return `${hex.slice(0, 8)}-${hex.slice(8)}-0000-0000-000000000000`;
}
