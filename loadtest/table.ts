import type { LatencySummary } from './latency.ts';
import type { Phase, PhaseCpu, PhasePostgres, Report, Verdict } from './report.ts';

const STATEMENTS_SHOWN = 12;

/** The report as people read it on a terminal. */
export function printReport(report: Report): string {
  const { machine } = report;
  const postgres = machine.postgres
    ? `Postgres ${machine.postgres.version} (fsync ${machine.postgres.fsync}, synchronous_commit ${machine.postgres.synchronous_commit})`
    : 'Postgres not looked into';
  return [
    '',
    `${report.mode} on ${machine.cpus} × ${machine.cpu}, ${machine.memoryGiB} GiB, Node ${machine.node}, ${postgres}`,
    ...report.phases.flatMap(phaseLines),
    '',
    ...verdictLines(report.verdict),
    report.ok
      ? 'OK: nothing that was accepted is missing.'
      : 'FAILED: deliveries of accepted events are missing.',
    '',
  ].join('\n');
}

function phaseLines(phase: Phase): string[] {
  const rates = [
    phase.offered === null ? null : `offered ${count(phase.offered)}/s`,
    phase.acceptedPerSecond === null ? null : `accepted ${count(phase.acceptedPerSecond)}/s`,
    phase.deliveredPerSecond === null ? null : `delivered ${count(phase.deliveredPerSecond)}/s`,
    `over ${phase.seconds} s`,
  ].filter((part) => part !== null);
  return [
    '',
    `${phase.name}: ${rates.join(', ')}`,
    `  answers           ${Object.entries(phase.answers)
      .map(([name, n]) => `${name}: ${count(n)}`)
      .join(', ')}`,
    ...latencyLines(phase.latency),
    ...(phase.cpu ? cpuLines(phase.cpu) : []),
    ...(phase.postgres ? postgresLines(phase.postgres, phase.cpu?.per ?? 'deliveries') : []),
    ...phase.notes.map((note) => `  ${note}`),
  ];
}

function latencyLines(latency: Record<string, LatencySummary | null>): string[] {
  const measured = Object.entries(latency).filter(
    (entry): entry is [string, LatencySummary] => entry[1] !== null,
  );
  if (measured.length === 0) return [];
  const row = (name: string, cells: string[]) =>
    `  ${name.padEnd(26)}${cells.map((cell) => cell.padStart(10)).join('')}`;
  return [
    row('latency, ms', ['p50', 'p90', 'p99', 'p99.9', 'max', 'count']),
    ...measured.map(([name, { p50, p90, p99, p999, max, count: n }]) =>
      row(name, [...[p50, p90, p99, p999, max].map(String), count(n)]),
    ),
  ];
}

function cpuLines(cpu: PhaseCpu): string[] {
  const roles = Object.entries(cpu.msPerThousand);
  const sum = (names: string[]) =>
    roles.filter(([role]) => names.includes(role)).reduce((total, [, ms]) => total + ms, 0);
  return [
    `  CPU ms per 1,000 ${cpu.per} (over ${count(cpu.items)} in ${cpu.seconds} s):`,
    `    ${roles.map(([role, ms]) => `${role} ${ms}`).join(', ')}`,
    `    Relay in all (api, dispatcher, reconciler, postgres, redis) ${sum(['api', 'dispatcher', 'reconciler', 'postgres', 'redis']).toFixed(1)}`,
    `    cores busy ${cpu.busyCores}, of them by others on this machine ${cpu.otherCores}`,
  ];
}

function postgresLines(postgres: PhasePostgres, per: string): string[] {
  const one = per === 'events' ? 'event' : 'delivery';
  return [
    `  Postgres          ${count(postgres.walBytesPerItem)} bytes of WAL and ${postgres.commitsPerItem} commits per ${one}`,
    ...(postgres.statements ?? [])
      .slice(0, STATEMENTS_SHOWN)
      .map(
        ({ calls, rows, totalMs, text }) =>
          `    ${count(totalMs).padStart(8)} ms ${count(calls).padStart(9)} calls ${count(rows).padStart(10)} rows  ${text}`,
      ),
  ];
}

function verdictLines(verdict: Verdict): string[] {
  const { missing } = verdict;
  const found = { receiver: 'arrived', postgres: 'found in Postgres', nowhere: 'not looked for' }[
    verdict.lookedForAt
  ];
  return [
    `accepted ${count(verdict.events)} events = ${count(verdict.expected)} deliveries; ${found} ${count(verdict.delivered)}`,
    `lost ${count(missing.absent)}, still pending ${count(missing.pending)}, dead ${count(missing.dead)}, succeeded but unseen ${count(missing.succeeded)}`,
    `duplicated ${count(verdict.duplicated)} (${count(verdict.duplicateRequests)} extra requests), arrived without a 202 ${count(verdict.unaccepted)}, wrong fan-out ${count(verdict.wrongFanOut)}`,
  ];
}

function count(value: number): string {
  return value.toLocaleString('en-US');
}
