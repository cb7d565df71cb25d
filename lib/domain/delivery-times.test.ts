import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { MAX_DELAY_MS, parseMoment, validateDeliveryTimes } from './delivery-times.ts';

describe('a moment', () => {
  it('is read as every RFC 3339 spelling of it', () => {
    const noon = new Date('2026-12-01T12:00:00.250Z');
    for (const text of [
      '2026-12-01T12:00:00.250Z',
      '2026-12-01t12:00:00.25z',
      '2026-12-01T12:00:00.250999999Z',
      '2026-12-01T13:30:00.250+01:30',
      '2026-11-30T13:00:00.250-23:00',
      '2026-12-01T12:00:00.250-00:00',
    ])
      expect(parseMoment(text)).toEqual(noon);
  });

  it('is whatever a Date prints', () => {
    const years = { min: new Date('0100-01-01'), max: new Date('9999-12-31'), noInvalidDate: true };
    fc.assert(
      fc.property(fc.date(years), (date) => {
        expect(parseMoment(date.toISOString())).toEqual(date);
      }),
    );
  });

  it.each([
    '',
    'tomorrow',
    '2026-12-01',
    '2026-12-01T12:00Z',
    '2026-12-01T12:00:00',
    '2026-12-01 12:00:00Z',
    '2026-12-01T12:00:00 Z',
    '2026-12-01T24:00:00Z',
    '2026-12-01T12:60:00Z',
    '2026-12-01T12:00:60Z',
    '2026-12-01T12:00:00.Z',
    '2026-12-01T12:00:00+24:00',
    '2026-12-01T12:00:00+0100',
    '2026-13-01T12:00:00Z',
    '2026-00-01T12:00:00Z',
    '2026-02-29T12:00:00Z',
    '2026-04-31T12:00:00Z',
    '2026-12-00T12:00:00Z',
    '+02026-12-01T12:00:00Z',
    '1764590400',
    '2026-12-01T12:00:00Z, 2026-12-01T12:00:00Z',
  ])('is not %j', (text) => {
    expect(parseMoment(text)).toBeNull();
  });

  it('may be a leap day', () => {
    expect(parseMoment('2028-02-29T00:00:00Z')).toEqual(new Date('2028-02-29T00:00:00Z'));
  });
});

describe('the times of an event', () => {
  const now = Date.parse('2026-12-01T12:00:00Z');
  const at = (ms: number) => new Date(now + ms);
  const judge = (deliverAt: Date | null, expiresAt: Date | null) =>
    validateDeliveryTimes({ deliverAt, expiresAt }, now)?.at ?? null;

  it('may be absent, past, or up to a year ahead', () => {
    expect(judge(null, null)).toBeNull();
    expect(judge(at(-1), null)).toBeNull();
    expect(judge(at(MAX_DELAY_MS), null)).toBeNull();
    expect(judge(at(MAX_DELAY_MS + 1), null)).toBe('deliverAt');
    expect(judge(null, at(100 * MAX_DELAY_MS))).toBeNull();
  });

  it('leave time between them', () => {
    expect(judge(at(5), at(6))).toBeNull();
    expect(judge(at(5), at(5))).toBe('expiresAt');
    expect(judge(at(5), at(4))).toBe('expiresAt');
  });

  it('are not judged against the clock where that would refuse a repeated request', () => {
    expect(judge(null, at(-1))).toBeNull();
    expect(judge(at(-2), at(-1))).toBeNull();
  });
});
