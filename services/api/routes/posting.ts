import { z } from 'zod';
import { MAX_POSTED_EVENTS } from '../../../lib/domain/limits.ts';
import type { ProblemCode } from '../http/problem.ts';
import { PROBLEMS } from '../http/problem.ts';
import type { Route } from '../http/route.ts';
import { EmailItem, EventItem, MessageItem, WebhookMessage } from '../ingest/item-shapes.ts';
import { AcceptedShape } from './shapes.ts';

/** Answered by `post-batch.ts` and `post-message.ts`, before express is asked. */

const problemCode = z.enum(Object.keys(PROBLEMS) as [ProblemCode, ...ProblemCode[]]);

const AcceptedItemShape = z
  .strictObject({
    status: z.literal(202),
    replayed: z
      .literal(true)
      .optional()
      .meta({ description: 'This is the answer to an earlier request with the same idempotency key.' }),
    ...AcceptedShape.shape,
  })
  .meta({ id: 'AcceptedItem' });

const RefusedItemShape = z
  .strictObject({
    status: z.int().meta({ description: 'What the event would have been answered by itself.' }),
    code: problemCode,
    detail: z.string(),
    field: z.string().optional().meta({ description: 'What is wrong; `item` is the whole of it.' }),
  })
  .meta({ id: 'RefusedItem' });

export const BatchShape = z
  .strictObject({
    accepted: z.int().meta({ description: 'How many of the results are 202.' }),
    results: z
      .array(z.union([AcceptedItemShape, RefusedItemShape]))
      .meta({ description: 'One for each event, in the order of the events.' }),
  })
  .meta({ id: 'Batch' });

const items = z
  .array(z.union([EventItem, WebhookMessage, EmailItem]))
  .min(1)
  .max(MAX_POSTED_EVENTS);
const lines = z
  .string()
  .meta({ description: 'One item of the JSON form in each line; empty lines are passed over.' });

const OWN_PROBLEMS: readonly ProblemCode[] = ['overloaded', 'commit_unknown'];

export const postBatchRoute: Route = {
  name: 'postBatch',
  method: 'post',
  path: '/v1/events/batch',
  access: 'events:write',
  tag: 'Events',
  summary: 'Post up to 1,000 events',
  description:
    'A JSON array or NDJSON, 8 MiB at most. Each payload is kept and delivered as the bytes that stand in the body. Events with idempotency keys share one commit, events without another; one that is refused is refused alone.',
  frontBody: { 'application/json': items, 'application/x-ndjson': lines },
  answers: [
    { status: 202, description: 'Every event is committed', schema: BatchShape },
    {
      status: 207,
      description: 'Some events, or all, were refused: each result says what became of its event',
      schema: BatchShape,
    },
  ],
  problems: OWN_PROBLEMS,
  handle: null,
};

export const postMessageRoute: Route = {
  name: 'postMessage',
  method: 'post',
  path: '/v1/messages',
  access: 'events:write',
  tag: 'Events',
  summary: 'Post a finished message',
  description:
    'A webhook or an email that is rendered to the end: nothing of it is made when it is sent. The idempotency key stands in the message.',
  frontBody: { 'application/json': MessageItem },
  answers: [
    {
      status: 202,
      description: 'Committed, with its one delivery',
      schema: AcceptedShape,
      headers: { 'relay-idempotent-replay': 'Whether this is the answer to an earlier request.' },
    },
  ],
  problems: [
    'endpoint_not_found',
    'endpoint_disabled',
    'idempotency_conflict',
    'idempotency_in_progress',
    'no_email_endpoint',
    'event_refused',
    ...OWN_PROBLEMS,
  ],
  handle: null,
};
