import type { IncomingMessage } from 'node:http';
import type { ApiContext } from './context.ts';
import { admit } from './http/admit.ts';
import type { Principal } from './http/authentication.ts';
import { invalid } from './http/problem.ts';
import { TENANT_HEADER } from './http/tenancy.ts';

/**
 * Lets a producer in, by the headers of its request alone: the tenant that it posts for. At once when everything is cached, because a turn
 * of the microtask queue for each request is not free. Throws a 400, 401, 403, 404 or 429 Problem.
 */
export function admitProducer(context: ApiContext, request: IncomingMessage): string | Promise<string> {
  const principal = admit(context, request.headers.authorization, 'events:write');
  return principal instanceof Promise
    ? principal.then((known) => tenantOf(context, request, known))
    : tenantOf(context, request, principal);
}

function tenantOf(
  context: ApiContext,
  request: IncomingMessage,
  principal: Principal,
): string | Promise<string> {
  if (request.url?.includes('?')) throw invalid('query', 'this route takes no parameters');
  return context.tenancy.tenantFor(principal, request.headers[TENANT_HEADER]);
}
