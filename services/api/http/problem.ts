import type { OutgoingHttpHeaders } from 'node:http';

/** Every way in which a request can fail: one list for answers, documentation and tests. */
export const PROBLEMS = {
  invalid_request: { status: 400, title: 'The request breaks a rule' },
  unauthorized: { status: 401, title: 'No usable API key' },
  forbidden: { status: 403, title: 'The API key may not do this' },
  route_not_found: { status: 404, title: 'No such route' },
  tenant_not_found: { status: 404, title: 'No such tenant' },
  portal_token_not_found: { status: 404, title: 'No such portal token' },
  key_not_found: { status: 404, title: 'No such API key' },
  endpoint_not_found: { status: 404, title: 'No such endpoint' },
  event_not_found: { status: 404, title: 'No such event' },
  replay_not_found: { status: 404, title: 'No such replay job' },
  delivery_not_found: { status: 404, title: 'No such delivery' },
  method_not_allowed: { status: 405, title: 'The route has no such method' },
  request_timeout: { status: 408, title: 'The request took too long to arrive' },
  key_ended: { status: 409, title: 'The API key has ended' },
  key_replaced: { status: 409, title: 'The API key was rotated already' },
  default_tenant: { status: 409, title: 'The default tenant stays' },
  endpoint_disabled: { status: 409, title: 'The endpoint is disabled' },
  endpoint_deleted: { status: 409, title: 'The endpoint is deleted' },
  key_pair_refused: { status: 409, title: 'The signing scheme has no key pairs' },
  delivery_finished: { status: 409, title: 'The delivery has ended' },
  still_owed: { status: 409, title: 'The delivery is still owed' },
  delivery_busy: { status: 409, title: 'The delivery is being changed at this moment' },
  replayed_too_often: { status: 409, title: 'The delivery was sent again too often' },
  replay_over: { status: 409, title: 'The replay job is over' },
  too_many_replays: { status: 409, title: 'The tenant has too many replay jobs' },
  not_dead: { status: 409, title: 'Only a dead delivery can be replayed' },
  idempotency_conflict: { status: 409, title: 'The idempotency key was used for another request' },
  idempotency_in_progress: { status: 409, title: 'The idempotency key is in use at this moment' },
  payload_too_large: { status: 413, title: 'The body is too large' },
  unsupported_media_type: { status: 415, title: 'The body is of the wrong type' },
  expectation_failed: { status: 417, title: 'The expectation cannot be met' },
  endpoint_refused: { status: 422, title: 'Relay may not send to this URL' },
  too_many_deliveries: { status: 422, title: 'The event matches too many endpoints' },
  no_email_endpoint: { status: 422, title: 'The tenant has no endpoint for this email' },
  event_refused: { status: 422, title: 'The event cannot be stored' },
  rate_limited: { status: 429, title: 'Too many requests under this key' },
  headers_too_large: { status: 431, title: 'The headers are too large' },
  internal: { status: 500, title: 'A fault of Relay' },
  overloaded: { status: 503, title: 'Too much is waiting' },
  commit_unknown: { status: 503, title: 'It is not known whether the event was stored' },
  search_timeout: { status: 503, title: 'The search takes too long' },
  database_unavailable: { status: 503, title: 'The database does not answer' },
} as const satisfies Record<string, { status: number; title: string }>;

export type ProblemCode = keyof typeof PROBLEMS;

/** One thing that is wrong with a request: where, and which rule it breaks. */
export interface FieldError {
  field: string;
  rule: string;
}

/**
 * A request that fails for a reason its sender should know. Thrown by handlers, printed at the edge as RFC 9457. `detail` is read by
 * people and never holds a secret, a payload or what Postgres said.
 */
export class Problem extends Error {
  override readonly name = 'Problem';
  readonly code: ProblemCode;
  readonly errors: readonly FieldError[];
  readonly headers: OutgoingHttpHeaders;

  constructor(
    code: ProblemCode,
    detail: string,
    more: { errors?: readonly FieldError[]; headers?: OutgoingHttpHeaders; cause?: unknown } = {},
  ) {
    super(detail, more.cause === undefined ? {} : { cause: more.cause });
    this.code = code;
    this.errors = more.errors ?? [];
    this.headers = more.headers ?? {};
  }

  get status(): number {
    return PROBLEMS[this.code].status;
  }
}

/** A 400 for one field. */
export function invalid(field: string, rule: string): Problem {
  return new Problem('invalid_request', `${field}: ${rule}`, { errors: [{ field, rule }] });
}

/** A failure that passes: the sender should try again after so many seconds. */
export function tryAgain(code: ProblemCode, detail: string, seconds: number, cause?: unknown): Problem {
  return new Problem(code, detail, { headers: { 'retry-after': String(seconds) }, cause });
}

/** The body of an error answer (application/problem+json). */
export function problemBody(problem: Problem, requestId: string): string {
  const { code, errors } = problem;
  return JSON.stringify({
    type: `urn:relay:problem:${code}`,
    title: PROBLEMS[code].title,
    status: PROBLEMS[code].status,
    code,
    detail: problem.message,
    request_id: requestId,
    ...(errors.length > 0 ? { errors } : {}),
  });
}
