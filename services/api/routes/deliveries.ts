import { z } from 'zod';
import { SHOWN_STATUSES } from '../../../lib/domain/vocabulary.ts';
import {
  type Attempt,
  type Delivery,
  findDelivery,
  listAttempts,
  listEndpointDeliveries,
  listEventDeliveries,
} from '../../../lib/store/deliveries-read.ts';
import { endpointExisted } from '../../../lib/store/endpoints.ts';
import { type Event, findEvent } from '../../../lib/store/events-read.ts';
import { replayDeliveries } from '../../../lib/store/replay.ts';
import { idCursor, printIdCursor } from '../http/cursor.ts';
import { idParams, pageLimit } from '../http/fields.ts';
import { Problem } from '../http/problem.ts';
import { defineRoute } from '../http/route.ts';
import { DeliveryDetailShape, DeliveryShape, EventDetailShape, pageOf, SingleReplayShape } from './shapes.ts';

const MAX_ATTEMPTS_SHOWN = 500;

export function shownDelivery(delivery: Delivery) {
  return {
    id: delivery.id,
    event_id: delivery.eventId,
    endpoint_id: delivery.endpointId,
    event_type: delivery.eventType,
    status: delivery.status,
    attempt: delivery.attempts,
    sends: delivery.sends,
    generation: delivery.generation,
    dead_reason: delivery.deadReason,
    deferral_reason: delivery.deferralReason,
    cancel_requested: delivery.cancelRequested,
    last_class: delivery.lastClass,
    last_http_status: delivery.lastHttpStatus,
    next_attempt_at: delivery.nextAttemptAt,
    created_at: delivery.createdAt,
    finished_at: delivery.finishedAt,
  };
}

function shownAttempt(deliveryId: string, attempt: Attempt) {
  return {
    delivery_id: deliveryId,
    seq: attempt.seq,
    attempt_no: attempt.attempt,
    send_no: attempt.send,
    generation: attempt.generation,
    outcome_class: attempt.class,
    reason: attempt.reason,
    http_status: attempt.httpStatus,
    latency_ms: attempt.durationMs,
    lateness_ms: attempt.latenessMs,
    error: attempt.error,
    response_snippet: attempt.responseSnippet,
    worker_id: attempt.claimedBy,
    next_attempt_at: attempt.nextAttemptAt,
    at: attempt.at,
  };
}

function shownEvent(event: Event) {
  return {
    id: event.id,
    type: event.type,
    content_type: event.contentType,
    payload_bytes: event.payloadBytes,
    deliver_at: event.deliverAt,
    expires_at: event.expiresAt,
    created_at: event.createdAt,
  };
}

export const deliveryRoutes = [
  defineRoute(
    {
      name: 'getEvent',
      method: 'get',
      path: '/v1/events/{id}',
      access: 'read',
      tag: 'Events',
      summary: 'Get an event and a page of its deliveries',
      params: idParams,
      query: z.strictObject({ limit: pageLimit(), cursor: idCursor() }),
      answers: [{ status: 200, description: 'The event', schema: EventDetailShape }],
      problems: ['event_not_found'],
    },
    async ({ context, tenantId, params, query }) => {
      const event = await findEvent(context.db, tenantId, params.id);
      if (!event) throw new Problem('event_not_found', 'there is no event of this id');
      const page = { after: query.cursor ?? null, limit: query.limit + 1 };
      const found = await listEventDeliveries(context.db, event.id, page);
      const deliveries = found.slice(0, query.limit);
      const next = found.length > query.limit ? deliveries.at(-1)!.id : null;
      const json = {
        event: shownEvent(event),
        deliveries: deliveries.map(shownDelivery),
        next_cursor: printIdCursor(next),
      };
      return { status: 200, json };
    },
  ),
  defineRoute(
    {
      name: 'listEndpointDeliveries',
      method: 'get',
      path: '/v1/endpoints/{id}/deliveries',
      access: 'read',
      tag: 'Deliveries',
      summary: "List an endpoint's deliveries, newest first",
      description:
        'With `status`, a page looks through 10,000 deliveries at most: it may be short, or empty, while `next_cursor` says that there is more.',
      params: idParams,
      query: z.strictObject({
        status: z.enum(SHOWN_STATUSES, { error: `must be one of ${SHOWN_STATUSES.join(', ')}` }).optional(),
        limit: pageLimit(),
        cursor: idCursor(),
      }),
      answers: [{ status: 200, description: 'A page of deliveries', schema: pageOf(DeliveryShape) }],
      problems: ['endpoint_not_found'],
    },
    async ({ context, tenantId, params, query }) => {
      if (!(await endpointExisted(context.db, { tenantId, id: params.id }))) {
        throw new Problem('endpoint_not_found', 'there is no endpoint of this id');
      }
      const { deliveries, next } = await listEndpointDeliveries(context.db, params.id, {
        status: query.status ?? null,
        before: query.cursor ?? null,
        limit: query.limit,
      });
      const json = {
        count: deliveries.length,
        items: deliveries.map(shownDelivery),
        next_cursor: printIdCursor(next),
      };
      return { status: 200, json };
    },
  ),
  defineRoute(
    {
      name: 'getDelivery',
      method: 'get',
      path: '/v1/deliveries/{id}',
      access: 'read',
      tag: 'Deliveries',
      summary: 'Get a delivery and its log',
      params: idParams,
      answers: [{ status: 200, description: 'The delivery', schema: DeliveryDetailShape }],
      problems: ['delivery_not_found'],
    },
    async ({ context, tenantId, params }) => {
      const delivery = await findDelivery(context.db, tenantId, params.id);
      if (!delivery) throw new Problem('delivery_not_found', 'there is no delivery of this id');
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
      if (!delivery) throw new Problem('delivery_not_found', 'there is no delivery of this id');
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
