import { eventReaches, findDeliveryEndpoint } from '../../../lib/store/portal-reach.ts';
import { Problem } from './problem.ts';
import type { Call, Route } from './route.ts';

type AnyCall = Pick<
  Call<unknown, unknown, unknown>,
  'context' | 'principal' | 'tenantId' | 'params' | 'query' | 'body'
>;

/**
 * Keeps a portal token that is for some endpoints to what is theirs. What is another endpoint's is answered as if it did not exist, in the same
 * words. Throws a 403 or 404 Problem.
 */
export async function requireReach(route: Route, call: AnyCall): Promise<void> {
  const { endpointIds } = call.principal;
  if (endpointIds === null) return;
  switch (route.reach) {
    case undefined:
      throw new Problem(
        'forbidden',
        'the portal token is for some endpoints, and this is about more than those',
      );
    case 'own':
      return;
    case 'endpoint':
      if (!endpointIds.has(idOf(call))) throw noEndpoint();
      return;
    case 'filter':
      return requireFilter(endpointIds, call);
    case 'delivery': {
      const endpointId = await findDeliveryEndpoint(call.context.pool, call.tenantId, idOf(call));
      if (endpointId === null || !endpointIds.has(endpointId))
        throw new Problem('delivery_not_found', 'there is no delivery of this id');
      return;
    }
    case 'event': {
      const event = { tenantId: call.tenantId, id: idOf(call) };
      if (!(await eventReaches(call.context.pool, event, [...endpointIds])))
        throw new Problem('event_not_found', 'there is no event of this id');
      return;
    }
  }
}

function idOf({ params }: AnyCall): string {
  return (params as { id: string }).id;
}

function requireFilter(endpointIds: ReadonlySet<string>, { query, body }: AnyCall): void {
  const given = { ...(query as { endpoint_id?: string }), ...(body as { endpoint_id?: string }) };
  if (given.endpoint_id === undefined) {
    throw new Problem('forbidden', 'the portal token is for some endpoints: name one of them as endpoint_id');
  }
  if (!endpointIds.has(given.endpoint_id)) throw noEndpoint();
}

const noEndpoint = () => new Problem('endpoint_not_found', 'there is no endpoint of this id');
