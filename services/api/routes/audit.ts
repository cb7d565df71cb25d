import { z } from 'zod';
import { isUuid } from '../../../lib/domain/uuid.ts';
import { type AuditEntry, type AuditFilter, listAudit } from '../../../lib/store/audit.ts';
import { parseMomentPlace, printMomentPlace } from '../http/cursor.ts';
import { moment, pageLimit, text, uuid } from '../http/fields.ts';
import { type ListName, listCursor, openPlace, sealPlace } from '../http/list-cursor.ts';
import { Problem } from '../http/problem.ts';
import { defineRoute } from '../http/route.ts';
import { search } from '../http/search.ts';
import { AuditEntryShape, pageOf } from './shapes.ts';

const ACTOR_RULE = 'must be the id of a key or of a portal token, or admin';

const Query = z.strictObject({
  action: text(100, 1).optional().meta({ description: 'The operationId of the route, such as rotateKey.' }),
  resource_id: uuid().optional(),
  actor: z
    .string({ error: ACTOR_RULE })
    .refine((value) => value === 'admin' || isUuid(value), { error: ACTOR_RULE })
    .transform((value) => value.toLowerCase())
    .optional()
    .meta({ type: 'string', description: 'The id of a key or of a portal token, or `admin`.' }),
  from: moment().optional().meta({ description: 'Written at this moment or later.' }),
  to: moment().optional().meta({ description: 'Written before this moment.' }),
  all: z.enum(['true', 'false'], { error: 'must be true or false' }).default('false'),
  limit: pageLimit(),
  cursor: listCursor(),
});

function filterOf(given: Omit<z.output<typeof Query>, 'limit' | 'cursor'>): AuditFilter {
  const { action, actor, from, to } = given;
  return { action, actor, from, to, resourceId: given.resource_id };
}

function shown(entry: AuditEntry) {
  return {
    id: entry.id,
    at: entry.at,
    tenant_id: entry.tenantId,
    actor: entry.actor,
    actor_id: entry.actorId,
    action: entry.action,
    resource: entry.resource,
    resource_id: entry.resourceId,
    changes: entry.changes,
    request_id: entry.requestId,
  };
}

export const auditRoutes = [
  defineRoute(
    {
      name: 'listAudit',
      method: 'get',
      path: '/v1/audit',
      access: 'manage',
      tag: 'Audit',
      summary: 'List who changed what, newest first',
      description:
        'Of the tenant that the request acts for; with `all=true`, for an admin, of every tenant and of what belongs to none. With `action` or `actor`, a page looks through 10,000 entries at most: it may be short, or empty, while `next_cursor` says that there is more.',
      query: Query,
      answers: [{ status: 200, description: 'A page of the log', schema: pageOf(AuditEntryShape) }],
      problems: ['search_timeout'],
    },
    async ({ context, principal, tenantId, query }) => {
      const { limit, cursor, ...given } = query;
      const all = given.all === 'true';
      if (all && principal.tenantId !== null) {
        throw new Problem('forbidden', 'only an admin key may see the log of every tenant');
      }
      const name: ListName = { list: 'audit', tenantId, ...given };
      const options = { filter: filterOf(given), before: parseMomentPlace(openPlace(cursor, name)), limit };
      const { entries, next } = await search(context, (db) => listAudit(db, all ? null : tenantId, options));
      const json = {
        count: entries.length,
        items: entries.map(shown),
        next_cursor: sealPlace(printMomentPlace(next), name),
      };
      return { status: 200, json };
    },
  ),
];
