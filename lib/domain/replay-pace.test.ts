import { describe, expect, it } from 'vitest';
import { REPLAY_RATE, replayPace } from './replay-pace.ts';

describe('the pace of a replay job', () => {
  it('comes to its rate, in steps of 1 to 500 deliveries', () => {
    for (let rate = REPLAY_RATE.min; rate <= REPLAY_RATE.max; rate *= 1.07) {
      const { deliveries, everyMs } = replayPace(rate);
      expect(Number.isInteger(deliveries)).toBe(true);
      expect(deliveries).toBeGreaterThanOrEqual(1);
      expect(deliveries).toBeLessThanOrEqual(500);
      expect((deliveries * 1_000) / everyMs).toBeCloseTo(rate, 6);
    }
  });

  it('is at most 20 steps a second, and four where that is enough', () => {
    expect(replayPace(10_000)).toEqual({ deliveries: 500, everyMs: 50 });
    expect(replayPace(100)).toEqual({ deliveries: 25, everyMs: 250 });
    expect(replayPace(1)).toEqual({ deliveries: 1, everyMs: 1_000 });
    expect(replayPace(0.01)).toEqual({ deliveries: 1, everyMs: 100_000 });
  });
});
