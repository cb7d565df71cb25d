import type { Queryable } from './pool.ts';

const FIRST_ID = '00000000-0000-0000-0000-000000000000';

/** The event of the first unfinished fan-out after another's, or of the first of all; null when there is none. */
export async function nextFanOut(client: Queryable, after: string | null): Promise<string | null> {
  const { rows } = await client.query<{ event_id: string }>({
    name: 'relay_next_fan_out',
    text: 'select event_id from relay.fan_outs where event_id > $1::uuid order by event_id limit 1',
    values: [after ?? FIRST_ID],
  });
  return rows[0]?.event_id ?? null;
}

/** What one step of a fan-out did. */
export interface FanOutStep {
  /** Deliveries that it wrote. */
  written: number;
  /** Whether it was the last. */
  ended: boolean;
}

// The n-th delivery goes to the n-th endpoint that matched when the event was accepted. An event that is missing is no reason to forget what is owed of it: its deliveries end dead, `refused`.
// Nothing is announced: the rows are due to be found, by the sweep or by those who poll, and go on the bulk lane.
const STEP = `
with picked as materialized (
  select f.event_id, f.tenant_id, f.next_tail, f.endpoint_ids[f.next_tail:f.next_tail + $2::integer - 1] as endpoint_ids,
    f.next_tail + $2::integer > cardinality(f.endpoint_ids) as ends
  from relay.fan_outs f
  where f.event_id = $1::uuid
  for update skip locked
),
owed as materialized (
  select (left(p.event_id::text, 32) || lpad(to_hex(p.next_tail + u.n - 1), 4, '0'))::uuid as delivery_id, p.event_id, u.endpoint_id,
    p.tenant_id, greatest(e.deliver_at, now()) as due_at, e.expires_at
  from picked p
  left join lateral (select e.deliver_at, e.expires_at from relay.events e where e.id = p.event_id limit 1) e on true,
    unnest(p.endpoint_ids) with ordinality u(endpoint_id, n)
),
new_delivery as (
  insert into relay.deliveries (id, event_id, endpoint_id, tenant_id)
  select delivery_id, event_id, endpoint_id, tenant_id from owed
),
new_queue as (
  insert into relay.queue (delivery_id, endpoint_id, event_id, due_at, look_at, expires_at, lane)
  select delivery_id, endpoint_id, event_id, due_at, least(due_at, expires_at), expires_at, 1 from owed
),
moved as (
  update relay.fan_outs f
  set next_tail = f.next_tail + $2::integer
  where f.event_id = (select event_id from picked where not ends)
),
gone as (
  delete from relay.fan_outs f where f.event_id = (select event_id from picked where ends)
)
select cardinality(endpoint_ids) as written, ends as ended from picked`;

/**
 * Writes the next deliveries of an event, up to `limit`. Null when its fan-out is over, or somebody else is at it. One transaction: a step that fails or
 * is cut off has done nothing, and the next begins where the last one ended.
 */
export async function fanOutStep(
  client: Queryable,
  eventId: string,
  limit: number,
): Promise<FanOutStep | null> {
  const { rows } = await client.query<FanOutStep>({
    name: 'relay_fan_out_step',
    text: STEP,
    values: [eventId, limit],
  });
  return rows[0] ?? null;
}
