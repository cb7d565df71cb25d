/** The windows over which statistics are given, in milliseconds. */
export const STATS_WINDOWS = { '1h': 3_600_000, '24h': 86_400_000, '7d': 604_800_000 } as const;

export type StatsWindow = keyof typeof STATS_WINDOWS;

/** The share of deliveries that succeeded among those that have ended; null while none has. */
export function successRate({ succeeded, dead }: { succeeded: number; dead: number }): number | null {
  return succeeded + dead === 0 ? null : succeeded / (succeeded + dead);
}
