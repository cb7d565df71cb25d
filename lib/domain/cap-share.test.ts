import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { capShare } from './cap-share.ts';

const endpointId = fc.uuid();

describe("a dispatcher's share of an endpoint's cap", () => {
  it('adds up to the cap over all live dispatchers, whatever the cap, their number and the endpoint', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 64 }), fc.nat(10_000), endpointId, (live, more, id) => {
        const cap = live + more;
        const shares = Array.from({ length: live }, (_, rank) => capShare(cap, { rank, live }, id));
        expect(shares.reduce((sum, share) => sum + share, 0)).toBe(cap);
        expect(Math.max(...shares) - Math.min(...shares)).toBeLessThanOrEqual(1);
      }),
    );
  });

  it('is one when there are more dispatchers than the cap has places', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 8 }),
        fc.integer({ min: 8, max: 64 }),
        endpointId,
        (cap, live, id) => {
          for (let rank = 0; rank < live; rank += 1) expect(capShare(cap, { rank, live }, id)).toBe(1);
        },
      ),
    );
  });

  it('gives the remainder to different dispatchers for different endpoints', () => {
    const share = (last: string) =>
      capShare(3, { rank: 0, live: 2 }, `00000000-0000-0000-0000-00000000000${last}`);
    expect(new Set([share('0'), share('1')])).toEqual(new Set([1, 2]));
  });
});
