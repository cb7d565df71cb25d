import type { IncomingMessage, ServerResponse } from 'node:http';
import type { ApiContext } from './context.ts';
import {
  DELIVER_AT_HEADER,
  EVENT_TYPE_HEADER,
  EXPIRES_AT_HEADER,
  IDEMPOTENCY_HEADER,
  TARGET_HEADER,
} from './http/event-headers.ts';
import { toProblem } from './http/failure.ts';
import { invalid, type Problem } from './http/problem.ts';
import { requestIdOf } from './http/request-id.ts';
import { refuse } from './http/respond.ts';

/** One request to a route that is answered before express is asked. */
export interface FrontExchange {
  request: IncomingMessage;
  response: ServerResponse;
  requestId: string;
}

/**
 * Answers a request that posts events in a body of their own: `work` answers and returns the status, or `aborted` when nobody listens any more;
 * what it throws is answered as a Problem. Counts the request, and a refusal of it as one event. Never rejects.
 */
export async function serveFront(
  context: ApiContext,
  name: string,
  exchange: FrontExchange,
  work: () => Promise<number | 'aborted'>,
): Promise<void> {
  const { ingestMetrics, httpMetrics, log } = context;
  const { request, response, requestId } = exchange;
  try {
    const status = await work();
    if (status !== 'aborted') httpMetrics.answered(name, status);
  } catch (error) {
    const problem = toProblem(error);
    ingestMetrics.outcomes[outcomeOf(problem)].inc();
    httpMetrics.answered(name, problem.status);
    if (problem.code === 'internal')
      log.error({ err: error, request_id: requestId }, 'posted events could not be accepted');
    refuse(request, response, problem, requestId);
  }
}

export function exchangeOf(request: IncomingMessage, response: ServerResponse): FrontExchange {
  return { request, response, requestId: requestIdOf(request) };
}

export function outcomeOf(problem: Problem): 'error' | 'rejected' {
  return problem.status >= 500 ? 'error' : 'rejected';
}

/** Headers that say something of one event would be passed over in silence where the body says it. Throws a 400 Problem. */
export function refuseEventHeaders({ headers }: IncomingMessage): void {
  for (const name of EVENT_HEADERS) {
    if (headers[name] !== undefined) throw invalid(name, 'is not read here: the body says it');
  }
}

const EVENT_HEADERS = [
  EVENT_TYPE_HEADER,
  IDEMPOTENCY_HEADER,
  TARGET_HEADER,
  DELIVER_AT_HEADER,
  EXPIRES_AT_HEADER,
];
