import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { openLoopSchedule } from './schedule.ts';

describe('an open-loop schedule', () => {
  it('holds the rate after the ramp, and sends half as much during it', () => {
    const schedule = openLoopSchedule({ rate: 1000, seconds: 10, rampSeconds: 2 });
    expect(schedule.total).toBe(9000);
    expect(schedule.dueAtMs(1000)).toBeCloseTo(2000);
    expect(schedule.dueAtMs(2000) - schedule.dueAtMs(1000)).toBeCloseTo(1000);
  });

  it('works without a ramp, and with a run that is all ramp', () => {
    expect(openLoopSchedule({ rate: 100, seconds: 1, rampSeconds: 0 }).dueAtMs(50)).toBeCloseTo(500);
    expect(openLoopSchedule({ rate: 100, seconds: 1, rampSeconds: 3 }).total).toBe(50);
  });

  it('calls a request due exactly from its moment on', () => {
    const runs = fc.record({
      rate: fc.integer({ min: 1, max: 20_000 }),
      seconds: fc.integer({ min: 1, max: 60 }),
      rampSeconds: fc.integer({ min: 0, max: 5 }),
      part: fc.double({ min: 0, max: 1, noNaN: true }),
    });
    fc.assert(
      fc.property(runs, ({ part, ...run }) => {
        const schedule = openLoopSchedule(run);
        const n = Math.floor(part * (schedule.total - 1));
        if (n < 0) return;
        const due = schedule.dueAtMs(n);
        const later = schedule.dueAtMs(n + 1);
        // A thousandth of a gap each way, for the rounding of square roots.
        const slack = (later - due) / 1000;
        expect(schedule.dueBy(due + slack)).toBe(n + 1);
        expect(schedule.dueBy(due - slack)).toBe(n);
        expect(later).toBeGreaterThan(due);
      }),
    );
  });
});
