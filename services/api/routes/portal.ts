import { z } from 'zod';
import { PORTAL_SCOPES } from '../../../lib/domain/vocabulary.ts';
import {
  createPortalToken,
  listPortalTokens,
  type PortalToken,
  revokePortalToken,
} from '../../../lib/store/portal-tokens.ts';
import { idCursor } from '../http/cursor.ts';
import { idParams, number, pageLimit, text, uuid } from '../http/fields.ts';
import { pageById } from '../http/page.ts';
import { Problem } from '../http/problem.ts';
import { type Call, defineRoute, type Reply } from '../http/route.ts';
import { NewPortalTokenShape, PortalTokenShape, pageOf } from './shapes.ts';

const tag = 'Portal tokens';
const HOUR_SECONDS = 3_600;
const MAX_ENDPOINTS = 100;

const NewToken = z.strictObject({
  name: text(200).default(''),
  scopes: z
    .array(z.enum(PORTAL_SCOPES, { error: `must be among ${PORTAL_SCOPES.join(', ')}` }), {
      error: 'must be a list of scopes',
    })
    .min(1, { error: 'must name at least one scope' })
    .transform((scopes) => [...new Set(scopes)])
    .default([...PORTAL_SCOPES]),
  endpoint_ids: z
    .array(uuid(), { error: 'must be a list of endpoints’ ids' })
    .min(1, { error: 'must name at least one endpoint; left out, the token is for all of them' })
    .max(MAX_ENDPOINTS, { error: `must name at most ${MAX_ENDPOINTS} endpoints` })
    .transform((ids) => [...new Set(ids)])
    .optional()
    .meta({ description: 'Confines the token to these endpoints.' }),
  expires_in_seconds: number({ min: 60, max: 24 * HOUR_SECONDS, whole: true }).default(HOUR_SECONDS),
});

function shown(token: PortalToken) {
  return {
    id: token.id,
    tenant_id: token.tenantId,
    name: token.name,
    prefix: token.prefix,
    scopes: token.scopes,
    endpoint_ids: token.endpointIds,
    created_at: token.createdAt,
    expires_at: token.expiresAt,
  };
}

async function create(
  call: Call<Record<string, never>, Record<string, never>, z.output<typeof NewToken>>,
): Promise<Reply> {
  const { context, principal, tenantId, body } = call;
  const result = await createPortalToken(context.db, {
    tenantId,
    name: body.name,
    scopes: body.scopes,
    endpointIds: body.endpoint_ids ?? null,
    livesMs: body.expires_in_seconds * 1_000,
    madeBy: principal.keyId,
  });
  switch (result.kind) {
    case 'made':
      return { status: 201, json: { ...shown(result.portalToken), token: result.token } };
    case 'no_tenant':
      throw new Problem('tenant_not_found', 'the tenant was deleted');
    case 'no_endpoint':
      throw new Problem('endpoint_not_found', 'one of endpoint_ids names no endpoint');
  }
}

export const portalRoutes = [
  defineRoute(
    {
      name: 'createPortalToken',
      method: 'post',
      path: '/v1/portal-tokens',
      access: 'manage',
      tag,
      summary: 'Make a portal token, for a page that customers see',
      description:
        'Short-lived, for the tenant that the request acts for, for reading and replaying only, and with `endpoint_ids` for those endpoints only. It is shown in this answer only.',
      body: NewToken,
      bodyIsOptional: true,
      answers: [{ status: 201, description: 'The token, shown once', schema: NewPortalTokenShape }],
      problems: ['endpoint_not_found'],
    },
    create,
  ),
  defineRoute(
    {
      name: 'listPortalTokens',
      method: 'get',
      path: '/v1/portal-tokens',
      access: 'manage',
      tag,
      summary: 'List the portal tokens that work, oldest first',
      query: z.strictObject({ limit: pageLimit(), cursor: idCursor() }),
      answers: [{ status: 200, description: 'A page of tokens', schema: pageOf(PortalTokenShape) }],
    },
    async ({ context, tenantId, query }) => {
      const page = { after: query.cursor ?? null, limit: query.limit + 1 };
      const found = await listPortalTokens(context.db, tenantId, page);
      return { status: 200, json: pageById(found, query.limit, shown) };
    },
  ),
  defineRoute(
    {
      name: 'revokePortalToken',
      method: 'delete',
      path: '/v1/portal-tokens/{id}',
      access: 'manage',
      tag,
      summary: 'Revoke a portal token',
      description: 'It may still work for 5 seconds.',
      params: idParams,
      answers: [{ status: 204, description: 'Revoked' }],
      problems: ['portal_token_not_found'],
    },
    async ({ context, tenantId, params }) => {
      if (!(await revokePortalToken(context.db, { tenantId, id: params.id }))) {
        throw new Problem('portal_token_not_found', 'there is no portal token of this id that works');
      }
      return { status: 204 };
    },
  ),
];
