import { z } from 'zod';
import { findDelivery, listAttempts } from '../../../lib/store/deliveries-read.ts';
import { searchEndpointDeliveries, searchTenantDeliveries } from '../../../lib/store/delivery-search.ts';
import { endpointExisted } from '../../../lib/store/endpoints.ts';
import { replayDeliveries } from '../../../lib/store/replay.ts';
import type { SearchPage } from '../../../lib/store/search-page.ts';
import { idParams, pageLimit, uuid } from '../http/fields.ts';
import { acceptedRange, reasonFilter, statusFilter, typeFilter } from '../http/filters.ts';
import { type ListName, listCursor, openIdPlace, sealPlace } from '../http/list-cursor.ts';
import { Problem } from '../http/problem.ts';
import { type Call, defineRoute, type Reply } from '../http/route.ts';
import { search } from '../http/search.ts';
import { noDelivery, shownAttempt, shownDelivery } from './delivery-answers.ts';
import { DeliveryDetailShape, DeliveryShape, pageOf, SingleReplayShape } from './shapes.ts';

const MAX_ATTEMPTS_SHOWN = 500;

const filters = {
  status: statusFilter(),
  reason: reasonFilter().meta({ description: 'Dead for this reason.' }),
  event_type: typeFilter(),
  ...acceptedRange,
};
const EndpointQuery = z.strictObject({ ...filters, limit: pageLimit(), cursor: listCursor() });
const TenantQuery = EndpointQuery.extend({ endpoint_id: uuid().optional() });

type ListCall = Pick<
  Call<unknown, z.output<typeof EndpointQuery>, unknown>,
  'context' | 'tenantId' | 'query'
>;

/** A page of deliveries of an endpoint of the tenant, or of the whole tenant. */
async function list(call: ListCall, endpointId: string | undefined): Promise<Reply> {
  const { context, tenantId, query } = call;
  const { limit, cursor, event_type: eventType, status, reason, from, to } = query;
  if (endpointId !== undefined && !(await endpointExisted(context.db, { tenantId, id: endpointId }))) {
    throw new Problem('endpoint_not_found', 'there is no endpoint of this id');
  }
  const name: ListName = { list: 'deliveries', tenantId, endpointId, eventType, status, reason, from, to };
  const wanted = {
    filter: { status, reason, eventType },
    ...{ from, to, before: openIdPlace(cursor, name), limit },
  };
  const page = await search(context, (db) =>
    endpointId === undefined
      ? searchTenantDeliveries(db, tenantId, wanted)
      : searchEndpointDeliveries(db, endpointId, wanted),
  );
  return { status: 200, json: shownPage(page, name) };
}

function shownPage({ items, next }: SearchPage<Parameters<typeof shownDelivery>[0]>, name: ListName) {
  return { count: items.length, items: items.map(shownDelivery), next_cursor: sealPlace(next, name) };
}

const LOOKS_THROUGH =
  'A page looks through 10,000 deliveries at most: with filters it may be short, or empty, while `next_cursor` says that there is more. A cursor goes with the filters that it came from.';

export const deliveryRoutes = [
  defineRoute(
    {
      name: 'listDeliveries',
      method: 'get',
      path: '/v1/deliveries',
      access: 'read',
      reach: 'filter',
      tag: 'Deliveries',
      summary: 'List deliveries, newest first',
      description: LOOKS_THROUGH,
      query: TenantQuery,
      answers: [{ status: 200, description: 'A page of deliveries', schema: pageOf(DeliveryShape) }],
      problems: ['endpoint_not_found', 'search_timeout'],
    },
    (call) => list(call, call.query.endpoint_id),
  ),
  defineRoute(
    {
      name: 'listEndpointDeliveries',
      method: 'get',
      path: '/v1/endpoints/{id}/deliveries',
      access: 'read',
      reach: 'endpoint',
      tag: 'Deliveries',
      summary: "List an endpoint's deliveries, newest first",
      description: LOOKS_THROUGH,
      params: idParams,
      query: EndpointQuery,
      answers: [{ status: 200, description: 'A page of deliveries', schema: pageOf(DeliveryShape) }],
      problems: ['endpoint_not_found', 'search_timeout'],
    },
    (call) => list(call, call.params.id),
  ),
  defineRoute(
    {
      name: 'getDelivery',
      method: 'get',
      path: '/v1/deliveries/{id}',
      access: 'read',
      reach: 'delivery',
      tag: 'Deliveries',
      summary: 'Get a delivery and its log',
      params: idParams,
      answers: [{ status: 200, description: 'The delivery', schema: DeliveryDetailShape }],
      problems: ['delivery_not_found'],
    },
    async ({ context, tenantId, params }) => {
      const delivery = await findDelivery(context.db, tenantId, params.id);
      if (!delivery) throw noDelivery();
      const { attempts, truncated } = await listAttempts(context.db, delivery, MAX_ATTEMPTS_SHOWN);
      const json = {
        delivery: shownDelivery(delivery),
        attempts: attempts.map((attempt) => shownAttempt(delivery.id, attempt)),
        attempts_truncated: truncated,
      };
      return { status: 200, json };
    },
  ),
  defineRoute(
    {
      name: 'replayDelivery',
      method: 'post',
      path: '/v1/deliveries/{id}/replay',
      access: 'replay',
      reach: 'delivery',
      tag: 'Deliveries',
      summary: 'Send a dead delivery again',
      description:
        'It is pending again at once, under the same id and with a fresh budget of attempts; its history is kept. One that is still owed is not dead: its own retry comes.',
      params: idParams,
      answers: [{ status: 202, description: 'It will be sent', schema: SingleReplayShape }],
      problems: ['delivery_not_found', 'not_dead', 'endpoint_deleted'],
    },
    async ({ context, tenantId, params }) => {
      const delivery = await findDelivery(context.db, tenantId, params.id);
      if (!delivery) throw noDelivery();
      const { replayed, endpointDeleted } = await replayDeliveries(context.pool, [delivery.id]);
      if (endpointDeleted.length > 0) {
        throw new Problem('endpoint_deleted', 'its endpoint is deleted, so there is nowhere to send it');
      }
      if (replayed.length === 0) {
        throw new Problem('not_dead', `the delivery is ${delivery.status}, or somebody else is replaying it`);
      }
      return { status: 202, json: { replayed: 1, delivery_id: delivery.id } };
    },
  ),
];
