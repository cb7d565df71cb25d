import { sql } from 'kysely';
import type { DeadReason, ShownStatus } from '../domain/vocabulary.ts';
import type { Database } from './database.ts';
import { type Delivery, oneDelivery, shownStatus } from './deliveries-read.ts';
import {
  idRange,
  SEARCH_ROWS,
  type SearchPage,
  type SearchRange,
  searchPage,
  type Walk,
} from './search-page.ts';
import { typeMatches } from './type-filter.ts';

/** Which deliveries; what is null or absent does not narrow. */
export interface DeliveryFilter {
  status?: ShownStatus | null | undefined;
  /** Dead for this reason. */
  reason?: DeadReason | null | undefined;
  /** A pattern over the types of their events. */
  eventType?: string | null | undefined;
}

export interface DeliverySearch extends SearchRange {
  filter: DeliveryFilter;
  limit: number;
}

/** An endpoint's deliveries, newest first. Whose endpoint it is has been asked before. */
export function searchEndpointDeliveries(
  db: Database,
  endpointId: string,
  search: DeliverySearch,
): Promise<SearchPage<Delivery>> {
  const walk = endpointWalk(endpointId, search);
  const type = sql`(select e.type from relay.events e where e.id = w.event_id)`;
  return searchPage(db, {
    walk,
    filter: sql`${recordMatches(search.filter)} and ${typeMatches(type, search.filter.eventType)}`,
    shown: oneDelivery(sql.ref('h.id')),
    limit: search.limit,
  });
}

/** A tenant's deliveries, newest first. */
export function searchTenantDeliveries(
  db: Database,
  tenantId: string,
  search: DeliverySearch,
): Promise<SearchPage<Delivery>> {
  return searchPage(db, {
    walk: tenantWalk(tenantId, search),
    filter: recordMatches(search.filter),
    shown: oneDelivery(sql.ref('h.id')),
    limit: search.limit,
  });
}

// The endpoint is compared together with the id, and stands in the order: under an equality the planner may think the primary key just as good
// for the order, and walk past everybody else's newer deliveries to find this endpoint's. Compared apart, as a range of one, it would leave the
// id no part in where the walk begins, and a deep page would walk over all that is newer.
function endpointWalk(endpointId: string, search: DeliverySearch): Walk {
  const [first, before] = idRange(search);
  return {
    rows: sql`
      select d.id, d.id as place, d.endpoint_id, d.event_id, d.status, d.dead_reason
      from relay.deliveries d
      where (d.endpoint_id, d.id) >= (${endpointId}::uuid, ${first}::uuid) and (d.endpoint_id, d.id) < (${endpointId}::uuid, ${before}::uuid)
      order by d.endpoint_id desc, d.id desc
      limit ${SEARCH_ROWS}`,
    order: sql`w.endpoint_id desc, w.id desc`,
  };
}

// Through the tenant's events, each with the range of its deliveries. An event without any is a row too, so that a page is as bounded among
// events that match nothing; ids of events and of deliveries are one order, so one id says where the walk stands. The range is one of rows, because
// a plain one can also be had by skipping through the index of the endpoints' deliveries.
function tenantWalk(tenantId: string, search: DeliverySearch): Walk {
  const [first, before] = idRange(search);
  return {
    rows: sql`
      select d.id, coalesce(d.id, e.id) as place, e.tenant_id, e.id as event_id, d.status, d.dead_reason
      from (
        select e.tenant_id, e.id, e.type, (left(e.id::text, 32) || 'ffff')::uuid as last
        from relay.events e
        where (e.tenant_id, e.id) >= (${tenantId}::uuid, ${first}::uuid) and (e.tenant_id, e.id) < (${tenantId}::uuid, ${before}::uuid)
        order by e.tenant_id desc, e.id desc
        limit ${SEARCH_ROWS}
      ) e
      left join lateral (
        select d.id, d.status, d.dead_reason from relay.deliveries d
        where ${typeMatches(sql.ref('e.type'), search.filter.eventType)}
          and (d.id, d.event_id) > (e.id, e.last) and (d.id, d.event_id) <= (e.last, e.last) and (d.id, d.event_id) < (${before}::uuid, e.id)
        order by d.id desc
        limit ${SEARCH_ROWS}
      ) d on true
      order by e.tenant_id desc, e.id desc, d.id desc
      limit ${SEARCH_ROWS}`,
    order: sql`w.tenant_id desc, w.event_id desc, w.id desc`,
  };
}

function recordMatches({ status, reason }: DeliveryFilter) {
  const conditions = [sql`true`];
  // Pending in the record until it ends, so the cheap half of the condition is asked of the record alone.
  if (status) conditions.push(sql`w.status = ${status === 'inflight' ? 'pending' : status}`);
  if (status === 'pending' || status === 'inflight') conditions.push(sql`${shownStatus('w')} = ${status}`);
  if (reason) conditions.push(sql`w.dead_reason = ${reason}`);
  return sql.join(conditions, sql` and `);
}
