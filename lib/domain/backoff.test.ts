import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { backoffCeilingMs, backoffDelayMs, parseRetryPolicy, RETRY_POLICY_DEFAULT } from './backoff.ts';

const HOUR_MS = 3_600_000;

describe('the default policy', () => {
  const waits = RETRY_POLICY_DEFAULT.maxAttempts - 1;
  const total = (random: number) =>
    Array.from({ length: waits }, (_, n) => backoffDelayMs(RETRY_POLICY_DEFAULT, n, random)).reduce(
      (a, b) => a + b,
    );

  it('spans 93 hours at most and half of that on average', () => {
    expect(total(1) / HOUR_MS).toBeCloseTo(93.1, 1);
    expect(total(0.5) / HOUR_MS).toBeCloseTo(46.6, 1);
  });

  it('triples from ten seconds up to twelve hours', () => {
    const ceilings = Array.from({ length: 10 }, (_, n) => backoffCeilingMs(RETRY_POLICY_DEFAULT, n) / 1000);
    expect(ceilings).toEqual([10, 30, 90, 270, 810, 2430, 7290, 21_870, 43_200, 43_200]);
  });
});

describe('a backoff delay', () => {
  const policies = fc.record({
    maxAttempts: fc.integer({ min: 1, max: 100 }),
    baseMs: fc.integer({ min: 1, max: HOUR_MS }),
    factor: fc.double({ min: 1, max: 1e300, noNaN: true }),
    capMs: fc.integer({ min: 1, max: 7 * 24 * HOUR_MS }),
  });

  it('lies between 1 ms and the ceiling, however far the powers overflow', () => {
    fc.assert(
      fc.property(policies, fc.nat(), fc.double({ min: 0, max: 1, noNaN: true }), (policy, n, random) => {
        const delay = backoffDelayMs(policy, n, random);
        expect(Number.isSafeInteger(delay)).toBe(true);
        expect(delay).toBeGreaterThanOrEqual(1);
        expect(delay).toBeLessThanOrEqual(Math.max(1, Math.ceil(backoffCeilingMs(policy, n))));
        expect(delay).toBeLessThanOrEqual(policy.capMs);
      }),
    );
  });

  it('is spread over the whole range, nothing to the ceiling', () => {
    expect(backoffDelayMs(RETRY_POLICY_DEFAULT, 2, 0)).toBe(1);
    expect(backoffDelayMs(RETRY_POLICY_DEFAULT, 2, 0.25)).toBe(22_500);
    expect(backoffDelayMs(RETRY_POLICY_DEFAULT, 2, 1)).toBe(90_000);
  });

  it.each([Number.NaN, -1, 1.5, Number.POSITIVE_INFINITY])(
    'takes the random number %s as the longest wait',
    (random) => {
      expect(backoffDelayMs(RETRY_POLICY_DEFAULT, 0, random)).toBe(10_000);
    },
  );

  it('survives a policy whose numbers are no numbers', () => {
    const policy = { maxAttempts: 3, baseMs: 0, factor: Number.POSITIVE_INFINITY, capMs: 5_000 };
    expect(backoffDelayMs(policy, 3, 1)).toBe(5_000);
  });
});

describe("an endpoint's override", () => {
  it.each([null, undefined, {}])('of %s leaves the defaults', (override) => {
    expect(parseRetryPolicy(override)).toEqual({ ok: true, policy: RETRY_POLICY_DEFAULT });
  });

  it('replaces what it names and nothing else', () => {
    expect(parseRetryPolicy({ max_attempts: 5, cap_ms: 60_000 })).toEqual({
      ok: true,
      policy: { maxAttempts: 5, baseMs: 10_000, factor: 3, capMs: 60_000 },
    });
  });

  it.each([
    [[], 'object'],
    ['fast', 'object'],
    [{ maxAttempts: 3 }, 'no "maxAttempts"'],
    [{ constructor: 3 }, 'no "constructor"'],
    [{ max_attempts: 0 }, 'max_attempts'],
    [{ max_attempts: 51 }, 'max_attempts'],
    [{ max_attempts: 2.5 }, 'whole'],
    [{ max_attempts: '3' }, 'max_attempts'],
    [{ base_ms: null }, 'base_ms'],
    [{ base_ms: Number.NaN }, 'base_ms'],
    [{ factor: 0.5 }, 'factor'],
    [{ factor: Number.POSITIVE_INFINITY }, 'factor'],
    [{ cap_ms: 2_000, base_ms: 3_000 }, 'at least base_ms'],
    [{ cap_ms: 25 * HOUR_MS }, 'cap_ms'],
  ])('of %j is refused', (override, reason) => {
    const parsed = parseRetryPolicy(override);
    expect(parsed.ok ? null : parsed.reason).toContain(reason);
  });
});
