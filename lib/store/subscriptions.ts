import { normalizePatterns } from '../domain/event-type.ts';
import type { Connection } from './database.ts';

export interface Subscriber {
  id: string;
  tenantId: string;
  eventTypes: readonly string[];
  enabled: boolean;
}

/**
 * Makes what fan-out reads agree with an endpoint, in the transaction that changes the endpoint: a row for each pattern of an
 * enabled one, none for any other.
 */
export async function replaceSubscriptions(trx: Connection, endpoint: Subscriber): Promise<void> {
  await removeSubscriptions(trx, endpoint.id);
  if (!endpoint.enabled) return;
  await trx
    .insertInto('subscriptions')
    .values(
      normalizePatterns(endpoint.eventTypes).map((pattern) => ({
        tenant_id: endpoint.tenantId,
        pattern,
        endpoint_id: endpoint.id,
      })),
    )
    .execute();
}

export async function removeSubscriptions(trx: Connection, endpointId: string): Promise<void> {
  await trx.deleteFrom('subscriptions').where('endpoint_id', '=', endpointId).execute();
}
