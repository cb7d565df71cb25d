import type { Window } from '../audit.ts';
import type { Touch } from './touches.ts';

/** The middle value; the mean of the two middle ones of an even number. NaN of none. */
export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length / 2;
  if (sorted.length % 2 === 1) return sorted[Math.floor(middle)]!;
  return (sorted[middle - 1]! + sorted[middle]!) / 2;
}

/** How many moments (ms, in order) lie within the fullest second, wherever it begins. */
export function busiestSecond(moments: readonly number[]): number {
  let first = 0;
  let most = 0;
  for (const [last, moment] of moments.entries()) {
    while (moments[first]! <= moment - 1000) first += 1;
    most = Math.max(most, last - first + 1);
  }
  return most;
}

/** The fullest second of any one endpoint, of the claims of deliveries that had been claimed before. */
export function busiestEndpointSecond(touches: readonly Touch[]): number {
  const moments = new Map<string, number[]>();
  for (const { endpointId, kind, atMs, again } of touches) {
    if (kind !== 'claimed' || !again) continue;
    const own = moments.get(endpointId);
    if (own) own.push(atMs);
    else moments.set(endpointId, [atMs]);
  }
  return Math.max(0, ...[...moments.values()].map(busiestSecond));
}

/** Claims of deliveries that had been claimed before, in each second of a window, all bad endpoints together. */
export function laterClaimsBySecond(touches: readonly Touch[], { fromMs, toMs }: Window): number[] {
  const seconds = new Array<number>(Math.ceil((toMs - fromMs) / 1000)).fill(0);
  for (const { kind, atMs, again } of touches) {
    const second = Math.floor((atMs - fromMs) / 1000);
    if (kind === 'claimed' && again && seconds[second] !== undefined) seconds[second] += 1;
  }
  return seconds;
}

/** What a receiver had answered 2xx by a moment. */
export interface FlowSample {
  atMs: number;
  delivered: number;
}

const FLOW_WINDOW_MS = 5_000;
const FLOW_SHARE = 0.9;

/** From when on deliveries arrive at nine tenths of the rate, for five seconds on end; ms since 1970, null when they do not. */
export function flowsFrom(samples: readonly FlowSample[], ratePerSecond: number): number | null {
  for (const [n, from] of samples.entries()) {
    const to = samples.slice(n).find(({ atMs }) => atMs >= from.atMs + FLOW_WINDOW_MS);
    if (!to) return null;
    const rate = ((to.delivered - from.delivered) / (to.atMs - from.atMs)) * 1000;
    if (rate >= FLOW_SHARE * ratePerSecond) return from.atMs;
  }
  return null;
}

/** Deliveries that must be owed for a flow to be seen at all. */
export function neededForFlow(ratePerSecond: number): number {
  return Math.ceil((ratePerSecond * FLOW_WINDOW_MS) / 1000);
}
