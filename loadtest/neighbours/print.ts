import type { LatencySummary } from '../latency.ts';
import { round } from '../report.ts';
import { median } from './figures.ts';
import type { BadFigures, Half } from './half.ts';
import type { Compared, Judgement, Pair } from './judge.ts';
import type { NeighboursReport, ScenarioReport } from './neighbours.ts';
import type { Plan } from './plans.ts';
import { statementRates } from './statement-rates.ts';

/** The report as people read it on a terminal. */
export function printNeighbours(report: NeighboursReport): string {
  const { machine } = report;
  return [
    '',
    `neighbours on ${machine.cpus} × ${machine.cpu}, ${machine.memoryGiB} GiB, Node ${machine.node}`,
    ...report.scenarios.flatMap(scenarioLines),
    '',
    report.ok ? 'OK: the neighbours are strangers.' : 'FAILED: see above.',
    '',
  ].join('\n');
}

function scenarioLines({ plan, pairs, judgement }: ScenarioReport): string[] {
  const bads = pairs.flatMap((pair) => (pair.with.bad ? [pair.with.bad] : []));
  return [
    '',
    `${plan.scenario}: ${plan.title}`,
    `  medians of ${pairs.length} pairs, healthy      without      with     ratio`,
    comparedLine('p50', judgement.p50),
    comparedLine('p99', judgement.p99),
    `  each pair, p50 / p99 ms: ${pairs.map(pairText).join('; ')}`,
    ...(plan.paths.length > 0 ? badLines(plan, bads, judgement) : []),
    ...bads.slice(0, 1).flatMap(stopLines),
    ...costLines(pairs),
    ...bads.flatMap(heldKeyLines),
    ...recoveryLines(bads),
    judgement.failures.length === 0 ? '  OK' : `  FAILED: ${judgement.failures.join('; ')}`,
  ];
}

function comparedLine(name: string, compared: Compared): string {
  const cells = [compared.without, compared.with, compared.ratio].map((n) => String(n).padStart(10));
  return `    ${name}, ms`.padEnd(29) + cells.join('');
}

function pairText(pair: Pair): string {
  const of = ({ latency }: Half) => (latency ? `${latency.p50} / ${latency.p99}` : 'nothing');
  return `${of(pair.without)} → ${of(pair.with)}`;
}

function badLines(plan: Plan, bads: readonly BadFigures[], judgement: Judgement): string[] {
  const middle = (of: (bad: BadFigures) => number) => round(median(bads.map(of)), 2);
  const classes = [...new Set(bads.flatMap((bad) => Object.keys(bad.writtenPerSecond)))];
  const written = classes.map((name) => `${name} ${middle((bad) => bad.writtenPerSecond[name] ?? 0)}`);
  return [
    `  the bad one: at most ${judgement.busiestSecond} later claims in any second (${judgement.allowedPerSecond} allowed)`,
    `    a second: first claims ${middle((bad) => bad.perSecond.firstClaims)}, later claims ${middle((bad) => bad.perSecond.laterClaims)}, ` +
      `announced ${middle((bad) => bad.perSecond.announced)}, delivered ${middle((bad) => bad.perSecond.delivered)}`,
    `    attempt rows a second: ${written.length > 0 ? written.join(', ') : 'none'}`,
    ...(plan.backlog > 0 ? bads.flatMap(backlogLines) : []),
  ];
}

function backlogLines({ backlog, meanwhile }: BadFigures): string[] {
  if (!backlog) return [];
  const seconds = ({ fromMs, toMs }: { fromMs: number; toMs: number }) => round((toMs - fromMs) / 1000, 1);
  const healthy = (latency: LatencySummary | null) =>
    latency ? `healthy p50 / p99 ${latency.p50} / ${latency.p99} ms` : 'nothing measured';
  return [
    `    backlog of ${backlog.accepted.toLocaleString('en-US')} accepted in ${seconds(backlog.accepting)} s (${healthy(meanwhile.accepting)}), ` +
      `first pass ${backlog.passed ? 'over' : 'NOT over'} after ${seconds(backlog.firstPass)} s more (${healthy(meanwhile.firstPass)})`,
  ];
}

function stopLines({ busiest }: BadFigures): string[] {
  if (busiest.afterStop === null) return [];
  return [
    `    after the stop at most ${busiest.afterStop} later claims in any second, ${busiest.aside} in the stop and the second in which it ended (first pair)`,
  ];
}

function costLines(pairs: readonly Pair[]): string[] {
  return [
    ...bothSides(pairs, 'Redis MiB', (half) => (half.redisBytes === null ? null : half.redisBytes / 2 ** 20)),
    ...bothSides(pairs, 'cores busy', (half) => half.cpu?.busyCores ?? null),
    ...bothSides(pairs, 'of them by others on this machine', (half) => half.cpu?.otherCores ?? null),
    ...(['without', 'with'] as const).flatMap((side) => {
      const rates = statementRates(pairs.map((pair) => pair[side]));
      if (!rates) return [];
      const texts = Object.entries(rates).map(([name, perSecond]) => `${name} ${perSecond}`);
      return [`  statements a second, ${side}: ${texts.join(', ')}`];
    }),
  ];
}

/** Medians over the pairs; no line where one run has no such figure. */
function bothSides(pairs: readonly Pair[], name: string, of: (half: Half) => number | null): string[] {
  const sides = (['without', 'with'] as const).map((side) => {
    const figures = pairs.map((pair) => of(pair[side]) ?? Number.NaN);
    return { side, figure: round(median(figures), 2), known: !figures.some(Number.isNaN) };
  });
  if (!sides.every(({ known }) => known)) return [];
  return [`  ${name}: ${sides.map(({ side, figure }) => `${side} ${figure}`).join(', ')}`];
}

function heldKeyLines({ heldKey }: BadFigures): string[] {
  if (!heldKey) return [];
  const answers = Object.entries(heldKey.answers).map(([status, n]) => `${status}: ${n}`);
  const { secondsToAccept: after } = heldKey;
  return [
    `  posts with the held key: ${answers.join(', ')}; ` +
      (after === null ? 'never accepted' : `accepted ${round(after, 2)} s after the key was free`),
  ];
}

function recoveryLines(bads: readonly BadFigures[]): string[] {
  return bads.flatMap(({ recovery }) => {
    if (!recovery) return [];
    const cooldown = `${round(recovery.cooldownSeconds, 1)} s of its cooldown were left`;
    if (recovery.unclear) return [`  recovery: nothing to be seen, ${recovery.unclear}`];
    if (recovery.seconds === null) return [`  recovery: its own rate was NOT reached in time (${cooldown})`];
    return [`  recovery: its own rate ${round(recovery.seconds, 1)} s after it worked again (${cooldown})`];
  });
}
