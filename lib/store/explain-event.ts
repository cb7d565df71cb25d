import { sql } from 'kysely';
import type { MatchFacts } from '../domain/explain-match.ts';
import type { Database } from './database.ts';
import type { Event } from './events-read.ts';

/** One endpoint, and what an event made of it. */
export interface EndpointMatch extends Omit<MatchFacts, 'eventType' | 'eventAt'> {
  endpointId: string;
  /** Null when the endpoint is missing. */
  url: string | null;
  deliveryId: string | null;
}

interface Row {
  endpointId: string;
  url: string | null;
  createdAt: Date;
  deletedAt: Date | null;
  enabled: boolean;
  disabledAt: Date | null;
  disabledReason: NonNullable<MatchFacts['endpoint']>['disabledReason'];
  eventTypes: string[];
  operationalEvents: string[];
  deliveryId: string | null;
  deliveryStatus: MatchFacts['deliveryStatus'];
  stillToCome: boolean;
}

const NO_ID = '00000000-0000-0000-0000-000000000000';

/**
 * The tenant's endpoints, each with the delivery that the event made to it, in order of their ids after `after`. A deleted endpoint
 * stands among them when it has a delivery; one that has none is found by its id (`findMatch`).
 */
export async function listMatches(
  db: Database,
  { tenantId, event }: { tenantId: string; event: Event },
  page: { after: string | null; limit: number },
): Promise<EndpointMatch[]> {
  const { rows } = await matchesQuery({ tenantId, event }, page).execute(db);
  return rows.map(toMatch);
}

/**
 * Exported for the test that reads its plan. An event's deliveries are one range of the primary key; the one to a given endpoint is found
 * by the index of that endpoint's deliveries, since an event may have 65,535.
 */
export function matchesQuery(
  { tenantId, event }: { tenantId: string; event: Event },
  { after, limit }: { after: string | null; limit: number },
) {
  const past = after ?? NO_ID;
  return sql<Row>`
    with page as (
      (select n.id from relay.endpoints n
        where n.tenant_id = ${tenantId} and n.deleted_at is null and n.id > ${past}
        order by n.id limit ${limit})
      union
      (select d.endpoint_id from relay.deliveries d
        where d.id > ${event.id} and d.id <= ${lastIdOf(event)} and d.event_id = ${event.id} and d.endpoint_id > ${past}
        order by d.endpoint_id limit ${limit})
      order by 1
      limit ${limit}
    )
    select p.id as "endpointId", ${SHOWN}, ${stillToCome(event, sql.ref('p.id'))} as "stillToCome"
    from page p
    left join lateral (
      select e.url, e.created_at, e.deleted_at, e.enabled, e.disabled_at, e.disabled_reason, e.event_types, e.operational_types
      from relay.endpoints e
      where e.id = p.id
      limit 1
    ) n on true
    left join lateral (${deliveryOf(event, sql.ref('p.id'))}) v on true
    order by p.id`;
}

/** One endpoint of the tenant, deleted or not; null when it has none of this id. */
export async function findMatch(
  db: Database,
  { tenantId, event }: { tenantId: string; event: Event },
  endpointId: string,
): Promise<EndpointMatch | null> {
  const { rows } = await sql<Row>`
    select n.id as "endpointId", ${SHOWN}, ${stillToCome(event, sql.ref('n.id'))} as "stillToCome"
    from relay.endpoints n
    left join lateral (${deliveryOf(event, sql.ref('n.id'))}) v on true
    where n.id = ${endpointId} and n.tenant_id = ${tenantId}`.execute(db);
  return rows[0] ? toMatch(rows[0]) : null;
}

const SHOWN = sql`n.url, n.created_at as "createdAt", n.deleted_at as "deletedAt", n.enabled, n.disabled_at as "disabledAt",
  n.disabled_reason as "disabledReason", n.event_types as "eventTypes",
  n.operational_types as "operationalEvents", v.id as "deliveryId", v.status as "deliveryStatus"`;

// One look-up each, by limit and sub-select: joined, a queue that was empty when the planner looked at it is read whole.
function deliveryOf(event: Event, endpointId: ReturnType<typeof sql.ref>) {
  return sql`
    select d.id, relay.shown_status(d.status, (
      select q.lease_expires_at from relay.queue q where q.delivery_id = d.id)) as status
    from relay.deliveries d
    where d.endpoint_id = ${endpointId} and d.id > ${event.id} and d.id <= ${lastIdOf(event)} and d.event_id = ${event.id}
    limit 1`;
}

/** Whether a fan-out that goes on has this endpoint before it. */
function stillToCome(event: Event, endpointId: ReturnType<typeof sql.ref>) {
  return sql`v.id is null and exists (
    select from relay.fan_outs f where f.event_id = ${event.id} and ${endpointId} = any(f.endpoint_ids[f.next_tail:]))`;
}

/** The number of a delivery is in the last four digits of its event's id. */
const lastIdOf = (event: Event) => `${event.id.slice(0, -4)}ffff`;

function toMatch({
  endpointId,
  url,
  deliveryId,
  deliveryStatus,
  stillToCome,
  ...endpoint
}: Row): EndpointMatch {
  return {
    endpointId,
    url,
    deliveryId,
    deliveryStatus,
    stillToCome,
    endpoint: url === null ? null : endpoint,
  };
}
