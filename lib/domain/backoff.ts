/** How often, and how far apart, a failed delivery is tried again. */
export interface RetryPolicy {
  /** All sends of one delivery, the first included. */
  readonly maxAttempts: number;
  readonly baseMs: number;
  readonly factor: number;
  readonly capMs: number;
}

const HOUR_MS = 3_600_000;

/** 16 attempts over 46 h on average, 93 h at most: longer than a weekend outage nobody noticed on Friday evening. */
export const RETRY_POLICY_DEFAULT: RetryPolicy = Object.freeze({
  maxAttempts: 16,
  baseMs: 10_000,
  factor: 3,
  capMs: 12 * HOUR_MS,
});

/**
 * The wait before the next attempt, in ms: uniform between nothing and a ceiling that grows with each attempt (full
 * jitter, so that deliveries that failed together do not come back together). Never below 1 ms.
 *
 * @param attemptsSpent attempts before the one that just failed, so 0 after the first
 * @param random from 0 to 1; anything else is taken as 1, the longest wait
 */
export function backoffDelayMs(policy: RetryPolicy, attemptsSpent: number, random: number): number {
  const share = random >= 0 && random <= 1 ? random : 1;
  return Math.max(1, Math.round(share * backoffCeilingMs(policy, attemptsSpent)));
}

/** The longest wait after so many attempts, in ms. `factor ** n` may overflow to Infinity, which the cap answers. */
export function backoffCeilingMs(policy: RetryPolicy, attemptsSpent: number): number {
  const grown = policy.baseMs * policy.factor ** Math.max(0, attemptsSpent);
  return Number.isNaN(grown) ? policy.capMs : Math.min(policy.capMs, grown);
}

type Limits = Record<
  'max_attempts' | 'base_ms' | 'factor' | 'cap_ms',
  { min: number; max: number; whole: boolean }
>;

/** What an endpoint may ask for. The longest policy still ends within a delivery's retention. */
export const RETRY_POLICY_LIMITS: Limits = {
  max_attempts: { min: 1, max: 50, whole: true },
  base_ms: { min: 100, max: HOUR_MS, whole: true },
  factor: { min: 1, max: 10, whole: false },
  cap_ms: { min: 1_000, max: 24 * HOUR_MS, whole: true },
};

export type ParsedRetryPolicy = { ok: true; policy: RetryPolicy } | { ok: false; reason: string };

/**
 * Reads an endpoint's override `{ max_attempts?, base_ms?, factor?, cap_ms? }`; what it leaves out comes from
 * `defaults`. Null and undefined mean no override.
 */
export function parseRetryPolicy(
  override: unknown,
  defaults: RetryPolicy = RETRY_POLICY_DEFAULT,
): ParsedRetryPolicy {
  if (override === null || override === undefined) return { ok: true, policy: defaults };
  if (typeof override !== 'object' || Array.isArray(override)) {
    return { ok: false, reason: 'a retry policy is an object' };
  }
  const given = new Map<string, unknown>(Object.entries(override));
  for (const [name, value] of given) {
    const reason = problemWith(name, value);
    if (reason !== null) return { ok: false, reason };
  }
  const pick = (name: keyof Limits, otherwise: number) =>
    (given.get(name) as number | undefined) ?? otherwise;
  const policy: RetryPolicy = {
    maxAttempts: pick('max_attempts', defaults.maxAttempts),
    baseMs: pick('base_ms', defaults.baseMs),
    factor: pick('factor', defaults.factor),
    capMs: pick('cap_ms', defaults.capMs),
  };
  return policy.capMs >= policy.baseMs
    ? { ok: true, policy }
    : { ok: false, reason: 'cap_ms must be at least base_ms, or the first wait is already cut short' };
}

function problemWith(name: string, value: unknown): string | null {
  if (!Object.hasOwn(RETRY_POLICY_LIMITS, name)) {
    return `a retry policy has no ${JSON.stringify(name.slice(0, 40))}; it has ${Object.keys(RETRY_POLICY_LIMITS).join(', ')}`;
  }
  const { min, max, whole } = RETRY_POLICY_LIMITS[name as keyof Limits];
  const fits =
    typeof value === 'number' && value >= min && value <= max && (!whole || Number.isInteger(value));
  return fits ? null : `${name} is a ${whole ? 'whole number' : 'number'} from ${min} to ${max}`;
}
