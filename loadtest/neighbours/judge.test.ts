import { describe, expect, it } from 'vitest';
import type { LatencySummary } from '../latency.ts';
import type { Verdict } from '../report.ts';
import type { BadFigures, Half } from './half.ts';
import { judge, type Pair } from './judge.ts';
import { planOf } from './plans.ts';

const bad = { ratePerSecond: 10, burst: 20, maxInFlight: 8, batch: 100 };
const dead = planOf('dead', { backlog: null, bad });

const verdict = (missing: number): Verdict => ({
  lookedForAt: 'receiver',
  events: 10,
  wrongFanOut: 0,
  expected: 10,
  delivered: 10 - missing,
  missing: { pending: missing, dead: 0, succeeded: 0, absent: 0 },
  duplicated: 0,
  duplicateRequests: 0,
  unaccepted: 0,
});

function half(p50: number, p99: number, over: Partial<Half> = {}): Half {
  const latency: LatencySummary = { count: 10, mean: p50, p50, p90: p99, p99, p999: p99, max: p99 };
  return {
    seconds: 20,
    latency,
    answers: { 202: 10 },
    verdict: verdict(0),
    cpu: null,
    postgres: null,
    redisBytes: null,
    stops: [],
    bad: null,
    ...over,
  };
}

function figures(over: Partial<BadFigures> = {}): BadFigures {
  return {
    backlog: null,
    meanwhile: { accepting: null, firstPass: null },
    busiest: { usual: 12, afterStop: null, aside: null },
    laterClaimsBySecond: [],
    perSecond: { firstClaims: 0, laterClaims: 10, announced: 10, delivered: 0 },
    writtenPerSecond: {},
    fed: {},
    heldKey: null,
    recovery: null,
    ...over,
  };
}

const pair = (without: Half, beside: Half): Pair => ({
  without,
  with: { ...beside, bad: beside.bad ?? figures() },
});
const fine = pair(half(10, 40), half(11, 60));
const beside = (over: Partial<BadFigures>): Pair => ({
  without: half(10, 40),
  with: half(10, 40, { bad: figures(over) }),
});

describe('neighbours', () => {
  it('are strangers within all bounds', () => {
    expect(judge(dead, [fine, fine, fine], { bad })).toEqual({
      p50: { without: 10, with: 11, ratio: 1.1 },
      p99: { without: 40, with: 60, ratio: 1.5 },
      busiestSecond: 12,
      allowedPerSecond: 30,
      failures: [],
    });
  });

  it('are judged by the median of the ratios, so that one odd pair of three decides nothing', () => {
    const odd = pair(half(10, 40), half(90, 900));
    expect(judge(dead, [fine, odd, fine], { bad }).failures).toEqual([]);
    expect(judge(dead, [odd, odd, fine], { bad }).failures).toHaveLength(2);
  });

  it.each([
    ['a p50 over 1.2 times', pair(half(10, 40), half(12.1, 40)), /p50 is 1.21 times/],
    ['a p99 over twice', pair(half(10, 40), half(10, 81)), /p99 is 2.025 times/],
    ['no latency at all', pair(half(10, 40), half(10, 40, { latency: null })), /p50 is NaN/],
    ['too many claims in a second', beside({ busiest: { usual: 31, afterStop: 0, aside: 0 } }), /31 claims/],
    ['a missing delivery', pair(half(10, 40, { verdict: verdict(1) }), half(10, 40)), /in 1 of 2 runs/],
    [
      'a first pass without end',
      beside({
        backlog: {
          accepted: 5,
          accepting: { fromMs: 0, toMs: 1 },
          firstPass: { fromMs: 1, toMs: 2 },
          passed: false,
        },
      }),
      /first pass was not over/,
    ],
    [
      'a key that stays held',
      beside({ heldKey: { answers: { 409: 3 }, secondsToAccept: null } }),
      /held key was not accepted/,
    ],
  ])('are not with %s', (_, pair, failure) => {
    expect(judge(dead, [pair], { bad }).failures.join()).toMatch(failure);
  });

  it('bound no claims where there is no bad endpoint', () => {
    const heldKey = planOf('held-key', { backlog: null, bad });
    expect(judge(heldKey, [fine], { bad }).busiestSecond).toBeNull();
  });
});
