import { describe, expect, it } from 'vitest';
import { busiestSeconds, measuredSeconds } from './stops.ts';
import type { Touch } from './touches.ts';

const claims = (...moments: number[]): Touch[] =>
  moments.map((atMs) => ({ endpointId: 'e', kind: 'claimed', atMs, again: true }));
const burst = (fromMs: number, count: number) => Array.from({ length: count }, (_, n) => fromMs + n);

describe('the fullest seconds around a stop', () => {
  it('are all of the measured part without one', () => {
    expect(busiestSeconds(claims(1, 2, 3), [])).toEqual({ usual: 3, afterStop: null, aside: null });
  });

  it('set aside the stop and the second that begins with the first claim after it', () => {
    const touches = claims(...burst(0, 4), ...burst(5_000, 50), ...burst(6_500, 6));
    const stop = { what: 'postgres' as const, fromMs: 3_000, toMs: 4_000 };
    expect(busiestSeconds(touches, [stop])).toEqual({ usual: 6, afterStop: 6, aside: 50 });
  });

  it('count a burst that comes later', () => {
    const touches = claims(0, 4_000, ...burst(5_100, 50));
    const stop = { what: 'leader' as const, fromMs: 3_000, toMs: 3_500 };
    expect(busiestSeconds(touches, [stop])).toMatchObject({ usual: 50, afterStop: 50 });
  });

  it('count what was before it as usual, not as after it', () => {
    const touches = claims(...burst(0, 9), 4_000);
    const stop = { what: 'leader' as const, fromMs: 3_000, toMs: 3_500 };
    expect(busiestSeconds(touches, [stop])).toMatchObject({ usual: 9, afterStop: 0 });
  });
});

describe('the measured seconds', () => {
  it('hold the stops that were asked for, each with its span', async () => {
    const done: string[] = [];
    const fleet = {
      restartPostgres: async () => void done.push('postgres'),
      killLeader: async () => void done.push('leader'),
    };
    const stops = await measuredSeconds(fleet, 0.05, {
      restartPostgresAtSeconds: 0,
      changeLeaderAtSeconds: null,
    });
    expect(done).toEqual(['postgres']);
    expect(stops).toMatchObject([{ what: 'postgres' }]);
    expect(stops[0]!.toMs).toBeGreaterThanOrEqual(stops[0]!.fromMs);
    const both = { restartPostgresAtSeconds: 0, changeLeaderAtSeconds: 0 };
    expect(await measuredSeconds(fleet, 0.05, both)).toHaveLength(2);
    const none = { restartPostgresAtSeconds: null, changeLeaderAtSeconds: null };
    expect(await measuredSeconds(fleet, 0.05, none)).toEqual([]);
  });
});
