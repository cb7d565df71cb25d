import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { projectRoot } from '../../lib/local/home.ts';
import type { NeighboursReport, ScenarioReport } from './neighbours.ts';

const directory = mkdtempSync(join(tmpdir(), 'relay-neighbours-'));
afterAll(() => rmSync(directory, { recursive: true }));

const SMALL = [
  '--pairs',
  '1',
  '--seconds',
  '3',
  '--warmup',
  '1',
  '--ramp',
  '0',
  '--healthy-rate',
  '30',
  '--endpoints',
  '3',
  '--dispatchers',
  '1',
];

/** Runs one scenario as people do. What the ratios are is not asked here: other tests share the machine. */
async function neighbours(scenario: string, ...args: string[]): Promise<ScenarioReport & { output: string }> {
  const json = join(directory, `${scenario}.json`);
  const main = join(projectRoot(), 'dist', 'loadtest', 'main.js');
  const all = [main, 'neighbours', '--scenario', scenario, ...SMALL, ...args, '--json', json];
  const child = spawn(process.execPath, all, { stdio: ['ignore', 'pipe', 'pipe'] });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (chunk) => {
      output += String(chunk);
    });
  }
  const code = await new Promise<number | null>((resolve) => child.once('close', resolve));
  expect([0, 1], output).toContain(code);
  const report = JSON.parse(readFileSync(json, 'utf8')) as NeighboursReport;
  expect(report.ok).toBe(code === 0);
  return { ...report.scenarios[0]!, output };
}

describe('the load test of neighbours', () => {
  it('measures healthy endpoints without and with a dead one, whose backlog had its first pass', {
    timeout: 180_000,
  }, async () => {
    const stop = ['--change-leader-at', '1'];
    const { pairs, output } = await neighbours('dead', '--backlog', '40', '--recovery', '0', ...stop);
    const [pair] = pairs;
    for (const half of [pair!.without, pair!.with]) {
      expect(half.latency?.count).toBeGreaterThan(60);
      expect(half.verdict.delivered).toBe(half.verdict.expected);
      expect(half.redisBytes).toBeGreaterThan(100_000);
      expect(half.stops).toMatchObject([{ what: 'leader' }]);
    }
    expect(pair!.without.bad).toBeNull();
    expect(pair!.with.bad).toMatchObject({ backlog: { accepted: 40, passed: true }, recovery: null });
    expect(output).toContain('dead: one endpoint that refuses connections');
  });

  it('holds a key, tells how its posts were answered, and sees it accepted once it is free', {
    timeout: 180_000,
  }, async () => {
    const { pairs, judgement } = await neighbours('held-key');
    const heldKey = pairs[0]!.with.bad!.heldKey!;
    expect(heldKey.answers[409]).toBeGreaterThan(0);
    expect(heldKey.secondsToAccept).not.toBeNull();
    expect(judgement.busiestSecond).toBeNull();
  });
});
