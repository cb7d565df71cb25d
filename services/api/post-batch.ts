import type { IncomingMessage, ServerResponse } from 'node:http';
import { admitProducer } from './admission.ts';
import type { ApiContext } from './context.ts';
import { exchangeOf, outcomeOf, refuseEventHeaders, serveFront } from './front.ts';
import { Problem } from './http/problem.ts';
import { sendJson } from './http/respond.ts';
import { type Accepted, acceptDrafts } from './ingest/accept-drafts.ts';
import { type Batch, BatchBodies } from './ingest/batch-body.ts';
import { draftOfItem } from './ingest/drafts.ts';
import { fieldsOf } from './ingest/item-fields.ts';
import { acceptedBody } from './post-event.ts';

type Result = Accepted | Problem;

/** `POST /v1/events/batch`, on `node:http` like the single event. Never rejects. */
export function batchHandler(
  context: ApiContext,
): (request: IncomingMessage, response: ServerResponse) => Promise<void> {
  const bodies = new BatchBodies();
  return (request, response) => {
    const startedAt = performance.now();
    const exchange = exchangeOf(request, response);
    return serveFront(context, 'postBatch', exchange, async () => {
      const tenantId = await admitProducer(context, request);
      refuseEventHeaders(request);
      const results = await bodies.read(request, response, (batch) => acceptBatch(context, tenantId, batch));
      if (results === 'aborted') return results;
      const { status, body } = answerTo(results);
      sendJson(response, status, body, { 'x-request-id': exchange.requestId });
      count(context, results, startedAt);
      return status;
    });
  };
}

async function acceptBatch(
  context: ApiContext,
  tenantId: string,
  { bytes, items }: Batch,
): Promise<Result[]> {
  const options = { tenantId, maxPayloadBytes: context.config.maxPayloadBytes };
  const drafts = items.map((item) => problemOr(() => draftOfItem(fieldsOf(bytes, item), options)));
  const results = await acceptDrafts(context, tenantId, drafts);
  requireSomeService(results);
  return results;
}

function problemOr<T>(read: () => T): T | Problem {
  try {
    return read();
  } catch (error) {
    if (error instanceof Problem) return error;
    throw error;
  }
}

// In this order: what is true of one of them must be feared for all.
const OUTAGES = ['commit_unknown', 'database_unavailable', 'overloaded'] as const;

/** When nothing at all was stored, and not for the events' own faults, the batch as a whole is answered so. Throws a 503 Problem. */
function requireSomeService(results: readonly Result[]): void {
  if (results.some((result) => !(result instanceof Problem))) return;
  for (const code of OUTAGES) {
    const problem = results.find((result) => result instanceof Problem && result.code === code);
    if (problem) throw problem;
  }
}

/** 202 says that every event is committed; 207 that the results must be looked at. */
function answerTo(results: readonly Result[]): { status: number; body: string } {
  const accepted = results.filter((result) => !(result instanceof Problem)).length;
  const status = accepted === results.length ? 202 : 207;
  return { status, body: `{"accepted":${accepted},"results":[${results.map(printed).join(',')}]}` };
}

function printed(result: Result): string {
  if (!(result instanceof Problem)) {
    const replayed = result.replayed ? '"replayed":true,' : '';
    return `{"status":202,${replayed}${acceptedBody(result).slice(1)}`;
  }
  const { status, code, message, errors } = result;
  const field = errors[0]?.field;
  return JSON.stringify({ status, code, detail: message, ...(field === undefined ? {} : { field }) });
}

function count({ ingestMetrics }: ApiContext, results: readonly Result[], startedAt: number): void {
  const { outcomes, duration } = ingestMetrics;
  for (const result of results) {
    const outcome = result instanceof Problem ? outcomeOf(result) : result.replayed ? 'replayed' : 'accepted';
    outcomes[outcome].inc();
  }
  duration.observe((performance.now() - startedAt) / 1000);
}
