import { z } from 'zod';
import { explainDelivery } from '../../../lib/domain/explain.ts';
import { explainMatch } from '../../../lib/domain/explain-match.ts';
import { type Event, findEvent } from '../../../lib/store/events-read.ts';
import {
  AHEAD_LIMIT,
  type ExplainedDelivery,
  type ExplainedEndpoint,
  type ExplainedOwed,
  readDeliveryFacts,
} from '../../../lib/store/explain.ts';
import { type EndpointMatch, findMatch, listMatches } from '../../../lib/store/explain-event.ts';
import { idCursor, printIdCursor } from '../http/cursor.ts';
import { idParams, pageLimit, uuid } from '../http/fields.ts';
import { Problem } from '../http/problem.ts';
import { defineRoute } from '../http/route.ts';
import { shownBreaker, shownEventTypes } from './endpoint-answers.ts';
import { DeliveryExplanationShape, EventExplanationShape } from './explain-shapes.ts';

function shownExplanation(facts: ExplainedDelivery) {
  const { endpoint, owed, last } = facts;
  return {
    delivery_id: facts.id,
    status: facts.status,
    dead_reason: facts.deadReason,
    finished_at: facts.finishedAt,
    ...explainDelivery(facts),
    waiting: owed?.waiting ?? null,
    next_attempt_at: owed?.dueAt ?? null,
    attempts: facts.attempts,
    deferrals: owed?.deferrals ?? 0,
    last_outcome: last && {
      class: last.class,
      http_status: last.httpStatus,
      error: last.error,
      at: last.at,
    },
    endpoint: endpoint && shownGates(endpoint),
    lease: owed?.lease
      ? { process: owed.lease.process, role: owed.lease.role, expires_at: owed.lease.expiresAt }
      : null,
    ahead: shownAhead(owed?.ahead ?? null),
    queue: owed && shownQueue(owed),
  };
}

function shownGates(endpoint: ExplainedEndpoint) {
  return {
    id: endpoint.id,
    deleted: endpoint.deleted,
    enabled: endpoint.enabled,
    disabled_reason: endpoint.disabledReason,
    disabled_at: endpoint.disabledAt,
    paused: endpoint.paused,
    paused_until: endpoint.pausedUntil,
    paused_reason: endpoint.pausedReason,
    breaker: shownBreaker(endpoint),
    rate_per_second: endpoint.ratePerSecond,
    burst: endpoint.burst,
    max_in_flight: endpoint.maxInFlight,
  };
}

const shownAhead = (count: number | null) =>
  count === null ? null : { count, capped: count === AHEAD_LIMIT };

function shownQueue(owed: ExplainedOwed) {
  return {
    lane: owed.lane,
    due_at: owed.dueAt,
    announced_at: owed.announcedAt,
    expires_at: owed.expiresAt,
    reclaims: owed.reclaims,
    cancel_requested: owed.cancelRequested,
  };
}

function shownMatch(event: Event, match: EndpointMatch) {
  const facts = { ...match, eventType: event.type, eventAt: event.createdAt };
  return {
    endpoint_id: match.endpointId,
    url: match.url,
    event_types: match.endpoint ? shownEventTypes(match.endpoint.eventTypes) : null,
    matched: match.deliveryId !== null || match.stillToCome,
    delivery_id: match.deliveryId,
    delivery_status: match.deliveryStatus,
    ...explainMatch(facts),
  };
}

function shownMatches(event: Event, matches: readonly EndpointMatch[], next: string | null) {
  return {
    event_id: event.id,
    event_type: event.type,
    created_at: event.createdAt,
    count: matches.length,
    items: matches.map((match) => shownMatch(event, match)),
    next_cursor: printIdCursor(next),
  };
}

/** Nothing is said of an endpoint that another tenant may have. */
const unknown = (endpointId: string): EndpointMatch => ({
  endpointId,
  url: null,
  deliveryId: null,
  deliveryStatus: null,
  stillToCome: false,
  endpoint: null,
});

export const explainRoutes = [
  defineRoute(
    {
      name: 'explainDelivery',
      method: 'get',
      path: '/v1/deliveries/{id}/explain',
      access: 'read',
      reach: 'delivery',
      tag: 'Deliveries',
      summary: 'Say why a delivery has not arrived, or how it ended',
      description:
        'What holds it back at this moment, what comes next, and the state of everything that it passes on its way.',
      params: idParams,
      answers: [{ status: 200, description: 'Where it is', schema: DeliveryExplanationShape }],
      problems: ['delivery_not_found'],
    },
    async ({ context, tenantId, params }) => {
      const facts = await readDeliveryFacts(context.db, tenantId, params.id);
      if (!facts) throw new Problem('delivery_not_found', 'there is no delivery of this id');
      return { status: 200, json: shownExplanation(facts) };
    },
  ),
  defineRoute(
    {
      name: 'explainEvent',
      method: 'get',
      path: '/v1/events/{id}/explain',
      access: 'read',
      tag: 'Events',
      summary: 'Say which endpoints an event was matched to, and why others were not',
      description:
        'A page of the endpoints of the tenant, in order of their ids; a deleted one stands in it when the event was delivered to it. With `endpoint_id`, that one alone, deleted or not.',
      params: idParams,
      query: z.strictObject({ limit: pageLimit(), cursor: idCursor(), endpoint_id: uuid().optional() }),
      answers: [{ status: 200, description: 'A page of endpoints', schema: EventExplanationShape }],
      problems: ['event_not_found'],
    },
    async ({ context, tenantId, params, query }) => {
      const event = await findEvent(context.db, tenantId, params.id);
      if (!event) throw new Problem('event_not_found', 'there is no event of this id');
      const of = { tenantId, event };
      if (query.endpoint_id !== undefined) {
        const match = await findMatch(context.db, of, query.endpoint_id);
        return { status: 200, json: shownMatches(event, [match ?? unknown(query.endpoint_id)], null) };
      }
      const page = { after: query.cursor ?? null, limit: query.limit + 1 };
      const found = await listMatches(context.db, of, page);
      const matches = found.slice(0, query.limit);
      const next = found.length > query.limit ? matches.at(-1)!.endpointId : null;
      return { status: 200, json: shownMatches(event, matches, next) };
    },
  ),
];
