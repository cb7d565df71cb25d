import { build, type Histogram } from 'hdr-histogram-js';

/** Milliseconds; null when nothing was measured. */
export interface LatencySummary {
  count: number;
  mean: number;
  p50: number;
  p90: number;
  p99: number;
  p999: number;
  max: number;
}

const HIGHEST_US = 3_600_000_000;

export interface Latencies {
  record(milliseconds: number): void;
  summary(): LatencySummary | null;
}

/** Three significant digits from a microsecond to an hour. */
export function createLatencies(): Latencies {
  const histogram: Histogram = build({
    lowestDiscernibleValue: 1,
    highestTrackableValue: HIGHEST_US,
    numberOfSignificantValueDigits: 3,
    useWebAssembly: false,
  });
  return {
    record: (milliseconds) =>
      histogram.recordValue(Math.min(HIGHEST_US, Math.max(0, Math.round(milliseconds * 1000)))),
    summary() {
      if (histogram.totalCount === 0) return null;
      const at = (percentile: number) => toMs(histogram.getValueAtPercentile(percentile));
      return {
        count: histogram.totalCount,
        mean: toMs(histogram.mean),
        p50: at(50),
        p90: at(90),
        p99: at(99),
        p999: at(99.9),
        max: toMs(histogram.maxValue),
      };
    },
  };
}

function toMs(microseconds: number): number {
  return Math.round(microseconds / 10) / 100;
}
