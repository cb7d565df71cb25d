import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from 'node:http';
import { EXPIRED_RULE } from '../../lib/domain/delivery-times.ts';
import { findEndpoint } from '../../lib/store/endpoints.ts';
import { admitProducer } from './admission.ts';
import type { ApiContext } from './context.ts';
import { readBody } from './http/body.ts';
import { EXPIRES_AT_HEADER, parseEventHeaders, TARGET_HEADER, typeOfBody } from './http/event-headers.ts';
import { toProblem } from './http/failure.ts';
import { invalid, type Problem } from './http/problem.ts';
import { requestIdOf } from './http/request-id.ts';
import { refuse, sendJson } from './http/respond.ts';
import type { AcceptResult, EventRequest } from './ingest/acceptor.ts';
import { noTarget, refusalOf } from './ingest/refusal.ts';

type Accepted = Extract<AcceptResult, { kind: 'accepted' }>;

/**
 * `POST /v1/events`, the one hot route: handled without express, which costs 125 us a request. Everything that can be judged by the
 * headers is judged before the body is read. Never rejects.
 */
export async function postEvent(
  context: ApiContext,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const startedAt = performance.now();
  const requestId = requestIdOf(request);
  const { ingestMetrics, httpMetrics } = context;
  try {
    const event = await readEvent(context, request, response);
    if (event === 'aborted') return;
    const result = await context.acceptor.accept(event);
    if (result.kind !== 'accepted') throw await refusal(context, event, result);
    answer(response, event, result, requestId);
    ingestMetrics.outcomes[result.replayed ? 'replayed' : 'accepted'].inc();
    ingestMetrics.duration.observe((performance.now() - startedAt) / 1000);
    httpMetrics.answered('postEvent', 202);
  } catch (error) {
    const problem = toProblem(error);
    ingestMetrics.outcomes[problem.status >= 500 ? 'error' : 'rejected'].inc();
    httpMetrics.answered('postEvent', problem.status);
    if (problem.code === 'internal')
      context.log.error({ err: error, request_id: requestId }, 'an event could not be accepted');
    refuse(request, response, problem, requestId);
  }
}

async function readEvent(
  context: ApiContext,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<EventRequest | 'aborted'> {
  const admitted = admitProducer(context, request);
  // Awaited only when it is not cached: a turn of the microtask queue for each request is not free.
  const tenantId = admitted instanceof Promise ? await admitted : admitted;
  const { type, ...rest } = parseEventHeaders(request.headers, Date.now());
  const payload = await readBody(request, response, context.config.maxPayloadBytes);
  if (payload === 'aborted') return payload;
  return { tenantId, type: type ?? typeOfBody(payload), ...rest, payload };
}

function answer(response: ServerResponse, event: EventRequest, result: Accepted, requestId: string): void {
  const headers: OutgoingHttpHeaders = { 'x-request-id': requestId };
  if (event.idempotencyKey !== null) headers['relay-idempotent-replay'] = String(result.replayed);
  sendJson(response, 202, acceptedBody(result), headers);
}

/** The one printer of a 202: a repeated request is answered with the same bytes. Ids need no escaping. */
export function acceptedBody({
  eventId,
  deliveryIds,
  continuesTo,
}: Pick<Accepted, 'eventId' | 'deliveryIds' | 'continuesTo'>): string {
  const ids = deliveryIds.length === 0 ? '' : `"${deliveryIds.join('","')}"`;
  const fanOut = continuesTo === null ? '' : `,"fan_out":{"state":"continues","matched":${continuesTo}}`;
  return `{"event_id":"${eventId}","delivery_ids":[${ids}]${fanOut}}`;
}

async function refusal(
  context: ApiContext,
  event: EventRequest,
  result: Exclude<AcceptResult, Accepted>,
): Promise<Problem> {
  if (result.kind === 'already_expired') return invalid(EXPIRES_AT_HEADER, EXPIRED_RULE);
  if (result.kind !== 'no_target') return refusalOf(result);
  const id = event.targetEndpointId!;
  const endpoint = await findEndpoint(context.db, { tenantId: event.tenantId, id });
  return noTarget(endpoint, `the header ${TARGET_HEADER}`);
}
