/**
 * When each request of an open-loop run ought to leave. The rate climbs in a straight line from nothing over the ramp, since
 * cold processes behind a sudden full rate build a queue whose latency says nothing about the rate.
 */
export interface Schedule {
  /** How many requests the run has. */
  readonly total: number;
  /** Milliseconds after the start at which request `n` (from 0) ought to leave. */
  dueAtMs(n: number): number;
  /** How many requests ought to have left by then. */
  dueBy(elapsedMs: number): number;
}

/** `seconds` counts the ramp in. */
export function openLoopSchedule(run: { rate: number; seconds: number; rampSeconds: number }): Schedule {
  const perMs = run.rate / 1000;
  const rampMs = Math.min(run.rampSeconds, run.seconds) * 1000;
  const inRamp = (perMs * rampMs) / 2;
  const total = Math.floor(inRamp + perMs * (run.seconds * 1000 - rampMs));
  const sentBy = (elapsedMs: number) =>
    elapsedMs < rampMs
      ? (perMs * elapsedMs * elapsedMs) / (2 * rampMs)
      : inRamp + perMs * (elapsedMs - rampMs);
  return {
    total,
    dueAtMs: (n) => (n < inRamp ? Math.sqrt((2 * n * rampMs) / perMs) : rampMs + (n - inRamp) / perMs),
    // Request n leaves at the moment at which n requests ought to have left before it, so one more than that are due.
    dueBy: (elapsedMs) => (elapsedMs < 0 ? 0 : Math.min(total, Math.floor(sentBy(elapsedMs)) + 1)),
  };
}
