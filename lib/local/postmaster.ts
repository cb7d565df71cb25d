import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { LocalServiceUnavailable, type LogLine } from './unavailable.ts';

const OWNER_WAIT_MS = 2_000;
// Larger than any process id of Linux or macOS, so surely nobody.
const NO_PROCESS = 2_147_483_646;

/** What a running postmaster says about itself in the data directory; null when there is none. */
export function readPostmaster(data: string): { pid: number; ready: boolean } | null {
  const lines = readText(join(data, 'postmaster.pid'))?.split('\n');
  const pid = Number(lines?.[0]);
  return lines && pid > 0 ? { pid, ready: lines[7]?.trim() === 'ready' } : null;
}

/** Records that the postmaster is ours, so that a later process can tell a left-over from a live one. */
export function claimPostmaster(home: string, postmaster: number): void {
  const owner = { postmaster, pid: process.pid, started: startOf(process.pid) };
  writeFileSync(join(home, 'owner'), JSON.stringify(owner));
}

/**
 * Makes room for a new postmaster on this data: a pid file whose process is gone or is somebody else by now
 * must not stop the start, and a postmaster that outlived its parent is stopped.
 * @throws LocalServiceUnavailable when the process that started it is alive
 */
export async function clearPostmaster(home: string, log: LogLine): Promise<void> {
  const data = join(home, 'data');
  const running = readPostmaster(data);
  if (!running) return;
  if (!isPostmasterOf(running.pid, data)) return disownPidFile(data);
  const owner = await ownerOf(home, running.pid);
  if (owner !== null && startOf(owner.pid) === owner.started) {
    throw new LocalServiceUnavailable(
      'postgres',
      `the Postgres in ${home} is in use by process ${owner.pid}: stop that one first, or choose another ` +
        'data directory (RELAY_DATA_DIR)',
    );
  }
  log(`stopping the Postgres that an earlier run left behind (process ${running.pid})`);
  await end(running.pid, data);
}

/**
 * After a reboot or in a new container the recorded pid may belong to any other process, and Postgres would
 * refuse to start. Only the pid is replaced: the shared memory key in the same file lets Postgres see
 * back ends of a killed postmaster that are still about to end.
 */
function disownPidFile(data: string): void {
  const file = join(data, 'postmaster.pid');
  const text = readText(file);
  if (text !== null) writeFileSync(file, text.replace(/^-?\d+/, String(NO_PROCESS)));
}

interface Owner {
  postmaster: number;
  pid: number;
  started: string;
}

/** The record is written once the postmaster is ready, so a starting one has none for a moment. */
async function ownerOf(home: string, postmaster: number): Promise<Owner | null> {
  const deadline = Date.now() + OWNER_WAIT_MS;
  while (Date.now() < deadline && isPostmasterOf(postmaster, join(home, 'data'))) {
    const owner: Owner | null = JSON.parse(readText(join(home, 'owner')) || 'null');
    if (owner?.postmaster === postmaster) return owner;
    await sleep(50);
  }
  return null;
}

async function end(pid: number, data: string): Promise<void> {
  for (const step of [
    { signal: 'SIGINT', waitMs: 20_000 },
    { signal: 'SIGQUIT', waitMs: 10_000 },
  ] as const) {
    try {
      process.kill(pid, step.signal);
    } catch {
      return; // it ended meanwhile
    }
    const deadline = Date.now() + step.waitMs;
    while (Date.now() < deadline) {
      if (!isPostmasterOf(pid, data)) return;
      await sleep(20);
    }
  }
  throw new LocalServiceUnavailable('postgres', `the Postgres left behind (process ${pid}) does not stop`);
}

function isPostmasterOf(pid: number, data: string): boolean {
  return commandOf(pid).includes(data);
}

function commandOf(pid: number): string {
  if (process.platform === 'linux') return readText(`/proc/${pid}/cmdline`)?.replaceAll('\0', ' ') ?? '';
  return spawnSync('ps', ['-o', 'command=', '-p', String(pid)], { encoding: 'utf8' }).stdout ?? '';
}

/** When a process started, in whatever unit the system has: with the pid it names one process for good. */
function startOf(pid: number): string {
  if (process.platform === 'linux') {
    const afterName = readText(`/proc/${pid}/stat`)?.split(') ').at(-1);
    return afterName?.split(' ')[19] ?? 'gone';
  }
  const answer = spawnSync('ps', ['-o', 'lstart=', '-p', String(pid)], { encoding: 'utf8' });
  return answer.stdout?.trim() || 'gone';
}

function readText(file: string): string | null {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return null;
  }
}
