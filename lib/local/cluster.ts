import { spawnSync } from 'node:child_process';
import { chownSync, existsSync, mkdirSync, readFileSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { rememberedPassword } from './home.ts';
import type { PostgresBinaries } from './postgres-binaries.ts';
import type { RunAs } from './run-as.ts';
import type { LogLine } from './unavailable.ts';

export const CLUSTER_USER = 'relay';
export const CLUSTER_DATABASE = 'relay';

/** The major version that made the data in this home; null when there is none yet. */
export function clusterMajor(home: string): number | null {
  const file = join(home, 'data', 'PG_VERSION');
  return existsSync(file) ? Number(readFileSync(file, 'utf8')) : null;
}

export interface ClusterOptions {
  durable: boolean;
  log: LogLine;
}

/**
 * Makes the data directory when there is none, and returns the password. Built aside and renamed when
 * whole, so that a start that is killed half way, or two at once, never leave half a cluster.
 */
export function ensureCluster(
  binaries: PostgresBinaries,
  home: string,
  runAs: RunAs,
  options: ClusterOptions,
): string {
  const password = rememberedPassword(home);
  if (clusterMajor(home) !== null) return password;
  options.log(`creating a Postgres ${binaries.major} data directory`);
  if (runAs.owner) chownSync(join(home, 'password'), runAs.owner.uid, runAs.owner.gid);
  const draft = join(home, `draft-${process.pid}`);
  rmSync(draft, { recursive: true, force: true });
  mkdirSync(draft, { mode: 0o700 });
  if (runAs.owner) chownSync(draft, runAs.owner.uid, runAs.owner.gid);
  try {
    run(runAs, [binaries.initdb, ...initdbArguments(binaries, home, draft, options)]);
    // Single-user mode is the one way to make a database without a client and a running server.
    run(
      runAs,
      [binaries.postgres, '--single', '-D', draft, 'postgres'],
      `create database ${CLUSTER_DATABASE}\n`,
    );
    publish(draft, join(home, 'data'));
  } finally {
    rmSync(draft, { recursive: true, force: true });
  }
  return password;
}

function initdbArguments(
  binaries: PostgresBinaries,
  home: string,
  draft: string,
  options: ClusterOptions,
): string[] {
  // The built-in locale sorts by code point everywhere; before 17 the C library's C locale does the same.
  const locale = binaries.major >= 17 ? ['--locale-provider=builtin', '--builtin-locale=C.UTF-8'] : [];
  return [
    ...['-D', draft, '-U', CLUSTER_USER, `--pwfile=${join(home, 'password')}`],
    ...['--auth=scram-sha-256', '--encoding=UTF8', '--locale=C', ...locale, '--no-instructions'],
    ...(options.durable ? [] : ['--no-sync']),
  ];
}

function run(runAs: RunAs, argv: readonly string[], input = ''): void {
  const [command = '', ...args] = [...runAs.wrapper, 'env', 'LC_ALL=C', ...argv];
  const answer = spawnSync(command, args, { input, encoding: 'utf8', cwd: '/' });
  if (answer.status === 0) return;
  throw new Error(`${argv[0]} failed: ${answer.error?.message ?? answer.stderr.trim()}`);
}

function publish(draft: string, data: string): void {
  try {
    renameSync(draft, data);
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code;
    if (code !== 'ENOTEMPTY' && code !== 'EEXIST') throw error; // another start was first: its cluster serves
  }
}
