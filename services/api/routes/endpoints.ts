import { randomBytes } from 'node:crypto';
import { z } from 'zod';
import { newSecret, validateSecret } from '../../../lib/domain/signing.ts';
import { isAddressed } from '../../../lib/domain/transports/endpoint-rules.ts';
import type { Transport } from '../../../lib/domain/vocabulary.ts';
import { type ChangeResult, changeEndpoint } from '../../../lib/store/endpoint-change.ts';
import {
  createEndpoint,
  deleteEndpoint,
  type Endpoint,
  findEndpoint,
  listEndpoints,
} from '../../../lib/store/endpoints.ts';
import { idCursor } from '../http/cursor.ts';
import { pageLimit } from '../http/fields.ts';
import { pageById } from '../http/page.ts';
import { invalid, Problem } from '../http/problem.ts';
import { type Call, defineRoute, type Reply } from '../http/route.ts';
import {
  absent,
  type IdCall,
  ofOne,
  refOf,
  reply,
  shownEndpoint,
  tag,
  theEndpoint,
} from './endpoint-answers.ts';
import { EndpointPatch, NewEndpoint, requireTimeouts } from './endpoint-settings.ts';
import { requireHeaders } from './header-settings.ts';
import { adminOnly, requireOperationalScope } from './operational-settings.ts';
import { EndpointShape, NewEndpointShape, pageOf, RotationShape } from './shapes.ts';
import {
  requireFitting,
  requireNewToken,
  requireToken,
  requireUrl,
  transportOf,
} from './transport-settings.ts';

const generateSecret = () => newSecret(randomBytes(32));

async function create(
  call: Call<Record<string, never>, Record<string, never>, z.output<typeof NewEndpoint>>,
) {
  const { context, tenantId, body } = call;
  const url = requireUrl(body.transport, body.url, context.config);
  requireFitting(body.transport, body);
  requireTimeouts(body.timeouts, context.config);
  requireOperationalScope(body.operational_scope, call.principal);
  requireHeaders(body.headers, body.header_prefix ?? context.config.headerPrefix);
  const secret = newEndpointSecret(body);
  const endpoint = await createEndpoint(context.db, context.config.secretKeys, {
    tenantId,
    transport: body.transport,
    url,
    secret,
    eventTypes: body.event_types,
    operationalEvents: body.operational_events,
    operationalScope: body.operational_scope,
    description: body.description,
    signingScheme: body.signing_scheme,
    headers: body.headers,
    headerPrefix: body.header_prefix,
    ratePerSecond: body.rate_per_second,
    burst: body.burst,
    maxInFlight: body.max_in_flight,
    retryPolicy: body.retry_policy,
    timeouts: body.timeouts,
  });
  if (!endpoint) throw new Problem('tenant_not_found', 'the tenant was deleted');
  return { status: 201, json: { ...shownEndpoint(endpoint), secret: shownSecret(body.transport, secret) } };
}

function newEndpointSecret({ transport, secret, signing_scheme }: z.output<typeof NewEndpoint>): string {
  if (isAddressed(transport)) return requireToken(transport, secret);
  const own = secret ?? generateSecret();
  const unfit = validateSecret(signing_scheme, own);
  if (unfit !== null) throw invalid('secret', unfit);
  return own;
}

/** A platform's token is not Relay's to show, not even to whoever has just given it. */
function shownSecret(transport: Transport, secret: string): string | null {
  return isAddressed(transport) ? null : secret;
}

async function patch(
  call: Call<{ id: string }, Record<string, never>, z.output<typeof EndpointPatch>>,
): Promise<Reply> {
  const { context, body } = call;
  if (Object.keys(body).length === 0) return reply(findEndpoint(context.db, refOf(call)));
  const transport = await transportOf(call);
  requireFitting(transport, body);
  requireTimeouts(body.timeouts, context.config);
  const change = {
    url: body.url === undefined ? undefined : requireUrl(transport, body.url, context.config),
    eventTypes: body.event_types,
    operationalEvents: body.operational_events,
    operationalScope: body.operational_scope,
    description: body.description,
    signingScheme: body.signing_scheme,
    secret: body.secret,
    headers: body.headers,
    headerPrefix: body.header_prefix,
    ratePerSecond: body.rate_per_second,
    burst: body.burst,
    maxInFlight: body.max_in_flight,
    retryPolicy: body.retry_policy,
    timeouts: body.timeouts,
  };
  const endpoint = requireChanged(await changeEndpoint(context.db, refOf(call), change, changeOptions(call)));
  return { status: 200, json: shownEndpoint(endpoint) };
}

