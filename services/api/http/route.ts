import type { OutgoingHttpHeaders } from 'node:http';
import type { z } from 'zod';
import type { ApiContext } from '../context.ts';
import type { Access, Principal } from './authentication.ts';
import type { ProblemCode } from './problem.ts';

export type Method = 'get' | 'post' | 'patch' | 'delete';

/** One request to a handler: everything in it is parsed. */
export interface Call<P, Q, B> {
  context: ApiContext;
  principal: Principal;
  /** The tenant that the request acts for. */
  tenantId: string;
  params: P;
  query: Q;
  body: B;
}

/** What a handler answers; `text` and `bytes` for what is not JSON. */
export type Reply = (
  | { status: number; json: unknown; headers?: OutgoingHttpHeaders }
  | { status: number; text: string; headers: OutgoingHttpHeaders }
  | { status: number; bytes: Buffer; headers: OutgoingHttpHeaders }
  | { status: 204 }
) & {
  /** What the audit log should say beside, or instead of, what it reads off the request. */
  audit?: AuditNote;
};

export interface AuditNote {
  /** Whose log it stands in, where that is not the tenant that the request acts for; null for what belongs to no tenant. */
  tenantId?: string | null;
  resourceId?: string | null;
  changes?: Record<string, unknown>;
}

/**
 * What keeps a portal token that is for some endpoints to those: the endpoint, delivery or event that the path names by `{id}`; an `endpoint_id`
 * that must stand in the query or the body; or `own`, when the handler sees to it by the principal's `endpointIds`. A route that says nothing
 * is closed to such a token.
 */
export type Reach = 'endpoint' | 'delivery' | 'event' | 'filter' | 'own';

export interface Answer {
  status: number;
  description: string;
  /** Absent for an answer without a body, or whose body is text. */
  schema?: z.ZodType;
  mediaType?: string;
  headers?: Record<string, string>;
}

/** What is said of a route once, for the router, the scope check and the OpenAPI document alike. */
export interface RouteFacts {
  /** Names the route in metrics, logs and generated clients. */
  name: string;
  method: Method;
  /** With `{id}` for a parameter. */
  path: string;
  access: Access;
  reach?: Reach;
  /** True where the work commits by itself: the audit row is written after it, in a transaction of its own. */
  commitsItself?: boolean;
  summary: string;
  description?: string;
  tag: string;
  params?: z.ZodType;
  query?: z.ZodType;
  body?: z.ZodType;
  bodyIsOptional?: boolean;
  /** What the bodies are, by media type, of a route that the front reads by itself; absent for one that takes any bytes. */
  frontBody?: Readonly<Record<string, z.ZodType>>;
  answers: readonly Answer[];
  /** Problems of its own, besides those that every route may answer. */
  problems?: readonly ProblemCode[];
}

export type Handler = (call: Call<unknown, unknown, unknown>) => Promise<Reply>;

export interface Route extends RouteFacts {
  /** Null for the route that the front answers before express is asked. */
  handle: Handler | null;
}

type Parsed<S> = S extends z.ZodType ? z.output<S> : Record<string, never>;

/** Ties a handler to the schemas that its route parses requests with. */
export function defineRoute<
  P extends z.ZodType | undefined = undefined,
  Q extends z.ZodType | undefined = undefined,
  B extends z.ZodType | undefined = undefined,
>(
  facts: Omit<RouteFacts, 'params' | 'query' | 'body'> & { params?: P; query?: Q; body?: B },
  handle: (call: Call<Parsed<P>, Parsed<Q>, Parsed<B>>) => Promise<Reply>,
): Route {
  return { ...(facts as RouteFacts), handle: handle as Handler };
}
