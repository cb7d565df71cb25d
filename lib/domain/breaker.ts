import { type SendResult, statusMeant } from './send-result.ts';
import type { BreakerState, TransportFailure } from './vocabulary.ts';

export interface BreakerPolicy {
  /** When false, no breaker changes its state. */
  readonly enabled: boolean;
  /** Failures in a row that open it. */
  readonly threshold: number;
  /** The first cooldown, ms; each opening without a recovery in between doubles it. */
  readonly cooldownMs: number;
  readonly maxCooldownMs: number;
}

/** An endpoint's breaker. Times are ms since 1970 by the database's clock. */
export interface Breaker {
  readonly state: BreakerState;
  /** Failures in a row. */
  readonly failures: number;
  /** The era: rises with every opening and never falls. */
  readonly trips: number;
  /** Openings since the last recovery; it sets the cooldown. */
  readonly streak: number;
  /** End of the cooldown, or of the probe's time; null only while closed. */
  readonly untilMs: number | null;
  /** The token of the one probe; null unless half-open. */
  readonly probe: string | null;
  /** The first failure after the last success. */
  readonly failingSinceMs: number | null;
}

/**
 * What a result says about its endpoint: `alive`, it answered; `failing`, it did not do its part; `unclear`, it was not reached, and whether
 * the fault is its own cannot be told from one result, but from days of them; `none`, nothing was asked of it.
 */
export type EvidenceKind = 'alive' | 'failing' | 'unclear' | 'none';

export interface Evidence {
  readonly kind: EvidenceKind;
  /** Whether the delivery arrived (2xx). */
  readonly success: boolean;
  /** The era that the delivery was claimed under. */
  readonly trips: number;
  /** The token that the probe was claimed with when this was the probe; null for any other delivery. */
  readonly probe: string | null;
}

/** After a probe that proved nothing, another may look this soon: the trouble was most likely not the endpoint's. */
const UNDECIDED_COOLDOWN_MS = 5_000;

/**
 * The breaker after one result. Returns the same object when nothing changes, so that a row need not be written.
 *
 * @param nowMs ms since 1970 by the database's clock
 */
export function judgeEvidence(
  breaker: Breaker,
  evidence: Evidence,
  policy: BreakerPolicy,
  nowMs: number,
): Breaker {
  const next = policy.enabled ? nextBreaker(breaker, evidence, policy, nowMs) : breaker;
  const failingSinceMs = nextFailingSince(breaker, evidence, nowMs);
  return failingSinceMs === next.failingSinceMs ? next : { ...next, failingSinceMs };
}

/** Whether a result counts towards days of nothing but failure. */
export function isFailure(evidence: Pick<Evidence, 'kind' | 'success'>): boolean {
  return !evidence.success && evidence.kind !== 'none';
}

/** Any answer but 5xx says that somebody is there: 404 and 429 too, whatever they mean for the delivery. */
export function evidenceOf(result: SendResult): EvidenceKind {
  if (result.kind === 'failure') return FAILURES[result.failure];
  const status = statusMeant(result);
  return status >= 500 && status <= 599 ? 'failing' : 'alive';
}

const FAILURES: Readonly<Record<TransportFailure, EvidenceKind>> = {
  timeout: 'failing',
  connect: 'failing',
  tls: 'failing',
  // Something listens there, but it does not speak HTTP.
  protocol: 'failing',
  // More often our resolver's trouble than the endpoint's, and then everybody's at once.
  dns: 'unclear',
  // A kept connection that the endpoint closed while it was idle looks the same, and a burst meets several of them in a row.
  reset: 'unclear',
  refused: 'none',
  oversize: 'none',
  other: 'none',
};

function nextBreaker(breaker: Breaker, evidence: Evidence, policy: BreakerPolicy, nowMs: number): Breaker {
  switch (breaker.state) {
    case 'closed':
      // A probe's result that comes when the matter is decided was sent to the endpoint of another time.
      if (evidence.trips !== breaker.trips || evidence.probe !== null) return breaker;
      return whileClosed(breaker, evidence.kind, policy, nowMs);
    case 'open':
      return breaker;
    case 'half_open':
      if (evidence.probe === null || evidence.probe !== breaker.probe) return breaker;
      return afterProbe(breaker, evidence.kind, policy, nowMs);
  }
}

function whileClosed(breaker: Breaker, kind: EvidenceKind, policy: BreakerPolicy, nowMs: number): Breaker {
  if (kind === 'alive') return breaker.failures === 0 ? breaker : { ...breaker, failures: 0 };
  if (kind !== 'failing') return breaker;
  const failures = breaker.failures + 1;
  const counted = { ...breaker, failures };
  return failures >= policy.threshold ? opened(counted, policy, nowMs) : counted;
}

function afterProbe(breaker: Breaker, kind: EvidenceKind, policy: BreakerPolicy, nowMs: number): Breaker {
  switch (kind) {
    case 'alive':
      return { ...breaker, state: 'closed', failures: 0, streak: 0, untilMs: null, probe: null };
    case 'failing':
      return opened(breaker, policy, nowMs);
    case 'unclear':
    case 'none':
      return {
        ...breaker,
        state: 'open',
        untilMs: nowMs + Math.min(policy.cooldownMs, UNDECIDED_COOLDOWN_MS),
        probe: null,
      };
  }
}

function opened(breaker: Breaker, policy: BreakerPolicy, nowMs: number): Breaker {
  const streak = breaker.streak + 1;
  return {
    ...breaker,
    state: 'open',
    trips: breaker.trips + 1,
    streak,
    untilMs: nowMs + cooldownMs(policy, streak),
    probe: null,
  };
}

/** The cooldown of the n-th opening in a row, ms. The power may overflow to Infinity, which the cap answers. */
function cooldownMs({ cooldownMs, maxCooldownMs }: BreakerPolicy, streak: number): number {
  return Math.min(maxCooldownMs, cooldownMs * 2 ** Math.max(0, streak - 1));
}

function nextFailingSince({ failingSinceMs }: Breaker, evidence: Evidence, nowMs: number): number | null {
  if (evidence.success) return null;
  return failingSinceMs ?? (isFailure(evidence) ? nowMs : null);
}
