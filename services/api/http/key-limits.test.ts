import { describe, expect, it } from 'vitest';
import type { Principal } from './authentication.ts';
import { KeyLimits } from './key-limits.ts';
import type { Problem } from './problem.ts';

const KEY: Principal = {
  keyId: 'k',
  portalTokenId: null,
  tenantId: 't',
  scopes: ['read'],
  endpointIds: null,
  requestsPerSecond: null,
};

function given(perSecond: number, liveApis = 1) {
  let now = 0;
  const limits = new KeyLimits({ perSecond, liveApis: () => liveApis, clock: () => now });
  /** Null when it passes, else the seconds of `retry-after`. */
  const ask = (principal: Principal = KEY): number | null => {
    try {
      limits.spend(principal);
      return null;
    } catch (error) {
      const { code, status, headers } = error as Problem;
      expect([code, status]).toEqual(['rate_limited', 429]);
      return Number(headers['retry-after']);
    }
  };
  const passing = (count: number, principal?: Principal) =>
    Array.from({ length: count }, () => ask(principal)).filter((wait) => wait === null).length;
  return { ask, passing, pass: (ms: number) => (now += ms) };
}

describe('the limit of a key', () => {
  it('lets through a second’s requests at once, and then its rate', () => {
    const { passing, pass } = given(10);
    expect(passing(100)).toBe(10);
    pass(500);
    expect(passing(100)).toBe(5);
    pass(60_000);
    expect(passing(100)).toBe(10);
  });

  it('tells in whole seconds when the next request may come, and then lets it through', () => {
    for (const perSecond of [0.1, 0.5, 1, 3, 100]) {
      const { ask, pass } = given(perSecond);
      let wait: number | null = null;
      while (wait === null) wait = ask();
      expect(wait).toBe(Math.max(1, Math.ceil(1 / perSecond)));
      pass(wait * 1000 + 1);
      expect(ask()).toBeNull();
    }
  });

  it('counts nothing for what it refuses', () => {
    const { ask, passing, pass } = given(1);
    expect(passing(1000)).toBe(1);
    pass(1_001);
    expect(ask()).toBeNull();
  });

  it('is each key’s and each token’s own', () => {
    const { passing } = given(5);
    const token = { ...KEY, keyId: null, portalTokenId: 'p' };
    expect([passing(9), passing(9, { ...KEY, keyId: 'other' }), passing(9, token)]).toEqual([5, 5, 5]);
  });

  it('of its own goes before the general one, and holds at once when it is changed', () => {
    const { passing, pass } = given(5);
    expect(passing(100, { ...KEY, requestsPerSecond: 20 })).toBe(20);
    pass(1_000);
    expect(passing(100, { ...KEY, requestsPerSecond: 2 })).toBe(2);
  });

  it('is divided among the APIs that live, with one request at least', () => {
    const { passing, pass } = given(10, 4);
    expect(passing(100)).toBe(2);
    pass(1_000);
    expect(passing(100)).toBe(2);
    expect(given(1, 4).passing(100)).toBe(1);
  });

  it('is none when it is 0, unless the key has one of its own', () => {
    const { passing } = given(0);
    expect(passing(1000)).toBe(1000);
    expect(passing(1000, { ...KEY, requestsPerSecond: 3 })).toBe(3);
  });

  it('does not hold for the key of RELAY_ADMIN_KEY: an operator must get in during a flood', () => {
    expect(given(1).passing(100, { ...KEY, keyId: null, tenantId: null })).toBe(100);
  });
});
