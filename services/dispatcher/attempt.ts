import type pg from 'pg';
import type { RetryPolicy } from '../../lib/domain/backoff.ts';
import { LOCAL_WAIT_MS, SETTLE_MARGIN_MS } from '../../lib/domain/limits.ts';
import { classify, nextStep, type Outcome } from '../../lib/domain/outcome.ts';
import { askedDelayMs } from '../../lib/domain/retry-after.ts';
import type { SendResult } from '../../lib/domain/send-result.ts';
import { safeSnippet } from '../../lib/domain/snippet.ts';
import type { DeliveryMetrics } from '../../lib/metrics/delivery.ts';
import type { Logger } from '../../lib/runtime/log.ts';
import { type Claim, readPayload } from '../../lib/store/claims.ts';
import { disableGoneEndpoint } from '../../lib/store/endpoint-health.ts';
import type { SendRecord } from '../../lib/store/settle.ts';
import type { Destination, Unusable } from './endpoint-cache.ts';
import { outboundHeaders } from './outbound.ts';
import type { Sender } from './sending/sender.ts';
import type { Settler } from './settler.ts';

/** A leased delivery on its way through the process. */
export interface Job {
  claim: Claim;
  endpoint: Destination | Unusable;
  /** Before the claim was sent, performance.now(): the lease cannot have begun earlier. */
  leasedAt: number;
  /** When the claim came back. */
  claimedAt: number;
}

export interface AttemptContext {
  pool: pg.Pool;
  sender: Sender;
  settler: Settler;
  metrics: DeliveryMetrics;
  log: Logger;
  /** For the one line of each attempt. */
  lines: Logger;
  leaseMs: number;
  retryPolicy: RetryPolicy;
  headerPrefix: string;
  userAgent: string;
  snippetBytes: number;
  /** Milliseconds since 1970, by the database's clock. */
  now: () => number;
  release: (job: Job) => void;
}

/**
 * One attempt: sends a leased delivery and hands its outcome to the settler. Never rejects; an error in here ends this attempt only, and the lease
 * brings the delivery back.
 */
export async function attempt(context: AttemptContext, job: Job): Promise<void> {
  try {
    if ('unusable' in job.endpoint) {
      return record(
        context,
        job,
        notSent('other', `the endpoint cannot be sent to: ${job.endpoint.unusable}`),
        performance.now(),
      );
    }
    const { claim, endpoint } = job;
    const body = claim.payload ?? (await readPayload(context.pool, claim.eventId));
    const startedAt = performance.now();
    // The process may have been frozen since the claim: what could outlive its lease is not begun.
    if (!body || !leaseOutlasts(context, job, startedAt, endpoint.requestTimeoutMs))
      return context.release(job);
    const result = await context.sender.send({
      url: endpoint.url,
      headers: outboundHeaders(claim, endpoint, body, {
        prefix: context.headerPrefix,
        userAgent: context.userAgent,
        timestampSeconds: Math.floor(context.now() / 1000),
      }),
      body,
      deadlineAt: startedAt + endpoint.requestTimeoutMs,
      connectTimeoutMs: endpoint.connectTimeoutMs,
      idleTimeoutMs: endpoint.idleTimeoutMs,
    });
    record(context, job, result, startedAt);
  } catch (error) {
    context.log.error(
      { err: error, delivery_id: job.claim.deliveryId },
      'an attempt broke off; its lease will bring it back',
    );
  }
}

function leaseOutlasts(context: AttemptContext, job: Job, now: number, requestTimeoutMs: number): boolean {
  return job.leasedAt + context.leaseMs - now >= requestTimeoutMs + SETTLE_MARGIN_MS - LOCAL_WAIT_MS;
}

/** The result of a send that was not begun. */
export function notSent(failure: 'other' | 'oversize', detail: string): SendResult {
  return { kind: 'failure', failure, detail, requestSent: false, durationMs: 0 };
}

/** Decides what a result means and hands it to the settler. */
export function record(context: AttemptContext, job: Job, result: SendResult, startedAt: number): void {
  const { claim, endpoint } = job;
  const outcome = classify(result);
  const step = nextStep(outcome, {
    attemptsSpent: claim.attempts,
    policy: endpoint.retryPolicy ?? context.retryPolicy,
    random: Math.random(),
    retryAfterMs: askedDelayMs(result, context.now()),
  });
  const send = sendRecord(context, job, outcome, result, startedAt);
  const { deliveryId, token } = claim;
  const { settler, metrics } = context;
  if (step.kind === 'succeed') {
    settler.finish({ deliveryId, token, status: 'succeeded', reason: null, send });
  } else if (step.kind === 'retry') {
    settler.keep({ deliveryId, token, kind: 'retry', delayMs: step.delayMs, send });
  } else {
    metrics.dead[step.reason].inc();
    settler.finish({ deliveryId, token, status: 'dead', reason: step.reason, send });
    if (step.reason === 'gone') void disableGone(context, claim.endpointId);
  }
  observe(context, job, outcome, result, startedAt);
}

// 410 says that nobody listens here any more. Failing to write that costs one more 410.
async function disableGone({ pool, log }: AttemptContext, endpointId: string): Promise<void> {
  try {
    if (await disableGoneEndpoint(pool, endpointId))
      log.warn({ endpoint_id: endpointId }, 'an endpoint answered 410: it is disabled');
  } catch (error) {
    log.warn({ err: error, endpoint_id: endpointId }, 'an endpoint answered 410 and could not be disabled');
  }
}

function sendRecord(
  context: AttemptContext,
  job: Job,
  outcome: Outcome,
  result: SendResult,
  startedAt: number,
): SendRecord {
  const response = result.kind === 'response' ? result : null;
  return {
    class: outcome.class,
    httpStatus: response?.status ?? null,
    durationMs: result.durationMs,
    latenessMs: job.claim.lateMs + (startedAt - job.claimedAt),
    error: result.kind === 'failure' ? `${result.failure}: ${result.detail}` : null,
    snippet:
      response && response.snippet.length > 0 ? safeSnippet(response.snippet, context.snippetBytes) : null,
  };
}

function observe(
  { metrics, lines }: AttemptContext,
  job: Job,
  outcome: Outcome,
  result: SendResult,
  startedAt: number,
): void {
  const { claim } = job;
  const waitedMs = startedAt - job.claimedAt;
  metrics.attempts[outcome.class].inc();
  metrics.duration.observe(result.durationMs / 1000);
  const response = result.kind === 'response' ? result : null;
  if (response) metrics.lateness.observe((claim.lateMs + waitedMs + response.firstByteMs) / 1000);
  if (outcome.class === 'success')
    metrics.acceptToDelivered.observe((claim.ageMs + waitedMs + result.durationMs) / 1000);
  if (result.kind === 'failure' && result.failure === 'refused') metrics.refused.inc();
  lines.info(
    {
      delivery_id: claim.deliveryId,
      event_id: claim.eventId,
      endpoint_id: claim.endpointId,
      attempt: claim.attempts + 1,
      outcome: outcome.class,
      ...(response ? { http_status: response.status } : {}),
      ...(result.kind === 'failure' ? { failure: result.failure } : {}),
      late_ms: Math.round(claim.lateMs),
      waited_ms: Math.round(waitedMs),
      send_ms: Math.round(result.durationMs),
    },
    'attempt',
  );
}
