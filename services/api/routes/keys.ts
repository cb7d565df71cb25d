import { z } from 'zod';
import { SCOPES } from '../../../lib/domain/vocabulary.ts';
import { changeApiKey, rotateApiKey } from '../../../lib/store/api-key-changes.ts';
import {
  type ApiKey,
  createApiKey,
  findApiKey,
  listApiKeys,
  revokeApiKey,
} from '../../../lib/store/api-keys.ts';
import type { Principal } from '../http/authentication.ts';
import { idCursor } from '../http/cursor.ts';
import { idParams, moment, number, pageLimit, text, uuid } from '../http/fields.ts';
import { pageById } from '../http/page.ts';
import { invalid, Problem } from '../http/problem.ts';
import { type Call, defineRoute, type Reply } from '../http/route.ts';
import { KeyShape, NewKeyShape, pageOf, RotatedKeyShape } from './shapes.ts';

const tag = 'Keys';
const DAY_SECONDS = 86_400;
const MAX_KEY_RATE = 1_000_000;

const flag = () => z.enum(['true', 'false'], { error: 'must be true or false' }).default('false');
const rate = () =>
  number({ min: 0, above: true, max: MAX_KEY_RATE })
    .nullable()
    .optional()
    .meta({ description: 'Null: the limit that the API is configured with. Only an admin key may set it.' });

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
  requests_per_second: rate(),
});

const KeyPatch = z.strictObject({
  name: text(200).optional(),
  expires_at: moment().nullable().optional(),
  requests_per_second: rate(),
});

const Rotation = z.strictObject({
  overlap_seconds: number({ min: 0, max: 7 * DAY_SECONDS, whole: true })
    .default(DAY_SECONDS)
    .meta({ description: 'How long the old key works beside the new one.' }),
  expires_at: moment()
    .nullable()
    .optional()
    .meta({
      type: ['string', 'null'],
      description:
        'The end of the new key. Left out, it lives as long as the old one was made to, or without an end.',
    }),
});

function shown(key: ApiKey) {
  return {
    id: key.id,
    tenant_id: key.tenantId,
    name: key.name,
    prefix: key.prefix,
    scopes: key.scopes,
    requests_per_second: key.requestsPerSecond,
    created_at: key.createdAt,
    expires_at: key.expiresAt,
    revoked_at: key.revokedAt,
    replaced_by: key.replacedBy,
    last_used_at: key.lastUsedAt,
  };
}

const absent = () => new Problem('key_not_found', 'there is no key of this id, or it is revoked');
const ended = () => new Problem('key_ended', 'the key is revoked or past its end: make a new one');
const past = () => invalid('expires_at', 'must lie in the future');

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

/** A limit that its bearer could lift would be none: a tenant's key hands on the one that it has itself. */
function requireOwnLimit(given: number | null | undefined, { tenantId }: Principal): void {
  if (given !== undefined && tenantId !== null) {
    throw new Problem('forbidden', 'only an admin key may set requests_per_second');
  }
}

/** Those keys that a principal may name: an admin's request is about any key, whichever tenant it acts for. */
const refOf = ({ principal, params }: { principal: Principal; params: { id: string } }) => ({
  tenantId: principal.tenantId,
  id: params.id,
});

async function create(call: Call<Record<string, never>, Record<string, never>, z.output<typeof NewKey>>) {
  const { context, principal, tenantId, body } = call;
  if (body.expires_at !== null && body.expires_at.getTime() <= Date.now()) throw past();
  requireOwnLimit(body.requests_per_second, principal);
  const made = await createApiKey(context.db, {
    tenantId: ownerOf(body, principal, tenantId),
    name: body.name,
    scopes: body.scopes,
    expiresAt: body.expires_at,
    requestsPerSecond: body.requests_per_second ?? principal.requestsPerSecond,
  });
  if (!made) throw new Problem('tenant_not_found', 'there is no such tenant');
  const { apiKey, key } = made;
  return { status: 201, json: { ...shown(apiKey), key }, audit: { tenantId: apiKey.tenantId } };
}

