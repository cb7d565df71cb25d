import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { TimerWheel } from './timer-wheel.ts';

const TICK_MS = 20;

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval', 'performance'] });
});
afterEach(() => {
  vi.restoreAllMocks();
  vi.useRealTimers();
});

/** Freezes the process: time passes and no timer runs. */
function stall(ms: number): void {
  const now = performance.now.bind(performance);
  vi.spyOn(performance, 'now').mockImplementation(() => now() + ms);
}

describe('a scheduled call', () => {
  it('is never early and at most a tick late, however far away', () => {
    fc.assert(
      fc.property(
        fc.array(fc.tuple(fc.integer({ min: 0, max: 400 }), fc.integer({ min: 0, max: 60_000 })), {
          maxLength: 40,
        }),
        (calls) => {
          const wheel = new TimerWheel({ tickMs: TICK_MS });
          const lateness: number[] = [];
          for (const [pauseMs, delayMs] of calls) {
            vi.advanceTimersByTime(pauseMs);
            const due = performance.now() + delayMs;
            wheel.schedule(delayMs, () => lateness.push(performance.now() - due));
          }
          vi.advanceTimersByTime(61_000);
          expect(lateness).toHaveLength(calls.length);
          for (const late of lateness) {
            expect(late).toBeGreaterThanOrEqual(0);
            expect(late).toBeLessThanOrEqual(TICK_MS * 2);
          }
          expect(wheel.size).toBe(0);
        },
      ),
      { numRuns: 30 },
    );
  });

  it('comes once', () => {
    const wheel = new TimerWheel();
    const call = vi.fn();
    wheel.schedule(50, call);
    vi.advanceTimersByTime(30_000);
    expect(call).toHaveBeenCalledTimes(1);
  });

  it('does not come when it was cancelled, and the others do', () => {
    const wheel = new TimerWheel();
    const called: number[] = [];
    const timers = Array.from({ length: 100 }, (_, i) => wheel.schedule(i * 10, () => called.push(i)));
    for (const [i, timer] of timers.entries()) if (i % 3 === 0) wheel.cancel(timer);
    expect(wheel.size).toBe(66);
    vi.advanceTimersByTime(2_000);
    expect(called).toEqual(timers.map((_, i) => i).filter((i) => i % 3 !== 0));
  });

  it('may be cancelled twice, or after it came, and changes nothing', () => {
    const wheel = new TimerWheel();
    const first = wheel.schedule(10, () => {});
    const second = wheel.schedule(1_000, () => {});
    vi.advanceTimersByTime(100);
    wheel.cancel(first);
    expect(wheel.size).toBe(1);
    wheel.cancel(second);
    wheel.cancel(second);
    expect(wheel.size).toBe(0);
  });

  it('may be cancelled by another that is due in the same moment', () => {
    const wheel = new TimerWheel();
    const called: string[] = [];
    wheel.schedule(5, () => {
      called.push('first');
      wheel.cancel(second);
    });
    const second = wheel.schedule(5, () => called.push('second'));
    vi.advanceTimersByTime(100);
    expect(called).toEqual(['first']);
    expect(wheel.size).toBe(0);
  });

  it('may schedule the next one', () => {
    const wheel = new TimerWheel();
    let rounds = 0;
    const again = () => {
      rounds++;
      if (rounds < 5) wheel.schedule(0, again);
    };
    wheel.schedule(0, again);
    vi.advanceTimersByTime(5 * TICK_MS + 20);
    expect(rounds).toBe(5);
  });
});

describe('a wheel that stood still', () => {
  it.each([100, 5_000, 11_000, 60_000])(
    'for %i ms calls what fell due, once, and nothing else',
    (stalledMs) => {
      const wheel = new TimerWheel();
      const called: number[] = [];
      const delays = [1, 90, 4_900, 10_900, 59_000, 70_000, 80_000];
      for (const delay of delays) wheel.schedule(delay, () => called.push(delay));
      stall(stalledMs);
      vi.advanceTimersByTime(40);
      // In which order is not promised after more than a whole turn.
      expect([...called].sort((a, b) => a - b)).toEqual(delays.filter((delay) => delay <= stalledMs));
      vi.advanceTimersByTime(90_000);
      expect([...called].sort((a, b) => a - b)).toEqual(delays);
    },
  );
});

describe('the interval behind the wheel', () => {
  it('runs only while something is scheduled', () => {
    const wheel = new TimerWheel();
    expect(vi.getTimerCount()).toBe(0);
    const timer = wheel.schedule(1_000, () => {});
    wheel.schedule(30, () => {});
    expect(vi.getTimerCount()).toBe(1);
    vi.advanceTimersByTime(500);
    expect(vi.getTimerCount()).toBe(1);
    wheel.cancel(timer);
    vi.advanceTimersByTime(40);
    expect(vi.getTimerCount()).toBe(0);
    wheel.schedule(1, () => {});
    expect(vi.getTimerCount()).toBe(1);
  });
});
