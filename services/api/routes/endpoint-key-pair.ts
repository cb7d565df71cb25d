import { randomBytes } from 'node:crypto';
import { newKeyPair } from '../../../lib/domain/key-pair.ts';
import { removeKeyPair, replaceKeyPair } from '../../../lib/store/endpoint-key-pair.ts';
import { findEndpoint } from '../../../lib/store/endpoints.ts';
import { Problem } from '../http/problem.ts';
import { defineRoute, type Reply } from '../http/route.ts';
import { absent, type IdCall, ofOne, refOf, shownEndpoint, theEndpoint } from './endpoint-answers.ts';
import { requireOperationalScope } from './operational-settings.ts';

async function replace(call: IdCall): Promise<Reply> {
  await requireScope(call);
  const { db, config } = call.context;
  const result = await replaceKeyPair(db, refOf(call), newKeyPair(randomBytes(32)), {
    keys: config.secretKeys,
    overlapMs: config.secretOverlapMs,
  });
  switch (result.kind) {
    case 'changed':
      return { status: 200, json: shownEndpoint(result.endpoint) };
    case 'not_found':
      throw absent();
    case 'no_key_pair':
      throw new Problem(
        'key_pair_refused',
        'set `signing_scheme` to standard first: no other signs with a key pair',
      );
  }
}

async function remove(call: IdCall): Promise<Reply> {
  await requireScope(call);
  if (!(await removeKeyPair(call.context.db, refOf(call)))) throw absent();
  return { status: 204 };
}

/** Who may not change an endpoint that hears of all tenants may not change by what its messages are trusted either. */
async function requireScope(call: IdCall): Promise<void> {
  const endpoint = await findEndpoint(call.context.db, refOf(call));
  if (!endpoint) throw absent();
  requireOperationalScope(endpoint.operationalScope, call.principal);
}

export const endpointKeyPairRoutes = [
  defineRoute(
    {
      ...ofOne,
      name: 'replaceSigningKey',
      method: 'post',
      path: '/v1/endpoints/{id}/signing-key',
      summary: 'Make, or replace, the key pair of an endpoint',
      description:
        'For the scheme `standard`: each request is also signed with Ed25519 (`v1a`), which receivers check with `public_key`. A key pair that was there signs beside the new one until `previous_key_expires_at`.',
      answers: theEndpoint,
      problems: ['endpoint_not_found', 'key_pair_refused'],
    },
    replace,
  ),
  defineRoute(
    {
      ...ofOne,
      name: 'removeSigningKey',
      method: 'delete',
      path: '/v1/endpoints/{id}/signing-key',
      summary: 'Remove the key pair of an endpoint',
      description: 'At once, a previous one too. The secret goes on signing.',
      answers: [{ status: 204, description: 'It has none' }],
    },
    remove,
  ),
];
