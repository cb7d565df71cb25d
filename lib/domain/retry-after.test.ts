import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { askedDelayMs, parseRetryAfter, RETRY_AFTER_MAX_MS } from './retry-after.ts';
import type { SendResult } from './send-result.ts';

const now = Date.UTC(2026, 11, 1, 12, 0, 0);
const inSeconds = (seconds: number) => new Date(now + seconds * 1000);

const MONTHS = 'Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec'.split(' ');
const DAYS = 'Sunday Monday Tuesday Wednesday Thursday Friday Saturday'.split(' ');
const two = (value: number) => String(value).padStart(2, '0');
const clock = (date: Date) => date.toISOString().slice(11, 19);
const forms: Record<string, (date: Date) => string> = {
  'IMF-fixdate': (date) => date.toUTCString(),
  'RFC 850': (date) =>
    `${DAYS[date.getUTCDay()]}, ${two(date.getUTCDate())}-${MONTHS[date.getUTCMonth()]}-${two(date.getUTCFullYear() % 100)} ${clock(date)} GMT`,
  asctime: (date) =>
    `${DAYS[date.getUTCDay()]?.slice(0, 3)} ${MONTHS[date.getUTCMonth()]} ${String(date.getUTCDate()).padStart(2)} ${clock(date)} ${date.getUTCFullYear()}`,
};

describe('Retry-After in seconds', () => {
  it.each([
    ['1', 1_000],
    ['90', 90_000],
    [' 90 ', 90_000],
    ['0090', 90_000],
    ['1.5', 1_500],
    ['2.0001', 2_001],
    ['3600', 3_600_000],
  ])('of %j is honoured', (value, expected) => {
    expect(parseRetryAfter([value], now)).toBe(expected);
  });

  it('is held between a second and an hour', () => {
    expect(parseRetryAfter(['0.01'], now)).toBe(1_000);
    expect(parseRetryAfter(['86400'], now)).toBe(RETRY_AFTER_MAX_MS);
  });

  it('is never shortened below what was asked, within the hour', () => {
    fc.assert(
      fc.property(fc.double({ min: 0.001, max: 3_600, noNaN: true }), (seconds) => {
        const delay = parseRetryAfter([seconds.toFixed(6)], now);
        expect(delay).toBeGreaterThanOrEqual(Number(seconds.toFixed(6)) * 1_000);
      }),
    );
  });
});

describe.each(Object.entries(forms))('Retry-After as a date in the form of %s', (_, print) => {
  it('is honoured', () => {
    expect(parseRetryAfter([print(inSeconds(90))], now)).toBe(90_000);
  });

  it('is honoured on any day, and never early', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 3_600 }),
        fc.integer({ min: 0, max: 40 * 366 * 86_400 }),
        (ahead, from) => {
          const then = now + from * 1_000 - 250;
          const date = new Date(Math.floor(then / 1_000 + ahead) * 1_000);
          const delay = parseRetryAfter([print(date)], then);
          expect(delay).toBe(Math.max(1_000, date.getTime() - then));
        },
      ),
    );
  });

  it('that has passed asks for nothing', () => {
    expect(parseRetryAfter([print(inSeconds(-3_600))], now)).toBeNull();
    expect(parseRetryAfter([print(inSeconds(0))], now)).toBeNull();
  });
});

describe('a Retry-After that makes no sense', () => {
  it.each([
    [[]],
    [['']],
    [['   ']],
    [['soon']],
    [['0']],
    [['0.0']],
    [['-5']],
    [['+5']],
    [['1e3']],
    [['0x10']],
    [['5s']],
    [['90, 120']],
    [['90', '120']],
    [['90', '']],
    [['NaN']],
    [['Infinity']],
    [['99999999999']],
    [['9'.repeat(400)]],
    [['.5']],
    [['5.']],
    [['2026-12-01T12:01:30Z']],
    [['Tue, 01 Dec 2026 12:01:30']],
    [['Tue, 01 Dec 2026 12:01:30 CET']],
    [['Tue, 01 Foo 2026 12:01:30 GMT']],
    [['Tue, 31 Feb 2027 12:01:30 GMT']],
    [['Tue, 01 Dec 2026 24:01:30 GMT']],
    [['Tue, 01 Dec 2026 12:61:30 GMT']],
    [['Tue, 1 Dec 2026 12:01:30 GMT']],
    [['Fri, 31 Dec 9999 23:59:59 GMT']],
  ])('such as %j falls back to the backoff', (values) => {
    expect(parseRetryAfter(values, now)).toBeNull();
  });

  it('never becomes a wait that is no number, or none at all', () => {
    fc.assert(
      fc.property(fc.array(fc.string({ maxLength: 40 }), { maxLength: 3 }), fc.maxSafeNat(), (values, at) => {
        const delay = parseRetryAfter(values, at);
        expect(
          delay === null || (Number.isInteger(delay) && delay >= 1_000 && delay <= RETRY_AFTER_MAX_MS),
        ).toBe(true);
      }),
      { numRuns: 2_000 },
    );
  });

  it('is still understood when it is said twice in the same words', () => {
    expect(parseRetryAfter(['90', '90'], now)).toBe(90_000);
  });
});

describe('the pause that a result asks for', () => {
  const answer = (status: number): SendResult => ({
    kind: 'response',
    status,
    retryAfter: ['90'],
    snippet: Buffer.alloc(0),
    firstByteMs: 1,
    durationMs: 1,
  });

  it('counts for 429 and 503 alone', () => {
    const asking = Array.from({ length: 500 }, (_, i) => i + 100).filter(
      (s) => askedDelayMs(answer(s), now) !== null,
    );
    expect(asking).toEqual([429, 503]);
  });

  it('is none when there was no answer', () => {
    const failed: SendResult = {
      kind: 'failure',
      failure: 'timeout',
      detail: '',
      requestSent: true,
      durationMs: 1,
    };
    expect(askedDelayMs(failed, now)).toBeNull();
  });
});
