import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from 'node:http';
import { findEndpoint } from '../../lib/store/endpoints.ts';
import type { ApiContext } from './context.ts';
import { requireAccess } from './http/authentication.ts';
import { readBody } from './http/body.ts';
import { parseEventHeaders, TARGET_HEADER, typeOfBody } from './http/event-headers.ts';
import { toProblem } from './http/failure.ts';
import { invalid, Problem, tryAgain } from './http/problem.ts';
import { requestIdOf } from './http/request-id.ts';
import { refuse, sendJson } from './http/respond.ts';
import { TENANT_HEADER } from './http/tenancy.ts';
import type { AcceptResult, EventRequest } from './ingest/acceptor.ts';

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
  const { headers } = request;
  let principal = context.authenticator.authenticate(headers.authorization);
  // Awaited only when they are not cached: a turn of the microtask queue for each request is not free.
  if (principal instanceof Promise) principal = await principal;
  requireAccess(principal, 'events:write');
  context.keyUsage.note(principal.keyId);
  let tenantId = context.tenancy.tenantFor(principal, headers[TENANT_HEADER]);
  if (tenantId instanceof Promise) tenantId = await tenantId;
  if (request.url?.includes('?')) throw invalid('query', 'this route takes no parameters');
  const { type, ...rest } = parseEventHeaders(headers);
  const payload = await readBody(request, response, context.config.maxPayloadBytes);
  if (payload === 'aborted') return payload;
  return { tenantId, type: type ?? typeOfBody(payload), ...rest, payload, deliverAt: null, expiresAt: null };
}

function answer(response: ServerResponse, event: EventRequest, result: Accepted, requestId: string): void {
  const headers: OutgoingHttpHeaders = { 'x-request-id': requestId };
  if (event.idempotencyKey !== null) headers['relay-idempotent-replay'] = String(result.replayed);
  sendJson(response, 202, acceptedBody(result), headers);
}

/** The one printer of a 202: a repeated request is answered with the same bytes. Ids need no escaping. */
export function acceptedBody({ eventId, deliveryIds }: Pick<Accepted, 'eventId' | 'deliveryIds'>): string {
  const ids = deliveryIds.length === 0 ? '' : `"${deliveryIds.join('","')}"`;
  return `{"event_id":"${eventId}","delivery_ids":[${ids}]}`;
}

async function refusal(
  context: ApiContext,
  event: EventRequest,
  result: Exclude<AcceptResult, Accepted>,
): Promise<Problem> {
  switch (result.kind) {
    case 'conflict':
      return new Problem(
        'idempotency_conflict',
        'this idempotency key was used for another type, body or target',
      );
    case 'in_progress':
      return tryAgain(
        'idempotency_in_progress',
        'another request with this idempotency key is not finished',
        1,
      );
    case 'no_target':
      return noTarget(context, event);
    case 'too_many_deliveries':
      return new Problem('too_many_deliveries', 'an event may go to 65,535 endpoints at most');
    case 'overloaded':
      return tryAgain('overloaded', 'too many events wait to be stored; nothing was stored of this one', 1);
    case 'commit_unknown':
      return tryAgain('commit_unknown', UNKNOWN_OUTCOME, 1);
    case 'unavailable':
      return tryAgain('database_unavailable', 'the database does not answer; nothing was stored', 2);
    case 'rejected':
      return new Problem('event_refused', result.message);
  }
}

const UNKNOWN_OUTCOME =
  'the connection to the database broke before it said whether the event was stored; with an idempotency key it is safe to send ' +
  'it again, without one it may be stored twice';

async function noTarget(context: ApiContext, event: EventRequest): Promise<Problem> {
  const id = event.targetEndpointId!;
  const endpoint = await findEndpoint(context.db, { tenantId: event.tenantId, id });
  if (!endpoint)
    return new Problem('endpoint_not_found', `there is no endpoint for the header ${TARGET_HEADER}`);
  // Enabled again since: the same request would pass now.
  if (endpoint.enabled) return tryAgain('endpoint_disabled', 'the endpoint was disabled a moment ago', 1);
  return new Problem('endpoint_disabled', `the endpoint is disabled (${endpoint.disabledReason})`);
}
