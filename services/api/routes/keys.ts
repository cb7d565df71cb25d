import { z } from 'zod';
import { SCOPES } from '../../../lib/domain/vocabulary.ts';
import { type ApiKey, createApiKey, listApiKeys, revokeApiKey } from '../../../lib/store/api-keys.ts';
import type { Principal } from '../http/authentication.ts';
import { idCursor } from '../http/cursor.ts';
import { idParams, moment, pageLimit, text, uuid } from '../http/fields.ts';
import { pageById } from '../http/page.ts';
import { invalid, Problem } from '../http/problem.ts';
import { defineRoute } from '../http/route.ts';
import { KeyShape, NewKeyShape, pageOf } from './shapes.ts';

const tag = 'Keys';

const NewKey = z.strictObject({
  name: text(200).default(''),
  scopes: z
    .array(z.enum(SCOPES, { error: `must be among ${SCOPES.join(', ')}` }), {
      error: 'must be a list of scopes',
    })
    .min(1, { error: 'must name at least one scope' })
    .transform((scopes) => [...new Set(scopes)]),
  expires_at: moment().nullable().default(null),
  tenant_id: uuid().optional(),
  admin: z.boolean({ error: 'must be true or false' }).default(false),
});

function shown(key: ApiKey) {
  return {
    id: key.id,
    tenant_id: key.tenantId,
    name: key.name,
    prefix: key.prefix,
    scopes: key.scopes,
    created_at: key.createdAt,
    expires_at: key.expiresAt,
    last_used_at: key.lastUsedAt,
  };
}

/** Whom a new key is for. A tenant's key makes keys for its own tenant only. */
function ownerOf(body: z.output<typeof NewKey>, principal: Principal, tenantId: string): string | null {
  if (body.admin && body.tenant_id !== undefined)
    throw invalid('tenant_id', 'an admin key belongs to no tenant');
  const owner = body.admin ? null : (body.tenant_id ?? tenantId);
  if (principal.tenantId !== null && owner !== principal.tenantId) {
    throw new Problem('forbidden', 'the key of a tenant can only make keys for its own tenant');
  }
  return owner;
}

export const keyRoutes = [
  defineRoute(
    {
      name: 'createKey',
      method: 'post',
      path: '/v1/keys',
      access: 'manage',
      tag,
      summary: 'Make an API key',
      description:
        'The key is shown in this answer only. Without `tenant_id` it is for the tenant that the request acts for. An admin may make keys for any tenant, and admin keys (`admin: true`).',
      body: NewKey,
      answers: [{ status: 201, description: 'The key, shown once', schema: NewKeyShape }],
      problems: ['tenant_not_found'],
    },
    async ({ context, principal, tenantId, body }) => {
      if (body.expires_at !== null && body.expires_at.getTime() <= Date.now()) {
        throw invalid('expires_at', 'must lie in the future');
      }
      const made = await createApiKey(context.db, {
        tenantId: ownerOf(body, principal, tenantId),
        name: body.name,
        scopes: body.scopes,
        expiresAt: body.expires_at,
      });
      if (!made) throw new Problem('tenant_not_found', 'there is no such tenant');
      return { status: 201, json: { ...shown(made.apiKey), key: made.key } };
    },
  ),
  defineRoute(
    {
      name: 'listKeys',
      method: 'get',
      path: '/v1/keys',
      access: 'manage',
      tag,
      summary: 'List the API keys that are not revoked, oldest first',
      description:
        'Those of the tenant that the request acts for; with `all=true`, for an admin, those of every tenant and the admin keys.',
      query: z.strictObject({
        limit: pageLimit(),
        cursor: idCursor(),
        all: z.enum(['true', 'false'], { error: 'must be true or false' }).default('false'),
      }),
      answers: [{ status: 200, description: 'A page of keys', schema: pageOf(KeyShape) }],
    },
    async ({ context, principal, tenantId, query }) => {
      const all = query.all === 'true';
      if (all && principal.tenantId !== null) {
        throw new Problem('forbidden', 'only an admin key may see the keys of every tenant');
      }
      const page = { after: query.cursor ?? null, limit: query.limit + 1 };
      const found = await listApiKeys(context.db, all ? null : tenantId, page);
      return { status: 200, json: pageById(found, query.limit, shown) };
    },
  ),
  defineRoute(
    {
      name: 'revokeKey',
      method: 'delete',
      path: '/v1/keys/{id}',
      access: 'manage',
      tag,
      summary: 'Revoke an API key',
      description: 'It may still work for 5 seconds. An admin may revoke any key.',
      params: idParams,
      answers: [{ status: 204, description: 'Revoked' }],
      problems: ['key_not_found'],
    },
    async ({ context, principal, params }) => {
      if (!(await revokeApiKey(context.db, principal.tenantId, params.id))) {
        throw new Problem('key_not_found', 'there is no key of this id, or it is revoked');
      }
      return { status: 204 };
    },
  ),
];
