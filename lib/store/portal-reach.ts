import { plainArray } from './array-literal.ts';
import { lastDeliveryId } from './event-ids.ts';
import type { Queryable } from './pool.ts';

/** The endpoint that a tenant's delivery is for; null when the tenant has no such delivery. */
export async function findDeliveryEndpoint(
  db: Queryable,
  tenantId: string,
  deliveryId: string,
): Promise<string | null> {
  const { rows } = await db.query<{ endpointId: string }>({
    name: 'relay_delivery_endpoint',
    text: 'select endpoint_id as "endpointId" from relay.deliveries where id = $1 and (tenant_id = $2) is true',
    values: [deliveryId, tenantId],
  });
  return rows[0]?.endpointId ?? null;
}

const TO_ONE_OF = `
select 1 from relay.deliveries
where id > $1::uuid and id <= $2::uuid and event_id = $1::uuid and tenant_id = $3
  and endpoint_id = any($4::uuid[])
limit 1`;

/** Tells whether a tenant's event was delivered, or is owed, to one of some endpoints. */
export async function eventReaches(
  db: Queryable,
  event: { tenantId: string; id: string },
  endpointIds: readonly string[],
): Promise<boolean> {
  const { rows } = await db.query({
    name: 'relay_event_reaches',
    text: TO_ONE_OF,
    values: [event.id, lastDeliveryId(event.id), event.tenantId, plainArray(endpointIds)],
  });
  return rows.length > 0;
}
