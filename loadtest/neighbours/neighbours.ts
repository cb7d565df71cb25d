import type { LoadTestOptions, PrivateTarget } from '../options.ts';
import { describeMachine, type Machine, printableOptions } from '../report.ts';
import type { Teardown } from '../teardown.ts';
import { type HalfContext, runHalf } from './half.ts';
import { type Judgement, judge, type Pair } from './judge.ts';
import type { NeighbourOptions } from './options.ts';
import { type Plan, planOf } from './plans.ts';

export interface NeighboursReport {
  mode: 'neighbours';
  startedAt: string;
  options: object;
  machine: Machine;
  scenarios: ScenarioReport[];
  ok: boolean;
}

export interface ScenarioReport {
  plan: Plan;
  pairs: Pair[];
  judgement: Judgement;
}

export interface NeighboursRun {
  options: LoadTestOptions & { target: PrivateTarget };
  neighbours: NeighbourOptions;
  teardown: Teardown;
  say(line: string): void;
}

/** For each scenario runs pairs of halves, without and with the bad one, and holds them against the bounds. */
export async function neighbours(run: NeighboursRun): Promise<NeighboursReport> {
  const startedAt = new Date().toISOString();
  const scenarios: ScenarioReport[] = [];
  for (const scenario of run.neighbours.scenarios) {
    scenarios.push(await runScenario(run, planOf(scenario, run.neighbours)));
  }
  return {
    mode: 'neighbours',
    startedAt,
    options: printableOptions(run.options),
    machine: await describeMachine(null),
    scenarios,
    ok: scenarios.every(({ judgement }) => judgement.failures.length === 0),
  };
}

async function runScenario(run: NeighboursRun, plan: Plan): Promise<ScenarioReport> {
  const context: HalfContext = { ...run, plan };
  const pairs: Pair[] = [];
  for (let pair = 1; pair <= run.neighbours.pairs; pair += 1) {
    const without = await runHalf(context, 'without', pair);
    pairs.push({ without, with: await runHalf(context, 'with', pair) });
  }
  return { plan, pairs, judgement: judge(plan, pairs, run.neighbours) };
}
