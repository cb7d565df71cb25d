import { readdirSync, readFileSync } from 'node:fs';

/** CPU time in milliseconds, user and system, since each process began; null where there is no /proc. */
export interface CpuSample {
  atMs: number;
  /** By role. */
  used: Record<string, number>;
  /** All that the machine's processors did. */
  machine: number;
}

/** `tree` adds the children too, living and dead: a Postgres is one process for each connection. */
export interface ProcessGroup {
  role: string;
  pids: readonly number[];
  tree?: boolean;
}

export interface CpuUse {
  seconds: number;
  /** CPU milliseconds by role. */
  byRole: Record<string, number>;
  /** Processors kept busy on average, by everything. */
  busyCores: number;
  /** Of them, by processes that are not in any role: the noise of the machine. */
  otherCores: number;
}

/** The kernel counts in hundredths of a second for user space, on every Linux that Node runs on. */
const MS_PER_TICK = 10;

export function sampleCpu(groups: readonly ProcessGroup[]): CpuSample | null {
  const machine = machineTicks();
  if (machine === null) return null;
  const used: Record<string, number> = {};
  for (const { role, pids, tree } of groups) {
    const ticks = pids.reduce((sum, pid) => sum + (tree ? treeTicks(pid) : (stat(pid)?.own ?? 0)), 0);
    used[role] = (used[role] ?? 0) + ticks * MS_PER_TICK;
  }
  return { atMs: performance.now(), used, machine: machine * MS_PER_TICK };
}

/** What was used between two samples of the same groups. */
export function cpuBetween(from: CpuSample | null, to: CpuSample | null): CpuUse | null {
  if (!from || !to) return null;
  const elapsedMs = to.atMs - from.atMs;
  const byRole: Record<string, number> = {};
  for (const [role, used] of Object.entries(to.used)) byRole[role] = used - (from.used[role] ?? 0);
  const ours = Object.values(byRole).reduce((sum, used) => sum + used, 0);
  const all = to.machine - from.machine;
  return {
    seconds: elapsedMs / 1000,
    byRole,
    busyCores: all / elapsedMs,
    otherCores: Math.max(0, all - ours) / elapsedMs,
  };
}

export interface ProcessTicks {
  parent: number;
  own: number;
  /** Of children that ended and were waited for. */
  deadChildren: number;
}

/** Reads one line of /proc/<pid>/stat. The name in parentheses may hold anything, spaces and parentheses too. */
export function parseStat(line: string): ProcessTicks {
  const fields = line.slice(line.lastIndexOf(')') + 2).split(' ');
  const field = (number: number) => Number(fields[number - 3]);
  return { parent: field(4), own: field(14) + field(15), deadChildren: field(16) + field(17) };
}

function treeTicks(root: number): number {
  const ticks = stat(root);
  if (!ticks) return 0;
  let sum = ticks.own + ticks.deadChildren;
  for (const name of readdirSync('/proc')) {
    if (!/^\d+$/.test(name)) continue;
    const child = stat(Number(name));
    if (child?.parent === root) sum += child.own;
  }
  return sum;
}

/** Null for a process that is gone: its last moments are lost to us. */
function stat(pid: number): ProcessTicks | null {
  try {
    return parseStat(readFileSync(`/proc/${pid}/stat`, 'latin1'));
  } catch {
    return null;
  }
}

/** user, nice, system, irq, softirq and steal; not idle, not waiting for disks. */
function machineTicks(): number | null {
  try {
    const line = readFileSync('/proc/stat', 'latin1').split('\n')[0]!;
    const fields = line.trim().split(/\s+/).slice(1).map(Number);
    return [0, 1, 2, 5, 6, 7].reduce((sum, n) => sum + (fields[n] ?? 0), 0);
  } catch {
    return null;
  }
}
