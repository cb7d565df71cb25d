import { z } from 'zod';
import { EVENT_TYPE_RULE, isEventType } from '../../../lib/domain/event-type.ts';
import { DEAD_REASONS } from '../../../lib/domain/vocabulary.ts';
import {
  type DeadLetter,
  type DeadLetterFilter,
  listDeadLetters,
  selectDeadLetters,
} from '../../../lib/store/dead-letters.ts';
import { replayDeliveries } from '../../../lib/store/replay.ts';
import { parseDeadLetterPlace, printDeadLetterPlace } from '../http/cursor.ts';
import { bodyLimit, DEFAULT_PAGE, moment, pageLimit, uuid } from '../http/fields.ts';
import { type ListName, listCursor, openPlace, sealPlace } from '../http/list-cursor.ts';
import { defineRoute } from '../http/route.ts';
import { DeadLetterShape, pageOf, ReplayShape } from './shapes.ts';

const tag = 'Dead letters';

const filters = {
  endpoint_id: uuid().optional(),
  reason: z.enum(DEAD_REASONS, { error: `must be one of ${DEAD_REASONS.join(', ')}` }).optional(),
  event_type: z.string({ error: 'must be text' }).refine(isEventType, { error: EVENT_TYPE_RULE }).optional(),
  from: moment().optional().meta({ description: 'Died at this moment or later.' }),
  to: moment().optional().meta({ description: 'Died before this moment.' }),
};
const Filters = z.strictObject(filters);

function filterOf(given: z.output<typeof Filters>): DeadLetterFilter {
  return {
    endpointId: given.endpoint_id,
    reason: given.reason,
    eventType: given.event_type,
    from: given.from,
    to: given.to,
  };
}

function shown(letter: DeadLetter) {
  return {
    delivery_id: letter.deliveryId,
    endpoint_id: letter.endpointId,
    event_id: letter.eventId,
    event_type: letter.eventType,
    url: letter.url,
    attempt: letter.attempts,
    generation: letter.generation,
    dead_reason: letter.reason,
    last_class: letter.lastClass,
    last_http_status: letter.lastHttpStatus,
    last_error: letter.lastError,
    created_at: letter.createdAt,
    died_at: letter.diedAt,
  };
}

export const deadLetterRoutes = [
  defineRoute(
    {
      name: 'listDeadLetters',
      method: 'get',
      path: '/v1/dlq',
      access: 'read',
      reach: 'filter',
      tag,
      summary: 'List dead letters, newest first',
      description:
        'With `reason` or `event_type`, a page looks through 10,000 letters at most: it may be short, or empty, while `next_cursor` says that there is more.',
      query: z.strictObject({ ...filters, limit: pageLimit(), cursor: listCursor() }),
      answers: [{ status: 200, description: 'A page of dead letters', schema: pageOf(DeadLetterShape) }],
    },
    async ({ context, tenantId, query }) => {
      const { limit, cursor, ...given } = query;
      const name: ListName = { list: 'dead_letters', tenantId, ...given };
      const { letters, next } = await listDeadLetters(context.db, tenantId, {
        filter: filterOf(given),
        before: parseDeadLetterPlace(openPlace(cursor, name)),
        limit,
      });
      const json = {
        count: letters.length,
        items: letters.map(shown),
        next_cursor: sealPlace(printDeadLetterPlace(next), name),
      };
      return { status: 200, json };
    },
  ),
  defineRoute(
    {
      name: 'replayDeadLetters',
      method: 'post',
      path: '/v1/dlq/replay',
      access: 'replay',
      reach: 'filter',
      tag,
      summary: 'Send dead letters again, oldest first',
      description:
        'Filters may stand in the query or in the body; where both name one, the body counts. What cannot be sent (its endpoint is deleted) is counted as `skipped` and stays the oldest. A replay job, `POST /v1/replays`, goes through any number.',
      query: z.strictObject({ ...filters, limit: pageLimit().optional() }),
      body: z.strictObject({
        ...filters,
        limit: bodyLimit(),
      }),
      bodyIsOptional: true,
      answers: [{ status: 202, description: 'What will be sent', schema: ReplayShape }],
    },
    async ({ context, tenantId, query, body }) => {
      const given = { ...query, ...body };
      const limit = body.limit ?? query.limit ?? DEFAULT_PAGE;
      const ids = await selectDeadLetters(context.db, tenantId, { filter: filterOf(given), limit });
      const replayed = new Set(ids.length === 0 ? [] : (await replayDeliveries(context.pool, ids)).replayed);
      const json = {
        replayed: replayed.size,
        skipped: ids.length - replayed.size,
        limit,
        delivery_ids: ids.filter((id) => replayed.has(id)),
      };
      return { status: 202, json };
    },
  ),
];
