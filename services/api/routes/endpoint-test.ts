import { z } from 'zod';
import { EVENT_TYPE_RULE, isEventType } from '../../../lib/domain/event-type.ts';
import { findEndpoint } from '../../../lib/store/endpoints.ts';
import { text } from '../http/fields.ts';
import { type Call, defineRoute, type Reply } from '../http/route.ts';
import { noTarget, refusalOf } from '../ingest/refusal.ts';
import { absent, ofOne, refOf } from './endpoint-answers.ts';
import { EndpointTestShape } from './steering-shapes.ts';

const TEST_TYPE = 'relay.test';
const LONGEST_BODY = 32_768;

const TestEvent = z.strictObject({
  type: z
    .string({ error: 'must be text' })
    .refine(isEventType, { error: EVENT_TYPE_RULE })
    .default(TEST_TYPE)
    .meta({ description: 'Whether or not the endpoint subscribes to it.' }),
  body: text(LONGEST_BODY)
    .optional()
    .meta({ description: 'Sent as it stands, as `application/json`; a small JSON object without one.' }),
});

type TestCall = Call<{ id: string }, Record<string, never>, z.output<typeof TestEvent>>;

async function sendTest(call: TestCall): Promise<Reply> {
  const { context, tenantId, params, body } = call;
  const endpoint = await findEndpoint(context.db, refOf(call));
  if (!endpoint) throw absent();
  if (!endpoint.enabled) throw noTarget(endpoint, 'the path');
  const result = await context.acceptor.accept({
    tenantId,
    type: body.type,
    contentType: 'application/json',
    payload: Buffer.from(body.body ?? testBody(body.type, params.id)),
    idempotencyKey: null,
    targetEndpointId: params.id,
    deliverAt: null,
    expiresAt: null,
  });
  if (result.kind === 'no_target') throw noTarget(await findEndpoint(context.db, refOf(call)), 'the path');
  if (result.kind !== 'accepted') throw refusalOf(result);
  return { status: 202, json: { event_id: result.eventId, delivery_id: result.deliveryIds[0] } };
}

function testBody(type: string, endpointId: string): string {
  return JSON.stringify({ type, endpoint_id: endpointId, message: 'A test event: nothing has happened.' });
}

export const endpointTestRoute = defineRoute(
  {
    ...ofOne,
    name: 'testEndpoint',
    method: 'post',
    path: '/v1/endpoints/{id}/test',
    commitsItself: true,
    summary: 'Send an endpoint a test event',
    description:
      'To this endpoint alone, and by the ordinary way: signed, with retries, behind its rate, breaker and pause. What came of it is in the log of the delivery.',
    body: TestEvent,
    bodyIsOptional: true,
    answers: [{ status: 202, description: 'Committed, and about to be sent', schema: EndpointTestShape }],
    problems: ['endpoint_not_found', 'endpoint_disabled', 'event_refused', 'overloaded', 'commit_unknown'],
  },
  sendTest,
);
