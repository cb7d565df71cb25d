import { passes, round } from '../report.ts';
import { median } from './figures.ts';
import type { Half } from './half.ts';
import type { NeighbourOptions } from './options.ts';
import type { Plan } from './plans.ts';

export interface Pair {
  without: Half;
  with: Half;
}

export interface Judgement {
  /** Medians over the pairs, ms; NaN when nothing was measured. */
  p50: Compared;
  p99: Compared;
  /** Claims of deliveries claimed before, in the fullest second of any bad endpoint in any pair; null without one. */
  busiestSecond: number | null;
  allowedPerSecond: number;
  /** What passed no bound; empty when all is well. */
  failures: string[];
}

export interface Compared {
  without: number;
  with: number;
  /** The median of the pairs' ratios: the machine's speed changes between pairs more than within one. */
  ratio: number;
}

const P50_RATIO = 1.2;
const P99_RATIO = 2;

/** Holds the pairs of one scenario against the bounds that make neighbours strangers. */
export function judge(plan: Plan, pairs: readonly Pair[], options: Pick<NeighbourOptions, 'bad'>): Judgement {
  const p50 = compare(pairs, 'p50');
  const p99 = compare(pairs, 'p99');
  const allowedPerSecond = options.bad.ratePerSecond + options.bad.burst;
  const busiest = pairs.map((pair) => pair.with.bad?.busiest.usual ?? 0);
  const busiestSecond = plan.paths.length > 0 ? Math.max(...busiest) : null;
  const halves = pairs.flatMap((pair) => [pair.without, pair.with]);
  const lost = halves.filter(({ verdict }) => !passes(verdict)).length;
  const unfinished = pairs.filter((pair) => pair.with.bad?.backlog?.passed === false).length;
  const failures = [
    // NaN is no figure within a bound.
    p50.ratio <= P50_RATIO
      ? null
      : `p50 is ${p50.ratio} times that without the bad one, more than ${P50_RATIO}`,
    p99.ratio <= P99_RATIO
      ? null
      : `p99 is ${p99.ratio} times that without the bad one, more than ${P99_RATIO}`,
    busiestSecond === null || busiestSecond <= allowedPerSecond
      ? null
      : `${busiestSecond} claims in one second, more than rate + burst = ${allowedPerSecond}`,
    lost === 0 ? null : `healthy deliveries are missing in ${lost} of ${halves.length} runs`,
    unfinished === 0 ? null : `the first pass was not over in ${unfinished} of ${pairs.length} runs`,
    keyAccepted(pairs) ? null : 'the held key was not accepted once it was free',
  ].filter((failure) => failure !== null);
  return { p50, p99, busiestSecond, allowedPerSecond, failures };
}

function compare(pairs: readonly Pair[], percentile: 'p50' | 'p99'): Compared {
  const of = (half: Half) => half.latency?.[percentile] ?? Number.NaN;
  return {
    without: round(median(pairs.map((pair) => of(pair.without))), 2),
    with: round(median(pairs.map((pair) => of(pair.with))), 2),
    ratio: round(median(pairs.map((pair) => of(pair.with) / of(pair.without))), 3),
  };
}

function keyAccepted(pairs: readonly Pair[]): boolean {
  return pairs.every((pair) => pair.with.bad?.heldKey?.secondsToAccept !== null);
}
