import { NO_EVENTS, normalizePatterns } from '../domain/event-type.ts';
import { operationalSubscriptions } from '../domain/operational-events.ts';
import type { OperationalScope } from '../domain/vocabulary.ts';
import type { Connection } from './database.ts';

export interface Subscriber {
  id: string;
  tenantId: string;
  eventTypes: readonly string[];
  operationalEvents: readonly string[];
  operationalScope: OperationalScope;
  enabled: boolean;
}

/**
 * Makes what fan-out reads agree with an endpoint, in the transaction that changes the endpoint: a row for each pattern of an
 * enabled one, none for any other.
 */
export async function replaceSubscriptions(trx: Connection, endpoint: Subscriber): Promise<void> {
  await removeSubscriptions(trx, endpoint.id);
  const patterns = endpoint.enabled ? patternsOf(endpoint) : [];
  if (patterns.length === 0) return;
  await trx
    .insertInto('subscriptions')
    .values(patterns.map((pattern) => ({ tenant_id: endpoint.tenantId, pattern, endpoint_id: endpoint.id })))
    .execute();
}

function patternsOf({ eventTypes, operationalEvents, operationalScope }: Subscriber): string[] {
  const ordinary = normalizePatterns(eventTypes).filter((pattern) => !NO_EVENTS.includes(pattern));
  return [...ordinary, ...operationalSubscriptions(operationalEvents, operationalScope)];
}

export async function removeSubscriptions(trx: Connection, endpointId: string): Promise<void> {
  await trx.deleteFrom('subscriptions').where('endpoint_id', '=', endpointId).execute();
}
