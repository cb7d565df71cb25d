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

/** What a handler answers; `text` for what is not JSON. */
export type Reply =
  | { status: number; json: unknown; headers?: OutgoingHttpHeaders }
  | { status: number; text: string; headers: OutgoingHttpHeaders }
  | { status: 204 };

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
  summary: string;
  description?: string;
  tag: string;
  params?: z.ZodType;
  query?: z.ZodType;
  body?: z.ZodType;
  bodyIsOptional?: boolean;
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
