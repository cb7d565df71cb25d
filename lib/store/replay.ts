import type { Queryable } from './pool.ts';

export interface ReplayResult {
  replayed: string[];
  /** Dead, but its endpoint is deleted: there is nowhere to send it. */
  endpointDeleted: string[];
}

// The one write that goes record first, queue second. It skips rows that others hold, so it can wait for nobody.
const REPLAY = `
with picked as materialized (
  select d.id from relay.deliveries d
  where d.id = any($1::uuid[]) and d.status = 'dead'
    and exists (select from relay.endpoints n where n.id = d.endpoint_id and n.deleted_at is null)
    and exists (select from relay.events e where e.id = d.event_id)
  order by d.id
  for update of d skip locked
),
revived as (
  update relay.deliveries d
  set status = 'pending', dead_reason = null, finished_at = null, attempts = 0, generation = d.generation + 1
  where d.id = any(array(select id from picked)) and d.status = 'dead'
  returning d.id, d.endpoint_id, d.event_id, d.seq, d.sends, d.generation
),
exhumed as (
  delete from relay.dead_letters l where l.delivery_id = any(array(select id from picked))
)
insert into relay.queue (delivery_id, endpoint_id, event_id, due_at, look_at, seq, sends, generation, lane)
select id, endpoint_id, event_id, now(), now(), seq, sends, generation, 1 from revived order by id
returning delivery_id`;

/**
 * Returns dead deliveries to pending, due now: the same id, one generation on, a fresh budget of attempts, their history kept. Ids that
 * are not dead, or are being replayed by somebody else at this moment, are left out of both lists.
 */
export async function replayDeliveries(pool: Queryable, ids: readonly string[]): Promise<ReplayResult> {
  const { rows } = await pool.query<{ delivery_id: string }>({
    name: 'relay_replay',
    text: REPLAY,
    values: [[...ids].sort()],
  });
  const replayed = rows.map((row) => row.delivery_id);
  const rest = ids.filter((id) => !replayed.includes(id));
  return { replayed, endpointDeleted: rest.length === 0 ? [] : await deadWithoutEndpoint(pool, rest) };
}

async function deadWithoutEndpoint(pool: Queryable, ids: readonly string[]): Promise<string[]> {
  const { rows } = await pool.query<{ id: string }>({
    name: 'relay_replay_nowhere',
    text: `select d.id from relay.deliveries d
      where d.id = any($1::uuid[]) and d.status = 'dead'
        and not exists (select from relay.endpoints n where n.id = d.endpoint_id and n.deleted_at is null)`,
    values: [ids],
  });
  return rows.map((row) => row.id);
}
