import { plainArray } from './array-literal.ts';
import type { Queryable } from './pool.ts';

export interface SlotHolder {
  endpointId: string;
  slotVersion: number;
  /** How far apart its slots are now, ms. */
  slotEveryMs: number;
}

/** More than this many waiting deliveries are not counted: their furthest slot is taken at its word. */
const COUNTED = 2_000;

// Two walks of one index for each endpoint, which no plan can turn around: the furthest slot, and the nearest with how many there are. Parked
// rows have no moment. Fewer rows than their furthest slot suggests means holes, of deliveries that went, expired or were cancelled: then new
// slots may begin where as many as there are would end. Behind a pause that is counted from its end, where the nearest slot lies.
const HORIZONS = `
select e.endpoint_id, (date_part('epoch', least(
    furthest.due_at,
    case when counted.waiting < ${COUNTED}
      then greatest(now(), counted.nearest) + (counted.waiting + 1) * e.slot_every_ms * interval '1 ms' end
  ) - now()) * 1000)::float8 as horizon_ms
from unnest($1::uuid[], $2::integer[], $3::double precision[]) as e (endpoint_id, slot_version, slot_every_ms),
  lateral (
    select q.due_at from relay.queue q
    where q.endpoint_id = e.endpoint_id and q.slot_version = e.slot_version and q.waiting is not null and q.due_at < 'infinity'
    order by q.due_at desc
    limit 1
  ) furthest,
  lateral (
    select count(*) as waiting, min(w.due_at) as nearest from (
      select q.due_at from relay.queue q
      where q.endpoint_id = e.endpoint_id and q.slot_version = e.slot_version and q.waiting is not null and q.due_at < 'infinity'
      order by q.due_at
      limit ${COUNTED}
    ) w
  ) counted`;

/**
 * How far ahead the slots of these endpoints reach, ms from now: what a rate limiter that has forgotten them must begin after. An endpoint for
 * which nothing waits in a slot of this version is left out.
 */
export async function readHorizons(
  pool: Queryable,
  endpoints: readonly SlotHolder[],
): Promise<Map<string, number>> {
  const { rows } = await pool.query<{ endpoint_id: string; horizon_ms: number }>({
    name: 'relay_slot_horizons',
    text: HORIZONS,
    values: [
      plainArray(endpoints.map((endpoint) => endpoint.endpointId)),
      plainArray(endpoints.map((endpoint) => endpoint.slotVersion)),
      plainArray(endpoints.map((endpoint) => endpoint.slotEveryMs)),
    ],
  });
  return new Map(rows.map((row) => [row.endpoint_id, Math.max(0, row.horizon_ms)]));
}
