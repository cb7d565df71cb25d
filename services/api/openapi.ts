import {
  extendZodWithOpenApi,
  OpenAPIRegistry,
  OpenApiGeneratorV31,
  type ResponseConfig,
  type RouteConfig,
} from '@asteasolutions/zod-to-openapi';
import { z } from 'zod';
import { PROBLEMS, type ProblemCode } from './http/problem.ts';
import type { Answer, Route } from './http/route.ts';
import { ProblemShape } from './routes/shapes.ts';

extendZodWithOpenApi(z);

/** The OpenAPI 3.1 document of a table of routes. It says what the code does, because it is made of what the code runs. */
export function describeApi(routes: readonly Route[], version: string): object {
  const registry = new OpenAPIRegistry();
  const bearer = registry.registerComponent('securitySchemes', 'bearer', {
    type: 'http',
    scheme: 'bearer',
    description:
      'An API key: of a tenant, or an admin key. Or a portal token: short-lived, for one tenant, for reading and replaying only.',
  });
  for (const route of routes) registry.registerPath(pathOf(route, bearer.name));
  return new OpenApiGeneratorV31(registry.definitions).generateDocument({
    openapi: '3.1.0',
    info: {
      title: 'Relay',
      version,
      description: 'Outbound webhook delivery: commit once, deliver at least once, lose nothing.',
    },
    servers: [{ url: '/' }],
  });
}

function pathOf(route: Route, security: string): RouteConfig {
  const open = route.access === 'open';
  return {
    operationId: route.name,
    method: route.method,
    path: route.path,
    tags: [route.tag],
    summary: route.summary,
    description: [route.description, open ? null : `Needs ${accessInWords(route.access)}.`]
      .filter(Boolean)
      .join('\n\n'),
    security: open ? [] : [{ [security]: [] }],
    request: {
      ...(route.params ? { params: route.params as z.ZodObject } : {}),
      ...(route.query ? { query: route.query as z.ZodObject } : {}),
      ...(open ? {} : { headers: headersOf(route) }),
      ...bodyOf(route),
    },
    responses: responsesOf(route),
  };
}

function accessInWords(access: Route['access']): string {
  if (access === 'admin') return 'an admin key with the scope `manage`';
  return access === 'replay' ? 'the scope `replay` or `manage`' : `the scope \`${access}\``;
}

function headersOf(route: Route): z.ZodObject {
  const tenant = z.string().optional().openapi({
    format: 'uuid',
    description: 'For an admin key: the tenant to act for; the default tenant otherwise.',
  });
  return route.handle || route.frontBody
    ? z.object({ 'relay-tenant-id': tenant })
    : z.object({ ...EVENT_HEADERS, 'relay-tenant-id': tenant });
}

const EVENT_HEADERS = {
  'relay-event-type': z
    .string()
    .optional()
    .openapi({ description: 'The event type: 1 to 128 of A-Z a-z 0-9 _ . : -' }),
  'idempotency-key': z
    .string()
    .optional()
    .openapi({ description: '1 to 255 visible ASCII characters; a key lives for 24 hours.' }),
  'relay-endpoint-id': z
    .string()
    .optional()
    .openapi({ format: 'uuid', description: 'Deliver to this endpoint only, whatever it subscribes to.' }),
  'relay-deliver-at': z.string().optional().openapi({
    format: 'date-time',
    description:
      'Not before this moment, which lies at most 366 days ahead; a moment that has passed means at once.',
  }),
  'relay-expires-at': z.string().optional().openapi({
    format: 'date-time',
    description: 'What has not arrived by then ends dead, `expired`.',
  }),
};

function bodyOf(route: Route): RouteConfig['request'] {
  if (route.frontBody) {
    const media = Object.entries(route.frontBody).map(([type, schema]) => [type, { schema }] as const);
    return { body: { required: true, content: Object.fromEntries(media) } };
  }
  if (!route.handle) {
    const schema = z.string().openapi({ format: 'binary', description: 'Any bytes, 256 KiB by default.' });
    return { body: { required: true, content: { '*/*': { schema } } } };
  }
  if (!route.body) return {};
  return {
    body: { required: !route.bodyIsOptional, content: { 'application/json': { schema: route.body } } },
  };
}

function responsesOf(route: Route): Record<string, ResponseConfig> {
  const answers = route.answers.map((answer) => [String(answer.status), answerOf(answer)] as const);
  const problems = new Map<number, ProblemCode[]>();
  for (const code of problemsOf(route)) {
    const { status } = PROBLEMS[code];
    problems.set(status, [...(problems.get(status) ?? []), code]);
  }
  const refusals = [...problems].map(([status, codes]) => [String(status), refusalOf(codes)] as const);
  // An answer of the route itself goes before a problem of the same status.
  return Object.fromEntries([...refusals, ...answers].sort(([a], [b]) => a.localeCompare(b)));
}

function answerOf({ description, schema, mediaType, headers }: Answer): ResponseConfig {
  const type = mediaType ?? 'application/json';
  const content = schema || mediaType ? { content: { [type]: { schema: schema ?? z.string() } } } : {};
  const described = Object.entries(headers ?? {}).map(([name, text]) => [
    name,
    z.string().optional().openapi({ description: text }),
  ]);
  return {
    description,
    ...content,
    ...(headers ? { headers: z.object(Object.fromEntries(described)) } : {}),
  };
}

function refusalOf(codes: readonly ProblemCode[]): ResponseConfig {
  return {
    description: codes.map((code) => `\`${code}\`: ${PROBLEMS[code].title}`).join('. '),
    content: { 'application/problem+json': { schema: ProblemShape } },
  };
}

/** The problems that a route may answer: its own, and those of what it takes. */
export function problemsOf(route: Route): ProblemCode[] {
  if (route.access === 'open') return ['invalid_request', ...(route.problems ?? [])];
  const takesBody = route.method !== 'get';
  const codes: readonly ProblemCode[] = [
    'invalid_request',
    'unauthorized',
    'forbidden',
    'tenant_not_found',
    'rate_limited',
    ...(takesBody ? (['request_timeout', 'payload_too_large', 'unsupported_media_type'] as const) : []),
    ...(route.problems ?? []),
    ...outOfReach(route),
    'database_unavailable',
  ];
  return [...new Set(codes)];
}

/** What a portal token for some endpoints is answered about another's. */
function outOfReach({ reach }: Route): ProblemCode[] {
  switch (reach) {
    case 'endpoint':
    case 'filter':
      return ['endpoint_not_found'];
    case 'delivery':
      return ['delivery_not_found'];
    case 'event':
      return ['event_not_found'];
    default:
      return [];
  }
}
