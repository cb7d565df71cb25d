import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { RETRY_POLICY_DEFAULT } from './backoff.ts';
import { classify, nextStep, type Outcome } from './outcome.ts';
import type { SendResult } from './send-result.ts';
import { TRANSPORT_FAILURES, type TransportFailure } from './vocabulary.ts';

const answered = (status: number): SendResult => ({
  kind: 'response',
  status,
  retryAfter: [],
  snippet: Buffer.alloc(0),
  firstByteMs: 1,
  durationMs: 2,
});
const failed = (failure: TransportFailure): SendResult => ({
  kind: 'failure',
  failure,
  detail: '',
  requestSent: true,
  durationMs: 1,
});

describe('a response', () => {
  /** Written as a table of its own, so that the code's ranges are not compared with themselves. */
  function expected(status: number): Outcome {
    if (String(status).length === 3 && String(status)[0] === '2') return { class: 'success' };
    if ([408, 425, 429].includes(status)) return { class: 'retryable' };
    if (String(status).length === 3 && String(status)[0] === '5') return { class: 'retryable' };
    return { class: 'permanent', reason: status === 410 ? 'gone' : 'permanent_failure' };
  }

  it('is judged by its status, for every status there is and those there are not', () => {
    for (let status = 0; status <= 1100; status++) {
      expect({ status, ...classify(answered(status)) }).toEqual({ status, ...expected(status) });
    }
  });

  it.each([Number.NaN, -200, 20.5, 2000])('with the impossible status %s is permanent', (status) => {
    expect(classify(answered(status)).class).toBe('permanent');
  });
});

describe('a failure to get an answer', () => {
  const permanent: Partial<Record<TransportFailure, string>> = {
    refused: 'refused',
    oversize: 'permanent_failure',
  };

  it.each(TRANSPORT_FAILURES)('of kind %s is retried unless it is our own decision', (failure) => {
    const reason = permanent[failure];
    const outcome = reason === undefined ? { class: 'retryable' } : { class: 'permanent', reason };
    expect(classify(failed(failure))).toEqual(outcome);
  });
});

describe('the next step', () => {
  const given = { attemptsSpent: 0, policy: RETRY_POLICY_DEFAULT, random: 0.5, retryAfterMs: null };

  it('after a success is the end, whatever was spent', () => {
    expect(nextStep({ class: 'success' }, { ...given, attemptsSpent: 99 })).toEqual({ kind: 'succeed' });
  });

  it.each(['permanent_failure', 'gone', 'refused'] as const)('after %s is death of that reason', (reason) => {
    expect(nextStep({ class: 'permanent', reason }, given)).toEqual({ kind: 'dead', reason });
  });

  it('retries exactly as often as the policy says', () => {
    for (let attemptsSpent = 0; attemptsSpent <= 20; attemptsSpent++) {
      const step = nextStep({ class: 'retryable' }, { ...given, attemptsSpent });
      expect({ attemptsSpent, kind: step.kind }).toEqual({
        attemptsSpent,
        kind: attemptsSpent < 15 ? 'retry' : 'dead',
      });
    }
    expect(nextStep({ class: 'retryable' }, { ...given, attemptsSpent: 15 })).toEqual({
      kind: 'dead',
      reason: 'attempts_exhausted',
    });
  });

  it('waits as long as the endpoint asked, and no shorter', () => {
    const asked = { ...given, attemptsSpent: 3, retryAfterMs: 90_000 };
    for (const random of [0, 0.3, 1]) {
      expect(nextStep({ class: 'retryable' }, { ...asked, random })).toEqual({
        kind: 'retry',
        delayMs: 90_000,
      });
    }
  });

  it('does not stretch the budget because the endpoint asked to wait', () => {
    const asked = { ...given, attemptsSpent: 15, retryAfterMs: 90_000 };
    expect(nextStep({ class: 'retryable' }, asked)).toEqual({ kind: 'dead', reason: 'attempts_exhausted' });
  });

  it('always is at a real moment, at least 1 ms away', () => {
    fc.assert(
      fc.property(fc.nat(40), fc.double(), (attemptsSpent, random) => {
        const policy = { ...RETRY_POLICY_DEFAULT, maxAttempts: 100 };
        const step = nextStep({ class: 'retryable' }, { attemptsSpent, policy, random, retryAfterMs: null });
        expect(step.kind === 'retry' && step.delayMs >= 1 && Number.isSafeInteger(step.delayMs)).toBe(true);
      }),
    );
  });
});