async function patch(
  call: Call<{ id: string }, Record<string, never>, z.output<typeof KeyPatch>>,
): Promise<Reply> {
  const { context, principal, body } = call;
  requireOwnLimit(body.requests_per_second, principal);
  const result = await changeApiKey(context.db, refOf(call), {
    name: body.name,
    expiresAt: body.expires_at,
    requestsPerSecond: body.requests_per_second,
  });
  switch (result.kind) {
    case 'changed':
      return { status: 200, json: shown(result.apiKey), audit: { tenantId: result.apiKey.tenantId } };
    case 'not_found':
      throw absent();
    case 'ended':
      throw ended();
    case 'past':
      throw past();
  }
}

async function rotate(
  call: Call<{ id: string }, Record<string, never>, z.output<typeof Rotation>>,
): Promise<Reply> {
  const { context, body } = call;
  const result = await rotateApiKey(context.db, refOf(call), {
    overlapMs: body.overlap_seconds * 1_000,
    expiresAt: body.expires_at,
  });
  switch (result.kind) {
    case 'rotated':
      return {
        status: 201,
        json: {
          ...shown(result.apiKey),
          key: result.key,
          previous_id: result.previous.id,
          previous_expires_at: result.previous.expiresAt,
        },
        audit: { tenantId: result.apiKey.tenantId, changes: { replaced_by: result.apiKey.id } },
      };
    case 'not_found':
      throw absent();
    case 'ended':
      throw ended();
    case 'past':
      throw past();
    case 'replaced':
      throw new Problem('key_replaced', `the key was rotated already: its heir is ${result.by}`);
  }
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
    create,
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
        'Those of the tenant that the request acts for, also those past their end; with `revoked=true` also those that are revoked. With `all=true`, for an admin, those of every tenant and the admin keys.',
      query: z.strictObject({ limit: pageLimit(), cursor: idCursor(), all: flag(), revoked: flag() }),
      answers: [{ status: 200, description: 'A page of keys', schema: pageOf(KeyShape) }],
    },
    async ({ context, principal, tenantId, query }) => {
      const all = query.all === 'true';
      if (all && principal.tenantId !== null) {
        throw new Problem('forbidden', 'only an admin key may see the keys of every tenant');
      }
      const page = {
        after: query.cursor ?? null,
        limit: query.limit + 1,
        revoked: query.revoked === 'true',
      };
      const found = await listApiKeys(context.db, all ? null : tenantId, page);
      return { status: 200, json: pageById(found, query.limit, shown) };
    },
  ),
  defineRoute(
    {
      name: 'getKey',
      method: 'get',
      path: '/v1/keys/{id}',
      access: 'manage',
      tag,
      summary: 'Get what is known of an API key, revoked or not',
      params: idParams,
      answers: [{ status: 200, description: 'The key, without the key itself', schema: KeyShape }],
      problems: ['key_not_found'],
    },
    async (call) => {
      const found = await findApiKey(call.context.db, refOf(call));
      if (!found) throw new Problem('key_not_found', 'there is no key of this id');
      return { status: 200, json: shown(found) };
    },
  ),
  defineRoute(
    {
      name: 'changeKey',
      method: 'patch',
      path: '/v1/keys/{id}',
      access: 'manage',
      tag,
      summary: 'Change the name, the end or the limit of an API key',
      description:
        'What is not named stays. A key that has ended stays ended, and scopes cannot be changed: make another key.',
      params: idParams,
      body: KeyPatch,
      answers: [{ status: 200, description: 'The key, without the key itself', schema: KeyShape }],
      problems: ['key_not_found', 'key_ended'],
    },
    patch,
  ),
  defineRoute(
    {
      name: 'rotateKey',
      method: 'post',
      path: '/v1/keys/{id}/rotate',
      access: 'manage',
      tag,
      summary: 'Replace an API key by a new one with the same grants',
      description:
        'Both work until the old one ends: after `overlap_seconds` (a day when nothing is said, a week at most), or at the end that it had if that comes sooner. The new key is shown in this answer only. A key can be rotated once: what comes next is to rotate its heir.',
      params: idParams,
      body: Rotation,
      bodyIsOptional: true,
      answers: [{ status: 201, description: 'The new key, shown once', schema: RotatedKeyShape }],
      problems: ['key_not_found', 'key_ended', 'key_replaced'],
    },
    rotate,
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
    async (call) => {
      const revoked = await revokeApiKey(call.context.db, refOf(call));
      if (!revoked) throw absent();
      return { status: 204, audit: { tenantId: revoked.tenantId } };
    },
  ),
];
