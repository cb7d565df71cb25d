import { z } from 'zod';
import { countEventDeliveries, listEventDeliveries } from '../../../lib/store/deliveries-read.ts';
import { findEvent, findPayload, type Payload, searchEvents } from '../../../lib/store/events-read.ts';
import { idCursor, printIdCursor } from '../http/cursor.ts';
import { idParams, pageLimit } from '../http/fields.ts';
import { acceptedRange, flagFilter, typeFilter } from '../http/filters.ts';
import { type ListName, listCursor, openIdPlace, sealPlace } from '../http/list-cursor.ts';
import { defineRoute } from '../http/route.ts';
import { search } from '../http/search.ts';
import { noEvent, shownDelivery, shownEvent } from './delivery-answers.ts';
import { EventDetailShape, EventShape, pageOf } from './shapes.ts';

const tag = 'Events';

/** What a header may hold; anything else that a producer once stored is sent as bytes of no type. */
const HEADER_VALUE = /^[\t\x20-\x7e]+$/;

/**
 * A payload is somebody's bytes, of a type that they named, on the origin of the API: it is saved and never shown, and nothing in it may run.
 */
function payloadHeaders(eventId: string, { contentType }: Payload) {
  return {
    'content-type': HEADER_VALUE.test(contentType) ? contentType : 'application/octet-stream',
    'content-disposition': `attachment; filename="${eventId}"`,
    'x-content-type-options': 'nosniff',
    'content-security-policy': "default-src 'none'; sandbox",
    'cache-control': 'private, no-store',
  };
}

export const eventReadRoutes = [
  defineRoute(
    {
      name: 'listEvents',
      method: 'get',
      path: '/v1/events',
      access: 'read',
      tag,
      summary: 'List events, newest first',
      description:
        'A page looks through 10,000 events at most: with `type` it may be short, or empty, while `next_cursor` says that there is more. A cursor goes with the filters that it came from.',
      query: z.strictObject({
        type: typeFilter(),
        ...acceptedRange,
        unmatched: flagFilter().meta({ description: '`true`: only events that no endpoint subscribed to.' }),
        limit: pageLimit(),
        cursor: listCursor(),
      }),
      answers: [{ status: 200, description: 'A page of events', schema: pageOf(EventShape) }],
      problems: ['search_timeout'],
    },
    async ({ context, tenantId, query }) => {
      const { type, from, to, limit, cursor } = query;
      const unmatched = query.unmatched === 'true';
      const name: ListName = { list: 'events', tenantId, type, from, to, unmatched };
      const before = openIdPlace(cursor, name);
      const { items, next } = await search(context, (db) =>
        searchEvents(db, tenantId, { type, unmatched, from, to, before, limit }),
      );
      const json = { count: items.length, items: items.map(shownEvent), next_cursor: sealPlace(next, name) };
      return { status: 200, json };
    },
  ),
  defineRoute(
    {
      name: 'getEvent',
      method: 'get',
      path: '/v1/events/{id}',
      access: 'read',
      reach: 'event',
      tag,
      summary: 'Get an event, how its deliveries stand, and a page of them',
      params: idParams,
      query: z.strictObject({ limit: pageLimit(), cursor: idCursor() }),
      answers: [{ status: 200, description: 'The event', schema: EventDetailShape }],
      problems: ['event_not_found', 'search_timeout'],
    },
    async ({ context, principal, tenantId, params, query }) => {
      const event = await findEvent(context.db, tenantId, params.id);
      if (!event) throw noEvent();
      const of = { eventId: event.id, endpointIds: principal.endpointIds && [...principal.endpointIds] };
      const page = { after: query.cursor ?? null, limit: query.limit + 1 };
      const found = await search(context, (db) => listEventDeliveries(db, of, page));
      const { counts, capped } = await search(context, (db) => countEventDeliveries(db, of));
      const deliveries = found.slice(0, query.limit);
      const next = found.length > query.limit ? deliveries.at(-1)!.id : null;
      const json = {
        event: shownEvent(event),
        counts: { ...counts, capped },
        deliveries: deliveries.map(shownDelivery),
        next_cursor: printIdCursor(next),
      };
      return { status: 200, json };
    },
  ),
  defineRoute(
    {
      name: 'getEventPayload',
      method: 'get',
      path: '/v1/events/{id}/payload',
      access: 'read',
      reach: 'event',
      tag,
      summary: 'Get the bytes of an event as they were posted',
      description: 'With the content type that they were posted with, as a file to be saved.',
      params: idParams,
      answers: [{ status: 200, description: 'The payload, byte for byte', mediaType: '*/*' }],
      problems: ['event_not_found'],
    },
    async ({ context, tenantId, params }) => {
      const found = await findPayload(context.db, tenantId, params.id);
      if (!found) throw noEvent();
      return { status: 200, bytes: found.payload, headers: payloadHeaders(params.id, found) };
    },
  ),
];
