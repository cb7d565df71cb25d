import { describe, expect, it } from 'vitest';
import { type ExpressAllowance, tokensAt } from './express-allowance.ts';

const allowance = (fields: Partial<ExpressAllowance> = {}): ExpressAllowance => ({
  ratePerSecond: 10,
  burst: 20,
  tokens: 0,
  atMs: 1_000,
  ...fields,
});

describe('an allowance on the express lane', () => {
  it('fills at the endpoint’s own rate, up to its burst', () => {
    expect(tokensAt(allowance(), 1_000, 1)).toBe(0);
    expect(tokensAt(allowance(), 1_100, 1)).toBe(1);
    expect(tokensAt(allowance(), 2_500, 1)).toBe(15);
    expect(tokensAt(allowance(), 60_000, 1)).toBe(20);
  });

  it('is shared by those who accept, one token of the burst at least', () => {
    expect(tokensAt(allowance(), 2_000, 4)).toBe(2.5);
    expect(tokensAt(allowance(), 60_000, 4)).toBe(5);
    expect(tokensAt(allowance({ burst: 1 }), 60_000, 4)).toBe(1);
  });

  it('that is owed is paid back first', () => {
    expect(tokensAt(allowance({ tokens: -30 }), 3_000, 1)).toBe(-10);
    expect(tokensAt(allowance({ tokens: -30 }), 5_000, 1)).toBe(10);
  });

  it('is not what it was when its endpoint’s burst has shrunk', () => {
    expect(tokensAt(allowance({ tokens: 20, burst: 3 }), 1_000, 1)).toBe(3);
  });

  it('does not fall when a clock goes back', () => {
    expect(tokensAt(allowance({ tokens: 5 }), 0, 1)).toBe(5);
  });
});
