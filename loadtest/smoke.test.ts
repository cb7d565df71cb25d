import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { projectRoot } from '../lib/local/home.ts';
import type { Report } from './report.ts';

const directory = mkdtempSync(join(tmpdir(), 'relay-smoke-'));
afterAll(() => rmSync(directory, { recursive: true }));

/** Runs the load test as people do, on a private fleet of real processes. */
async function loadTest(...args: string[]): Promise<{ code: number | null; output: string; report: Report }> {
  const json = join(directory, `${args[0]}.json`);
  const main = join(projectRoot(), 'dist', 'loadtest', 'main.js');
  const child = spawn(process.execPath, [main, ...args, '--json', json], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (chunk) => {
      output += String(chunk);
    });
  }
  const code = await new Promise<number | null>((resolve) => child.once('close', resolve));
  expect(code, output).toBe(0);
  return { code, output, report: JSON.parse(readFileSync(json, 'utf8')) as Report };
}

describe('the load test', () => {
  it('drains a backlog, each signature checked, and finds every delivery', { timeout: 120_000 }, async () => {
    const { report, output } = await loadTest('drain', '--events', '300', '--endpoints', '2', '--verify');
    expect(report.ok).toBe(true);
    expect(report.machine.postgres).toMatchObject({ fsync: 'on', synchronous_commit: 'on' });
    expect(report.verdict).toMatchObject({
      events: 300,
      expected: 600,
      delivered: 600,
      duplicated: 0,
      wrongFanOut: 0,
    });
    expect(output).toContain('OK: nothing that was accepted is missing.');
  });

  it('finds what ingest accepted in Postgres', { timeout: 120_000 }, async () => {
    const load = [
      '--rate',
      '100',
      '--seconds',
      '2',
      '--ramp',
      '1',
      '--warmup',
      '1',
      '--loop',
      'open',
      '--keyed',
    ];
    const { report } = await loadTest('ingest', ...load, '--connections', '8');
    expect(report.verdict).toMatchObject({ lookedForAt: 'postgres', events: 150, delivered: 150 });
    expect(report.phases[0]).toMatchObject({ offered: 100, answers: { 202: 150 } });
  });
});
