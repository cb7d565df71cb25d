import type { FinishedStatus } from '../domain/vocabulary.ts';
import { plainArray } from './array-literal.ts';
import type { Queryable } from './pool.ts';

export interface ReplayOptions {
  /** What may be sent again; only what is dead unless said. */
  from?: readonly FinishedStatus[];
  /** Only what had ended by then, a moment as the database prints it: what ended later ended anew. Null: whenever. */
  endedBy?: string | null;
}

export interface ReplayResult {
  replayed: string[];
  /** Finished, but its endpoint is deleted: there is nowhere to send it. */
  endpointDeleted: string[];
}

/** A delivery's generation is a smallint: one that was replayed so often is not replayed again. */
export const LAST_GENERATION = 32_767;

// The one write that goes record first, queue second. It skips rows that others hold, so it can wait for nobody.
const REPLAY = `
with picked as materialized (
  select d.id from relay.deliveries d
  where d.id = any($1::uuid[]) and d.status = any($2::text[]) and d.finished_at <= coalesce($3::timestamptz, 'infinity')
    and d.generation < ${LAST_GENERATION}
    and exists (select from relay.endpoints n where n.id = d.endpoint_id and n.deleted_at is null)
    and exists (select from relay.events e where e.id = d.event_id)
  order by d.id
  for update of d skip locked
),
revived as (
  update relay.deliveries d
  set status = 'pending', dead_reason = null, finished_at = null, attempts = 0, generation = d.generation + 1
  where d.id = any(array(select id from picked)) and d.status <> 'pending'
  returning d.id, d.endpoint_id, d.event_id, d.seq, d.sends, d.generation
),
exhumed as (
  delete from relay.dead_letters l where l.delivery_id = any(array(select id from picked))
)
insert into relay.queue (delivery_id, endpoint_id, event_id, due_at, look_at, seq, sends, generation, lane)
select id, endpoint_id, event_id, now(), now(), seq, sends, generation, 1 from revived order by id
returning delivery_id`;

/**
 * Returns finished deliveries to pending, due now: the same id, one generation on, a fresh budget of attempts, their history kept. Ids that
 * are not finished so, or are being replayed by somebody else at this moment, are left out of both lists.
 */
export async function replayDeliveries(
  db: Queryable,
  ids: readonly string[],
  options: ReplayOptions = {},
): Promise<ReplayResult> {
  const from = options.from ?? ['dead'];
  const replayed = await reviveDeliveries(db, ids, { from, endedBy: options.endedBy ?? null });
  const had = new Set(replayed);
  const rest = ids.filter((id) => !had.has(id));
  return {
    replayed,
    endpointDeleted: rest.length === 0 ? [] : await finishedWithoutEndpoint(db, rest, from),
  };
}

/** The ids that are pending again; why the others are not is not asked. */
export async function reviveDeliveries(
  db: Queryable,
  ids: readonly string[],
  { from, endedBy }: Required<ReplayOptions>,
): Promise<string[]> {
  const { rows } = await db.query<{ delivery_id: string }>({
    name: 'relay_replay',
    text: REPLAY,
    values: [plainArray([...ids].sort()), plainArray(from), endedBy],
  });
  return rows.map((row) => row.delivery_id);
}

async function finishedWithoutEndpoint(
  db: Queryable,
  ids: readonly string[],
  from: readonly FinishedStatus[],
): Promise<string[]> {
  const { rows } = await db.query<{ id: string }>({
    name: 'relay_replay_nowhere',
    text: `select d.id from relay.deliveries d
      where d.id = any($1::uuid[]) and d.status = any($2::text[])
        and not exists (select from relay.endpoints n where n.id = d.endpoint_id and n.deleted_at is null)`,
    values: [plainArray(ids), plainArray(from)],
  });
  return rows.map((row) => row.id);
}
