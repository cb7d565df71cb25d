/** What a replay job does at once, and how long it waits between two steps. */
export interface ReplayPace {
  deliveries: number;
  everyMs: number;
}

export const REPLAY_RATE = { min: 0.01, max: 10_000, default: 100 } as const;

/** Four steps a second are smooth enough for any receiver. */
const STEPS_A_SECOND = 4;
/** A step locks its deliveries until it commits. */
const MAX_STEP = 500;

/** The pace of a job that may make so many deliveries pending a second. */
export function replayPace(ratePerSecond: number): ReplayPace {
  const deliveries = Math.min(MAX_STEP, Math.max(1, Math.floor(ratePerSecond / STEPS_A_SECOND)));
  return { deliveries, everyMs: (deliveries * 1_000) / ratePerSecond };
}
