import { describe, expect, it } from 'vitest';
import {
  busiestEndpointSecond,
  busiestSecond,
  flowsFrom,
  laterClaimsBySecond,
  median,
  neededForFlow,
} from './figures.ts';
import type { Touch } from './touches.ts';

describe('the median', () => {
  it('is the middle value, or the mean of the two in the middle, in any order', () => {
    expect(median([3])).toBe(3);
    expect(median([9, 1, 5])).toBe(5);
    expect(median([100, 20, 3, 10])).toBe(15);
    expect(median([])).toBeNaN();
  });
});

describe('the fullest second', () => {
  it('may begin at any moment', () => {
    expect(busiestSecond([])).toBe(0);
    expect(busiestSecond([0, 900, 1_100, 1_850])).toBe(3);
  });

  it('holds its first moment and not the one a second later', () => {
    expect(busiestSecond([0, 1_000])).toBe(1);
    expect(busiestSecond([0, 999.5])).toBe(2);
  });

  it('holds as many as a steady rate has in a second', () => {
    const steady = Array.from({ length: 100 }, (_, n) => n * 100);
    expect(busiestSecond(steady)).toBe(10);
  });

  it('is that of one endpoint, of claims of what was claimed before', () => {
    const touch = (endpointId: string, over: Partial<Touch> = {}): Touch => ({
      endpointId,
      kind: 'claimed',
      atMs: 5,
      again: true,
      ...over,
    });
    expect(busiestEndpointSecond([])).toBe(0);
    expect(
      busiestEndpointSecond([
        touch('a'),
        touch('b'),
        touch('b'),
        touch('a', { again: false }),
        touch('a', { again: false }),
        touch('a', { kind: 'announced' }),
      ]),
    ).toBe(2);
  });
});

describe('the seconds of a window', () => {
  it('each have the later claims that fall into them', () => {
    const touch = (atMs: number, over: Partial<Touch> = {}): Touch => ({
      endpointId: 'a',
      kind: 'claimed',
      atMs,
      again: true,
      ...over,
    });
    const touches = [
      touch(999),
      touch(1_000),
      touch(1_999),
      touch(2_000, { endpointId: 'b' }),
      touch(2_100, { again: false }),
      touch(2_200, { kind: 'announced' }),
      touch(3_500),
    ];
    expect(laterClaimsBySecond(touches, { fromMs: 1_000, toMs: 3_400 })).toEqual([2, 1, 1]);
    expect(laterClaimsBySecond([], { fromMs: 0, toMs: 2_000 })).toEqual([0, 0]);
  });
});

describe('a recovery', () => {
  /** A sample every quarter of a second; `rate` from `fromMs` on. */
  const samples = (fromMs: number, rate: number, untilMs = 20_000) =>
    Array.from({ length: untilMs / 250 }, (_, n) => ({
      atMs: n * 250,
      delivered: Math.floor((Math.max(0, n * 250 - fromMs) * rate) / 1000),
    }));

  it('begins where deliveries flow at their own rate', () => {
    expect(flowsFrom(samples(0, 10), 10)).toBe(0);
    const from = flowsFrom(samples(8_000, 10), 10)!;
    expect(from).toBeGreaterThan(7_000);
    expect(from).toBeLessThanOrEqual(8_000);
  });

  it('has not begun below nine tenths of the rate', () => {
    expect(flowsFrom(samples(0, 8.5), 10)).toBeNull();
    expect(flowsFrom(samples(0, 9.5), 10)).not.toBeNull();
  });

  it('is not known before five seconds were seen', () => {
    expect(flowsFrom(samples(0, 10, 4_000), 10)).toBeNull();
    expect(flowsFrom([], 10)).toBeNull();
  });

  it('needs as many deliveries as flow in that time', () => {
    expect(neededForFlow(10)).toBe(50);
  });
});
