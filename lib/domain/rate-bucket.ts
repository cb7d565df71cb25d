/** One question to the limiter of an endpoint's rate: for many deliveries at once. */
export interface RateAsk {
  endpointId: string;
  /** Version of the endpoint's slots that the asker knows. */
  slotVersion: number;
  ratePerSecond: number;
  burst: number;
  /** How many that have waited in a slot want to go now; they go first. */
  waited: number;
  /** How many that have not waited want to go now. */
  fresh: number;
  /** How many want only a slot. */
  slots: number;
  /** Spacing of the slots, ms. */
  slotEveryMs: number;
  /** Slots begin after this, ms: the rest of a cooldown or a pause; 0 without one. */
  slotsAfterMs: number;
  /** The longest wait for a token that is waited in the process, 0 to 1000 ms. */
  maxWaitMs: number;
}

export interface RateAnswer {
  /** Delays, ms, of the first `go.length` of waited and fresh, in that order: a token is taken for each. */
  go: number[];
  /** Distinct moments, ms from now, for the rest of waited and fresh, then for `slots`. */
  slots: number[];
  /** End of the slots given out, ms from now; 0 when none lies ahead. */
  horizonMs: number;
}

/** Keeps the rates of endpoints. Rejects only when it cannot learn which slots are given out. */
export interface RateLimiter {
  /** Answers in the order of the asks; several may be about one endpoint. */
  ask(asks: readonly RateAsk[]): Promise<RateAnswer[]>;
}
