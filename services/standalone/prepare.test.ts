import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import {
  appendFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { buildWhenStale, prepare } from './prepare.mjs';

// Stand-ins for npm and the compiler: each notes that it ran, and leaves what the real one leaves.
const COMPILER = `
  const { appendFileSync, existsSync, mkdirSync } = require('node:fs');
  appendFileSync('ran', 'tsc\\n');
  mkdirSync('dist', { recursive: true });
  setTimeout(() => process.exit(existsSync('broken') ? 2 : 0), 200);`;
const NPM = `
  const { appendFileSync, mkdirSync, writeFileSync } = require('node:fs');
  appendFileSync('ran', 'npm ' + process.argv.slice(2).join(' ') + '\\n');
  mkdirSync('node_modules/typescript/bin', { recursive: true });
  writeFileSync('node_modules/typescript/bin/tsc', ${JSON.stringify(COMPILER)});
  writeFileSync('node_modules/.package-lock.json', '{}');`;

const longAgo = new Date(Date.now() - 3_600_000);
let root: string;

beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'relay-prepare-'));
  write('package.json', '{}');
  write('package-lock.json', '{}');
  write('tsconfig.json', '{}');
  write('lib/one.ts', '');
  write('npm.cjs', NPM);
  write('node_modules/typescript/package.json', '{"type": "commonjs"}');
  write('node_modules/typescript/bin/tsc', COMPILER);
  for (const file of ['package-lock.json', 'tsconfig.json', 'lib/one.ts'])
    utimesSync(join(root, file), longAgo, longAgo);
  vi.stubEnv('npm_execpath', join(root, 'npm.cjs'));
  vi.spyOn(process.stderr, 'write').mockReturnValue(true); // "installing" among test results would mislead
});

afterEach(() => {
  vi.unstubAllEnvs();
  vi.restoreAllMocks();
  rmSync(root, { recursive: true, force: true });
});

describe('preparing a clone', () => {
  it('installs and builds the first time, and does neither the second time', async () => {
    expect(await prepare(root)).toEqual({ built: true });
    expect(ran()).toEqual(['npm ci --include=dev --no-audit --no-fund --loglevel=error', 'tsc']);
    await prepare(root);
    expect(ran()).toHaveLength(2);
  });

  it('installs again when the lock file is newer than what is installed', async () => {
    await prepare(root);
    utimesSync(join(root, 'node_modules/.package-lock.json'), new Date(0), new Date(0));
    await prepare(root);
    expect(ran().filter((line) => line.startsWith('npm'))).toHaveLength(2);
  });

  it('does each thing once when several processes start together', async () => {
    const module = new URL('./prepare.mjs', import.meta.url).href;
    const script = `await (await import(${JSON.stringify(module)})).prepare(${JSON.stringify(root)})`;
    const processes = Array.from({ length: 3 }, () =>
      spawn(process.execPath, ['--input-type=module', '-e', script]),
    );
    const codes = await Promise.all(processes.map(async (child) => (await once(child, 'exit'))[0]));
    expect(codes).toEqual([0, 0, 0]);
    expect(ran()).toHaveLength(2);
  });

  it('leaves a production image alone, which has no compiler', async () => {
    rmSync(join(root, 'node_modules/typescript'), { recursive: true });
    rmSync(join(root, 'lib'), { recursive: true });
    mkdirSync(join(root, 'dist'));
    expect(await prepare(root)).toEqual({ built: true });
    expect(ran()).toEqual([]);
  });

  it('installs, and does not run an old build, when an installation was broken off', async () => {
    mkdirSync(join(root, 'dist'));
    rmSync(join(root, 'node_modules/typescript'), { recursive: true });
    await prepare(root);
    expect(ran()).toEqual([expect.stringMatching(/^npm ci/), 'tsc']);
  });
});

describe('building', () => {
  it('happens again when a source is newer', async () => {
    await buildWhenStale(root);
    write('lib/deep/two.ts', '');
    // Saved in the millisecond in which a build begins, it would rightly be built twice.
    const aMomentAgo = new Date(Date.now() - 50);
    utimesSync(join(root, 'lib/deep/two.ts'), aMomentAgo, aMomentAgo);
    await buildWhenStale(root);
    await buildWhenStale(root);
    expect(ran()).toEqual(['tsc', 'tsc']);
  });

  it('reports errors each time until there are none', async () => {
    write('broken', '');
    expect(await buildWhenStale(root)).toBe(false);
    expect(await buildWhenStale(root)).toBe(false);
    rmSync(join(root, 'broken'));
    expect(await buildWhenStale(root)).toBe(true);
  });

  it('does not wait for a process that died while it built', async () => {
    const dead = spawnSync(process.execPath, ['-e', '']).pid;
    write('.relay/locks/build', String(dead));
    expect(await buildWhenStale(root)).toBe(true);
    expect(existsSync(join(root, '.relay/locks/build'))).toBe(false);
  });
});

describe('the bootstrap command', () => {
  it('names its jobs when it is given another', () => {
    const bootstrap = fileURLToPath(new URL('./bootstrap.mjs', import.meta.url));
    const answer = spawnSync(process.execPath, [bootstrap, 'sing'], { encoding: 'utf8' });
    expect(answer.status).toBe(1);
    expect(answer.stderr).toMatch(/^Usage: .*prepare \| standalone \| api \| dispatcher/);
  });
});

function write(path: string, text: string): void {
  mkdirSync(dirname(join(root, path)), { recursive: true });
  writeFileSync(join(root, path), text);
}

function ran(): string[] {
  appendFileSync(join(root, 'ran'), '');
  return readFileSync(join(root, 'ran'), 'utf8').split('\n').filter(Boolean);
}
