import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from 'node:http';
import express, { type ErrorRequestHandler, type Express } from 'express';
import { z } from 'zod';
import type { ApiContext } from './context.ts';
import { admit } from './http/admit.ts';
import { audited, isAudited } from './http/audit.ts';
import type { Principal } from './http/authentication.ts';
import { readBody } from './http/body.ts';
import { toProblem } from './http/failure.ts';
import { parseJsonBody, parsePart } from './http/parse.ts';
import { invalid, Problem } from './http/problem.ts';
import { requireReach } from './http/reach.ts';
import { requestIdOf } from './http/request-id.ts';
import { refuse, sendJson } from './http/respond.ts';
import type { Handler, Reply, Route } from './http/route.ts';
import { TENANT_HEADER } from './http/tenancy.ts';

/** Bodies of the management routes; the largest endpoint stays far below it. */
const MAX_BODY_BYTES = 65_536;

interface Exchange {
  request: express.Request;
  response: ServerResponse;
  requestId: string;
  startedAt: number;
  /** Null for what is no route. */
  route: Route | null;
}

/** Everything but the hot route, from the one table of routes. */
export function createApp(context: ApiContext, routes: readonly Route[]): Express {
  const app = express();
  app.disable('x-powered-by');
  app.disable('etag');
  app.enable('case sensitive routing');
  app.enable('strict routing');
  for (const route of routes) {
    const { handle } = route;
    if (!handle) continue;
    app[route.method](expressPath(route.path), async (request, response) => {
      await serve(context, begin(request, response, route), route, handle);
    });
  }
  app.use((request, response) => {
    fail(context, begin(request, response, null), notRouted(routes, request));
  });
  app.use(failures(context));
  return app;
}

/** `/v1/endpoints/{id}` as express writes it: `/v1/endpoints/:id`. */
function expressPath(path: string): string {
  return path.replace(/\{(\w+)\}/g, ':$1');
}

function begin(request: express.Request, response: ServerResponse, route: Route | null): Exchange {
  return { request, response, route, requestId: requestIdOf(request), startedAt: performance.now() };
}

async function serve(context: ApiContext, exchange: Exchange, route: Route, handle: Handler): Promise<void> {
  try {
    const { request, response } = exchange;
    const principal =
      route.access === 'open' ? ANYBODY : await admit(context, request.headers.authorization, route.access);
    const tenantId =
      route.access === 'open'
        ? ''
        : await context.tenancy.tenantFor(principal, request.headers[TENANT_HEADER]);
    const params = route.params ? parsePart(route.params, request.params, 'path') : {};
    const query = parsePart(route.query ?? NOTHING, { ...request.query }, 'query');
    const body = await parseBody(route, request, response);
    if (body === ABORTED) return;
    const call = { context, principal, tenantId, params, query, body };
    await requireReach(route, call);
    const reply = isAudited(route)
      ? await audited(route, handle, call, exchange.requestId)
      : await handle(call);
    send(context, exchange, reply);
  } catch (error) {
    fail(context, exchange, error);
  }
}

const ANYBODY: Principal = {
  keyId: null,
  portalTokenId: null,
  tenantId: null,
  scopes: [],
  endpointIds: null,
  requestsPerSecond: null,
};

const NOTHING = z.strictObject({});
const ABORTED = Symbol('aborted');

/** What the route's schema makes of the body; a route without one takes an empty body or `{}`. */
async function parseBody(route: Route, request: IncomingMessage, response: ServerResponse): Promise<unknown> {
  if (route.method === 'get') return {};
  const bytes = await readBody(request, response, MAX_BODY_BYTES);
  if (bytes === 'aborted') return ABORTED;
  const value = parseJsonBody(request, bytes);
  if (value === undefined && route.body && !route.bodyIsOptional)
    throw invalid('body', 'must be a JSON object');
  return parsePart(route.body ?? NOTHING, value ?? {}, 'body');
}

function send(context: ApiContext, exchange: Exchange, reply: Reply): void {
  const { response, requestId } = exchange;
  const headers: OutgoingHttpHeaders = { 'x-request-id': requestId };
  if ('json' in reply) {
    sendJson(response, reply.status, JSON.stringify(reply.json), { ...reply.headers, ...headers });
  } else if ('text' in reply) {
    response.writeHead(reply.status, { ...reply.headers, ...headers }).end(reply.text);
  } else if ('bytes' in reply) {
    const { bytes } = reply;
    response
      .writeHead(reply.status, { ...reply.headers, 'content-length': bytes.length, ...headers })
      .end(bytes);
  } else {
    response.writeHead(reply.status, headers).end();
  }
  note(context, exchange, reply.status, null);
}

function fail(context: ApiContext, exchange: Exchange, error: unknown): void {
  const problem = toProblem(error);
  if (exchange.response.headersSent) {
    exchange.response.destroy();
  } else {
    refuse(exchange.request, exchange.response, problem, exchange.requestId);
  }
  note(context, exchange, problem.status, problem);
}

/** One line and two counts for each request. Paths are logged as the route has them: what a client made up stays out. */
function note(context: ApiContext, exchange: Exchange, status: number, problem: Problem | null): void {
  const { route, requestId, startedAt, request } = exchange;
  context.httpMetrics.answered(route?.name ?? null, status);
  const line = {
    request_id: requestId,
    method: request.method.slice(0, 16),
    route: route?.path ?? 'unknown',
    status,
    ms: Math.round(performance.now() - startedAt),
    ...(problem ? { code: problem.code } : {}),
  };
  if (problem?.code === 'internal')
    context.log.error({ ...line, err: problem.cause }, 'a request failed by our fault');
  else if (status >= 500 && problem)
    context.log.warn({ ...line, err: problem.cause }, 'a request could not be served');
  else if (route?.access === 'open') context.log.debug(line, 'request');
  else context.log.info(line, 'request');
}

/** 405 with the methods that the path has, or 404. */
function notRouted(routes: readonly Route[], request: express.Request): Problem {
  const methods = routes
    .filter((route) => pathPattern(route.path).test(request.path))
    .map((route) => route.method);
  if (methods.length === 0) return new Problem('route_not_found', 'there is no such route');
  const allow = [
    ...new Set(methods.flatMap((method) => (method === 'get' ? ['GET', 'HEAD'] : [method.toUpperCase()]))),
  ];
  return new Problem('method_not_allowed', `allowed here: ${allow.join(', ')}`, {
    headers: { allow: allow.join(', ') },
  });
}

function pathPattern(path: string): RegExp {
  return new RegExp(`^${path.replace(/\{\w+\}/g, '[^/]+')}$`);
}

/** What express itself refuses, such as a path that does not decode. */
function failures(context: ApiContext): ErrorRequestHandler {
  return (error: unknown, request, response, _next) => {
    const byExpress = error instanceof URIError;
    fail(context, begin(request, response, null), byExpress ? invalid('path', 'does not decode') : error);
  };
}
