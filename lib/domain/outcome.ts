import { backoffDelayMs, type RetryPolicy } from './backoff.ts';
import { type SendResult, statusMeant } from './send-result.ts';
import type { DeadReason, TransportFailure } from './vocabulary.ts';

/** What one send means for its delivery. */
export type Outcome =
  | { class: 'success' }
  | { class: 'retryable' }
  | { class: 'permanent'; reason: Extract<DeadReason, 'permanent_failure' | 'gone' | 'refused'> };

export type NextStep =
  | { kind: 'succeed' }
  | { kind: 'retry'; delayMs: number }
  | { kind: 'dead'; reason: DeadReason };

const SUCCESS: Outcome = Object.freeze({ class: 'success' });
const RETRYABLE: Outcome = Object.freeze({ class: 'retryable' });

/**
 * Judges a result. Worth repeating is what may answer otherwise later: 408, 425, 429, 5xx and every trouble on the way.
 * A redirect is never followed and so is as final as any other refusal; 410 says that nobody listens here any more.
 */
export function classify(result: SendResult): Outcome {
  return result.kind === 'response' ? classifyStatus(statusMeant(result)) : classifyFailure(result.failure);
}

function classifyStatus(status: number): Outcome {
  if (status >= 200 && status <= 299) return SUCCESS;
  if (status === 410) return { class: 'permanent', reason: 'gone' };
  if (status === 408 || status === 425 || status === 429) return RETRYABLE;
  if (status >= 500 && status <= 599) return RETRYABLE;
  return { class: 'permanent', reason: 'permanent_failure' };
}

function classifyFailure(failure: TransportFailure): Outcome {
  switch (failure) {
    case 'refused':
      return { class: 'permanent', reason: 'refused' };
    case 'oversize':
      return { class: 'permanent', reason: 'permanent_failure' };
    case 'timeout':
    case 'connect':
    case 'tls':
    case 'dns':
    case 'reset':
    case 'protocol':
    // What we cannot name is tried again: a wasted attempt costs less than a lost delivery.
    case 'other':
      return RETRYABLE;
  }
}

/**
 * Decides what happens to the delivery after this outcome.
 *
 * @param attemptsSpent attempts before this one, as the claim returned them (0 at the first send)
 * @param random from 0 to 1
 * @param retryAfterMs what the endpoint asked for (`retry-after.ts`), or null; it replaces the backoff, since the
 *   endpoint knows better, but not the budget
 */
export function nextStep(
  outcome: Outcome,
  {
    attemptsSpent,
    policy,
    random,
    retryAfterMs,
  }: { attemptsSpent: number; policy: RetryPolicy; random: number; retryAfterMs: number | null },
): NextStep {
  switch (outcome.class) {
    case 'success':
      return { kind: 'succeed' };
    case 'permanent':
      return { kind: 'dead', reason: outcome.reason };
    case 'retryable':
      if (attemptsSpent + 1 >= policy.maxAttempts) return { kind: 'dead', reason: 'attempts_exhausted' };
      return { kind: 'retry', delayMs: retryAfterMs ?? backoffDelayMs(policy, attemptsSpent, random) };
  }
}
