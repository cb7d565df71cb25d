import { type Breaker, type BreakerPolicy, type Evidence, isFailure, judgeEvidence } from './breaker.ts';
import type { BreakerState } from './vocabulary.ts';

/** What one result says about its endpoint. */
export interface HealthEvidence extends Evidence {
  endpointId: string;
  /** The pause that the endpoint asked for, ms, already clamped (`retry-after.ts`); else null. */
  retryAfterMs: number | null;
}

export interface HealthPolicy {
  breaker: BreakerPolicy;
  /** An endpoint that has done nothing but fail for this long is disabled at its next failure; null: never. */
  autoDisableMs: number | null;
}

/** An endpoint's health as its row has it. */
export interface Health {
  endpointId: string;
  breaker: Breaker;
  /** Infinity without an end; null when not paused. */
  pausedForMs: number | null;
  /** The database's clock when it was read, ms since 1970. */
  nowMs: number;
}

/** An endpoint as it stands after a batch of evidence, and what the batch changed. */
export interface HealthChange {
  endpointId: string;
  state: BreakerState;
  trips: number;
  failures: number;
  /** Whether it has failed since its last success. */
  failing: boolean;
  /** Until the end of the cooldown or of the probe's time, ms; not positive once that has passed, null while closed. */
  breakerForMs: number | null;
  /** Infinity without an end; null when not paused. */
  pausedForMs: number | null;
  opened: boolean;
  recovered: boolean;
  paused: boolean;
  disabled: boolean;
}

export interface Verdict {
  change: HealthChange;
  breaker: Breaker;
  /** What to do with the moment of the first failure after the last success. */
  failingSince: 'same' | 'now' | null;
  /** The pause to write, ms from now; null when the one there is stays. */
  pauseMs: number | null;
  /** Whether anything has to be written. */
  changes: boolean;
}

/** A pause is prolonged only by more than this: answers of one moment that ask for the same pause are one write. */
const PAUSE_STEP_MS = 500;

/** Judges results of one endpoint in their order. Results that cancel each other out change nothing. */
export function judgeHealth(
  health: Health,
  evidence: readonly HealthEvidence[],
  policy: HealthPolicy,
): Verdict {
  const { endpointId, nowMs } = health;
  const { breaker, opened, recovered } = judgeInOrder(health, evidence, policy.breaker);
  const pauseMs = askedPause(health, evidence);
  const disabled = evidence.some(isFailure) && hasFailedFor(breaker, policy.autoDisableMs, nowMs);
  return {
    change: {
      endpointId,
      state: breaker.state,
      trips: breaker.trips,
      failures: breaker.failures,
      failing: breaker.failingSinceMs !== null,
      breakerForMs: breaker.untilMs === null ? null : breaker.untilMs - nowMs,
      pausedForMs: pauseMs ?? health.pausedForMs,
      opened,
      recovered,
      paused: pauseMs !== null,
      disabled,
    },
    breaker,
    failingSince: failingSince(health.breaker, breaker),
    pauseMs,
    changes: disabled || pauseMs !== null || !same(health.breaker, breaker),
  };
}

function judgeInOrder(
  { breaker: before, nowMs }: Health,
  evidence: readonly HealthEvidence[],
  policy: BreakerPolicy,
): { breaker: Breaker; opened: boolean; recovered: boolean } {
  let [breaker, opened, recovered] = [before, false, false];
  for (const item of evidence) {
    const next = judgeEvidence(breaker, item, policy, nowMs);
    opened ||= next.trips > breaker.trips;
    recovered ||= breaker.state === 'half_open' && next.state === 'closed';
    breaker = next;
  }
  return { breaker, opened, recovered };
}

/** The longest pause asked for, unless one as long runs already: no pause is ever cut short. */
function askedPause({ pausedForMs }: Health, evidence: readonly HealthEvidence[]): number | null {
  const askedMs = Math.max(...evidence.map((item) => item.retryAfterMs ?? Number.NEGATIVE_INFINITY));
  return askedMs > (pausedForMs === null ? 0 : pausedForMs + PAUSE_STEP_MS) ? askedMs : null;
}

/** A success among the evidence has put the beginning at now, or to nothing. */
function hasFailedFor({ failingSinceMs }: Breaker, limitMs: number | null, nowMs: number): boolean {
  return limitMs !== null && failingSinceMs !== null && nowMs - failingSinceMs > limitMs;
}

function failingSince(before: Breaker, after: Breaker): Verdict['failingSince'] {
  if (after.failingSinceMs === null) return null;
  return after.failingSinceMs === before.failingSinceMs ? 'same' : 'now';
}

function same(a: Breaker, b: Breaker): boolean {
  return a === b || (Object.keys(a) as (keyof Breaker)[]).every((column) => a[column] === b[column]);
}
