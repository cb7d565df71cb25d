import type { IncomingMessage, ServerResponse } from 'node:http';
import { afterMark, objectAt } from '../../lib/domain/posted-items.ts';
import { admitProducer } from './admission.ts';
import type { ApiContext } from './context.ts';
import { exchangeOf, refuseEventHeaders, serveFront } from './front.ts';
import { readBody } from './http/body.ts';
import { requireJson } from './http/parse.ts';
import { Problem } from './http/problem.ts';
import { sendJson } from './http/respond.ts';
import { acceptDrafts } from './ingest/accept-drafts.ts';
import { draftOfMessage } from './ingest/drafts.ts';
import { fieldsOf } from './ingest/item-fields.ts';
import { acceptedBody } from './post-event.ts';

/** Beside twice its payload, for the names and what escapes add. */
const ENVELOPE_BYTES = 65_536;

/** `POST /v1/messages`: one finished message, on `node:http` because its body is kept as it came. Never rejects. */
export function postMessage(
  context: ApiContext,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const startedAt = performance.now();
  const exchange = exchangeOf(request, response);
  return serveFront(context, 'postMessage', exchange, async () => {
    const tenantId = await admitProducer(context, request);
    refuseEventHeaders(request);
    requireJson(request);
    const { maxPayloadBytes } = context.config;
    const bytes = await readBody(request, response, 2 * maxPayloadBytes + ENVELOPE_BYTES);
    if (bytes === 'aborted') return bytes;
    const fields = fieldsOf(bytes, objectAt(bytes, afterMark(bytes), bytes.length));
    const draft = draftOfMessage(fields, { tenantId, maxPayloadBytes });
    const result = (await acceptDrafts(context, tenantId, [draft]))[0]!;
    if (result instanceof Problem) throw result;
    sendJson(response, 202, acceptedBody(result), {
      'x-request-id': exchange.requestId,
      'relay-idempotent-replay': String(result.replayed),
    });
    context.ingestMetrics.outcomes[result.replayed ? 'replayed' : 'accepted'].inc();
    context.ingestMetrics.duration.observe((performance.now() - startedAt) / 1000);
    return 202;
  });
}
