import { describe, expect, it } from 'vitest';
import { ratesOf } from './drain.ts';

describe('the rate of a drain', () => {
  it('runs from the first arrival to the last', () => {
    const moments = Float64Array.from({ length: 101 }, (_, n) => 5000 + n * 10);
    expect(ratesOf(moments)).toEqual({ seconds: 1, whole: 100, middle: 100 });
  });

  it('shows a slow start apart from the middle', () => {
    const moments = Float64Array.from([0, ...Array.from({ length: 100 }, (_, n) => 1000 + n)]);
    const { whole, middle } = ratesOf(moments);
    expect(middle).toBe(1000);
    expect(whole).toBeLessThan(100);
  });

  it('is nothing for nothing', () => {
    expect(ratesOf(new Float64Array())).toEqual({ seconds: 0, whole: 0, middle: 0 });
  });
});
