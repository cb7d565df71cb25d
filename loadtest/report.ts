import { writeFileSync } from 'node:fs';
import { cpus, totalmem } from 'node:os';
import type { Audit } from './audit.ts';
import type { CpuUse } from './cpu.ts';
import type { Database, DatabaseSettings, DatabaseTotals, StatementCost, Whereabouts } from './database.ts';
import type { LatencySummary } from './latency.ts';
import type { LoadTestOptions } from './options.ts';

/** One stretch of load under one set of figures. */
export interface Phase {
  name: string;
  /** Events a second that the generator was told to send; null where it sent as fast as it was answered. */
  offered: number | null;
  seconds: number;
  acceptedPerSecond: number | null;
  deliveredPerSecond: number | null;
  /** Answers of the API by status. */
  answers: Record<string, number>;
  latency: Record<string, LatencySummary | null>;
  cpu: PhaseCpu | null;
  postgres: PhasePostgres | null;
  notes: string[];
}

export interface PhaseCpu {
  seconds: number;
  /** What the milliseconds are divided by: deliveries, or events where nothing is delivered. */
  per: 'deliveries' | 'events';
  items: number;
  msPerThousand: Record<string, number>;
  busyCores: number;
  otherCores: number;
}

export interface PhasePostgres {
  walBytesPerItem: number;
  commitsPerItem: number;
  statements: StatementCost[] | null;
}

/** Every accepted event × endpoint, looked for by id. */
export interface Verdict extends Omit<Audit, 'missing' | 'latency' | 'within' | 'arrivals'> {
  /** Ingest delivers nothing: what it accepted is looked for as committed rows. */
  lookedForAt: 'receiver' | 'postgres' | 'nowhere';
  events: number;
  wrongFanOut: number;
  /** What did not arrive: by whereabouts in Postgres, or all of it as `absent` where Postgres cannot be asked. */
  missing: Whereabouts;
}

export interface Report {
  mode: 'drain' | 'sustained' | 'ingest';
  startedAt: string;
  options: object;
  machine: Machine;
  phases: Phase[];
  verdict: Verdict;
  ok: boolean;
}

export interface Machine {
  cpu: string;
  cpus: number;
  memoryGiB: number;
  node: string;
  postgres: DatabaseSettings | null;
}

export async function describeMachine(database: Database | null): Promise<Machine> {
  return {
    cpu: cpus()[0]?.model ?? 'unknown',
    cpus: cpus().length,
    memoryGiB: Math.round(totalmem() / 2 ** 30),
    node: process.version,
    postgres: (await database?.settings()) ?? null,
  };
}

/** Nothing that was accepted may be missing, whatever the reason, and no event may have missed an endpoint. */
export function passes(verdict: Verdict): boolean {
  return verdict.delivered === verdict.expected && verdict.wrongFanOut === 0;
}

export function phaseCpu(use: CpuUse | null, items: number, per: PhaseCpu['per']): PhaseCpu | null {
  if (!use || items === 0) return null;
  const msPerThousand: Record<string, number> = {};
  for (const [role, used] of Object.entries(use.byRole))
    msPerThousand[role] = round((used / items) * 1000, 1);
  return {
    seconds: round(use.seconds, 2),
    per,
    items,
    msPerThousand,
    busyCores: round(use.busyCores, 2),
    otherCores: round(use.otherCores, 2),
  };
}

export function phasePostgres(
  from: DatabaseTotals | null,
  to: DatabaseTotals | null,
  items: number,
  statements: StatementCost[] | null,
): PhasePostgres | null {
  if (!from || !to || items === 0) return null;
  return {
    walBytesPerItem: Math.round((to.walBytes - from.walBytes) / items),
    commitsPerItem: round((to.commits - from.commits) / items, 4),
    statements,
  };
}

/** Options as run, without the key that opens somebody's API or the password of a database. */
export function printableOptions(options: LoadTestOptions): object {
  const { target, json: _, ...load } = options;
  if (target.kind === 'private') return { ...load, target };
  return { ...load, target: { kind: target.kind, apis: target.apis, receiver: target.receiver } };
}

export function writeJson(path: string, report: object): void {
  writeFileSync(path, `${JSON.stringify(report, null, 2)}\n`);
}

export function round(value: number, digits: number): number {
  const factor = 10 ** digits;
  return Math.round(value * factor) / factor;
}
