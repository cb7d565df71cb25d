/**
 * What one endpoint may put on the express lane through one of several processes: a token bucket at the endpoint's own rate and burst, of
 * which each process has an equal share. It decides order alone, so it may be wrong for a while.
 */
export interface ExpressAllowance {
  /** The whole endpoint's, not the share's. */
  ratePerSecond: number;
  burst: number;
  /** At `atMs`. Below 0 it is owed: a batch is counted after its commit, whatever its size. */
  tokens: number;
  atMs: number;
}

/** The tokens that a process has at `nowMs`, when `sharers` processes share. A share of a small burst is one token at least. */
export function tokensAt(
  { ratePerSecond, burst, tokens, atMs }: ExpressAllowance,
  nowMs: number,
  sharers: number,
): number {
  const refilled = tokens + (Math.max(0, nowMs - atMs) * ratePerSecond) / (1_000 * sharers);
  return Math.min(shareOfBurst(burst, sharers), refilled);
}

/** A share of an endpoint's burst, one token at least. */
export function shareOfBurst(burst: number, sharers: number): number {
  return Math.max(1, burst / sharers);
}