function changeOptions({ context, principal }: Pick<IdCall, 'context' | 'principal'>) {
  const { secretKeys, secretOverlapMs, headerPrefix } = context.config;
  return { keys: secretKeys, overlapMs: secretOverlapMs, headerPrefix, admin: principal.tenantId === null };
}

function requireChanged(result: ChangeResult): Endpoint {
  switch (result.kind) {
    case 'changed':
      return result.endpoint;
    case 'not_found':
      throw absent();
    case 'admin_only':
      throw adminOnly();
    case 'unfit_secret':
    case 'unfit_headers':
      throw invalid(result.field, result.rule);
  }
}

const Rotation = z.strictObject({ secret: z.string({ error: 'must be text' }).optional() });

async function rotate(
  call: Call<{ id: string }, Record<string, never>, z.output<typeof Rotation>>,
): Promise<Reply> {
  const transport = await transportOf(call);
  const given = call.body.secret;
  const secret = isAddressed(transport) ? requireNewToken(transport, given) : (given ?? generateSecret());
  const endpoint = requireChanged(
    await changeEndpoint(call.context.db, refOf(call), { secret }, changeOptions(call)),
  );
  const json = {
    id: endpoint.id,
    secret: shownSecret(transport, secret),
    previous_secret_expires_at: endpoint.previousSecretExpiresAt,
    version: endpoint.version,
  };
  return { status: 200, json };
}

async function remove(call: IdCall): Promise<Reply> {
  if (!(await deleteEndpoint(call.context.db, refOf(call)))) throw absent();
  return { status: 204 };
}

export const endpointRoutes = [
  defineRoute(
    {
      name: 'createEndpoint',
      method: 'post',
      path: '/v1/endpoints',
      access: 'manage',
      tag,
      summary: 'Register an endpoint',
      description:
        'The secret is shown in this answer only; without one of your own, one is made. For a chat transport it is the token that the platform gave out: it must be given, and is never shown.',
      body: NewEndpoint,
      answers: [{ status: 201, description: 'The endpoint and its secret', schema: NewEndpointShape }],
      problems: ['endpoint_refused'],
    },
    create,
  ),
  defineRoute(
    {
      name: 'listEndpoints',
      method: 'get',
      path: '/v1/endpoints',
      access: 'read',
      reach: 'own',
      tag,
      summary: 'List endpoints, oldest first',
      query: z.strictObject({ limit: pageLimit(), cursor: idCursor() }),
      answers: [{ status: 200, description: 'A page of endpoints', schema: pageOf(EndpointShape) }],
    },
    async ({ context, principal, tenantId, query }) => {
      const ids = principal.endpointIds && [...principal.endpointIds];
      const page = { after: query.cursor ?? null, limit: query.limit + 1, ids };
      const found = await listEndpoints(context.db, tenantId, page);
      return { status: 200, json: pageById(found, query.limit, shownEndpoint) };
    },
  ),
  defineRoute(
    {
      ...ofOne,
      name: 'getEndpoint',
      method: 'get',
      path: '/v1/endpoints/{id}',
      access: 'read',
      reach: 'endpoint',
      summary: 'Get an endpoint',
      answers: theEndpoint,
    },
    (call) => reply(findEndpoint(call.context.db, refOf(call))),
  ),
  defineRoute(
    {
      ...ofOne,
      name: 'changeEndpoint',
      method: 'patch',
      path: '/v1/endpoints/{id}',
      summary: 'Change an endpoint',
      description:
        'What is not named stays. A change holds for every send that is claimed after it. A `secret` replaces the current one as rotate-secret does.',
      body: EndpointPatch,
      answers: theEndpoint,
      problems: ['endpoint_not_found', 'endpoint_refused'],
    },
    patch,
  ),
  defineRoute(
    {
      ...ofOne,
      name: 'deleteEndpoint',
      method: 'delete',
      path: '/v1/endpoints/{id}',
      summary: 'Delete an endpoint',
      description: 'What is still owed to it ends dead, `cancelled`; its history stays readable.',
      answers: [{ status: 204, description: 'Deleted' }],
    },
    remove,
  ),
  defineRoute(
    {
      ...ofOne,
      name: 'rotateSecret',
      method: 'post',
      path: '/v1/endpoints/{id}/rotate-secret',
      summary: 'Replace the signing secret',
      description:
        'The old secret signs beside the new one until `previous_secret_expires_at`. A second rotation in that time drops the oldest. For a chat transport the new token must be given, and takes the place of the old one at once.',
      body: Rotation,
      bodyIsOptional: true,
      answers: [{ status: 200, description: 'The new secret, shown once', schema: RotationShape }],
    },
    rotate,
  ),
];
