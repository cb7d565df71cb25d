import { existsSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { cpuBetween, parseStat, sampleCpu } from './cpu.ts';

describe('CPU accounting', () => {
  it('reads a process whose name holds spaces and parentheses', () => {
    const line = '77 (a (b) c) S 12 77 77 0 -1 4194560 1 2 3 4 250 50 20 5 20 0 11 0 999 1 2';
    expect(parseStat(line)).toEqual({ parent: 12, own: 300, deadChildren: 25 });
  });

  it('divides what was used among the roles and leaves the rest as noise', () => {
    const from = { atMs: 1000, used: { api: 100, postgres: 500 }, machine: 10_000 };
    const to = { atMs: 3000, used: { api: 600, postgres: 1500 }, machine: 12_000 };
    expect(cpuBetween(from, to)).toEqual({
      seconds: 2,
      byRole: { api: 500, postgres: 1000 },
      busyCores: 1,
      otherCores: 0.25,
    });
    expect(cpuBetween(null, to)).toBeNull();
  });

  it.runIf(existsSync('/proc/stat'))('sees this very process work', () => {
    const groups = [{ role: 'me', pids: [process.pid], tree: true }];
    const from = sampleCpu(groups);
    const until = performance.now() + 200;
    while (performance.now() < until) Math.sqrt(performance.now());
    expect(cpuBetween(from, sampleCpu(groups))!.byRole.me).toBeGreaterThan(50);
  });
});
