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
import type { HealthReporter } from './health-reporter.ts';
import { outboundHeaders } from './outbound.ts';
import type { RateGate } from './rate-gate.ts';
import type { Sender } from './sending/sender.ts';
import type { Settler } from './settler.ts';
import type { Transports } from './transports/transports.ts';

/** A leased delivery on its way through the process. */
export interface Job {
  claim: Claim;
  endpoint: Destination | Unusable;
  /** Before the claim was sent, performance.now(): the lease cannot have begun earlier. */
  leasedAt: number;
  /** When the claim came back. */
  claimedAt: number;
  /** Whether this delivery is the one by which the fleet finds out how its endpoint is. */
  probe: boolean;
}

export interface AttemptContext {
  pool: pg.Pool;
  sender: Sender;
  transports: Transports;
  settler: Settler;
  health: HealthReporter;
  rate: RateGate;
  metrics: DeliveryMetrics;
  log: Logger;
  /** For the one line of each attempt. */
  lines: Logger;
  leaseMs: number;
  retryPolicy: RetryPolicy;
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
    await tryAttempt(context, job);
  } catch (error) {
    if (job.probe) context.health.giveBackProbe(job.claim);
    context.log.error(
      { err: error, delivery_id: job.claim.deliveryId },
      'an attempt broke off; its lease will bring it back',
    );
  }
}

async function tryAttempt(context: AttemptContext, job: Job): Promise<void> {
  const { claim, endpoint } = job;
  if ('unusable' in endpoint) {
    const result = notSent('other', `the endpoint cannot be sent to: ${endpoint.unusable}`);
    return record(context, job, result, performance.now());
  }
  const body = claim.payload ?? (await readPayload(context.pool, claim.eventId));
  const startedAt = performance.now();
  // The process may have been frozen since the claim: what could outlive its lease is not begun.
  if (!body || !leaseOutlasts(context, job, startedAt, endpoint.requestTimeoutMs)) {
    return context.release(job);
  }
  const { connectTimeoutMs, idleTimeoutMs } = endpoint;
  const deadlineAt = startedAt + endpoint.requestTimeoutMs;
  if (endpoint.transport !== 'http') {
    const limits = { deadlineAt, connectTimeoutMs, idleTimeoutMs };
    const result = await context.transports.send(endpoint, claim, body, limits);
    return result === 'busy' ? context.release(job) : record(context, job, result, startedAt);
  }
  const result = await context.sender.send({
    url: endpoint.url,
    headers: outboundHeaders(claim, endpoint, body, {
      timestampSeconds: Math.floor(context.now() / 1000),
    }),
    body,
    deadlineAt,
    connectTimeoutMs,
    idleTimeoutMs,
  });
  return record(context, job, result, startedAt);
}

function leaseOutlasts(context: AttemptContext, job: Job, now: number, requestTimeoutMs: number): boolean {
  return job.leasedAt + context.leaseMs - now >= requestTimeoutMs + SETTLE_MARGIN_MS - LOCAL_WAIT_MS;
}

/** The result of a send that was not begun. */
export function notSent(failure: 'other' | 'oversize', detail: string): SendResult {
  return { kind: 'failure', failure, detail, requestSent: false, durationMs: 0 };
}

/** Decides what a result means, hands it to the settler and tells the endpoint's health of it. */
export function record(
  context: AttemptContext,
  job: Job,
  result: SendResult,
  startedAt: number,
): void | Promise<void> {
  const { claim, endpoint } = job;
  const outcome = classify(result);
  const retryAfterMs = askedDelayMs(result, context.now());
  const step = nextStep(outcome, {
    attemptsSpent: claim.attempts,
    policy: endpoint.retryPolicy ?? context.retryPolicy,
    random: Math.random(),
    retryAfterMs,
  });
  const send = sendRecord(context, job, outcome, result, startedAt);
  context.health.report({
    claim,
    result,
    success: outcome.class === 'success',
    probe: job.probe,
    retryAfterMs,
  });
  observe(context, job, outcome, result, startedAt);
  const { deliveryId, token } = claim;
  const { settler, metrics } = context;
  if (step.kind === 'succeed') {
    settler.finish({ deliveryId, token, status: 'succeeded', reason: null, send });
  } else if (step.kind === 'dead') {
    metrics.dead[step.reason].inc();
    settler.finish({ deliveryId, token, status: 'dead', reason: step.reason, send });
    if (step.reason === 'gone') void disableGone(context, claim.endpointId);
  } else if (retryAfterMs !== null) {
    return retryAfterPause(context, job, send, step.delayMs);
  } else {
    settler.keep({ deliveryId, token, kind: 'retry', delayMs: step.delayMs, send });
  }
}

/** The endpoint is paused for all: what comes after the pause comes one by one, and this delivery has a moment of its own too. */
async function retryAfterPause(
  { rate, settler, log }: AttemptContext,
  { claim, endpoint }: Job,
  send: SendRecord,
  pauseMs: number,
): Promise<void> {
  const { deliveryId, token } = claim;
  try {
    const delayMs = await rate.slot(endpoint, { everyMs: endpoint.slotEveryMs, afterMs: pauseMs });
    settler.keep({ deliveryId, token, kind: 'retry', delayMs, slotVersion: endpoint.slotVersion, send });
  } catch (error) {
    log.warn(
      { err: error, delivery_id: deliveryId },
      'no slot was to be had for a retry; it goes when the pause ends',
    );
    settler.keep({ deliveryId, token, kind: 'retry', delayMs: pauseMs, send });
  }
}

// 410 says that nobody listens here any more. Failing to write that costs one more 410.
async function disableGone({ pool, metrics, log }: AttemptContext, endpointId: string): Promise<void> {
  try {
    if (!(await disableGoneEndpoint(pool, endpointId))) return;
    metrics.disabled.gone.inc();
    log.warn({ endpoint_id: endpointId }, 'an endpoint is gone for good (410): it is disabled');
  } catch (error) {
    log.warn(
      { err: error, endpoint_id: endpointId },
      'an endpoint is gone for good (410) and could not be disabled',
    );
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
      ...(response && response.status !== null ? { http_status: response.status } : {}),
      ...(result.kind === 'failure' ? { failure: result.failure } : {}),
      late_ms: Math.round(claim.lateMs),
      waited_ms: Math.round(waitedMs),
      send_ms: Math.round(result.durationMs),
    },
    'attempt',
  );
}
