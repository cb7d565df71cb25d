import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { type ChildServer, startChildServer } from '../lib/local/child-server.ts';
import { projectRoot } from '../lib/local/home.ts';

export type Role = 'api' | 'dispatcher' | 'reconciler' | 'receiver';

/** One of Relay's own services as a real process. */
export interface Service {
  readonly role: Role;
  readonly name: string;
  readonly url: string;
  readonly pid: number;
  /** Throws, with the end of its log, when the process is gone. */
  check(): void;
  stop(): Promise<void>;
}

const READY_WITHIN_MS = 30_000;
const LOG_TAIL_BYTES = 2000;

/** Starts a built service and waits until `/healthz` of its URL answers 200. Rejects, with the end of its log, when it does not. */
export async function startService(
  service: { role: Role; name: string; url: string; profile?: boolean },
  env: Record<string, string>,
  directory: string,
): Promise<Service> {
  const { role, name, url } = service;
  const logFile = join(directory, `${name}.log`);
  const main = join(projectRoot(), 'dist', 'services', role, 'main.js');
  const settings = Object.entries(env).map(([key, value]) => `${key}=${value}`);
  const profiling = service.profile ? ['--cpu-prof', `--cpu-prof-dir=${directory}`] : [];
  const child = startChildServer([process.execPath, '--enable-source-maps', ...profiling, main], {
    wrapper: ['env', ...settings],
    logFile,
    deathSignal: 'TERM',
  });
  const running: Service = {
    role,
    name,
    url,
    pid: child.pid,
    check() {
      if (!child.alive()) throw new Error(`${name} has ended:\n${tail(logFile)}`);
    },
    stop: () => stop(child),
  };
  try {
    await healthy(running);
    return running;
  } catch (error) {
    await running.stop();
    throw error;
  }
}

async function healthy(service: Service): Promise<void> {
  const healthUrl = `${service.url}/healthz`;
  const deadline = Date.now() + READY_WITHIN_MS;
  for (;;) {
    service.check();
    const answer = await fetch(healthUrl, { signal: AbortSignal.timeout(1000) }).catch(() => null);
    await answer?.arrayBuffer();
    if (answer?.ok) return;
    if (Date.now() > deadline) {
      throw new Error(`${service.name} is not healthy after ${READY_WITHIN_MS / 1000} s at ${healthUrl}`);
    }
    await sleep(25);
  }
}

function stop(child: ChildServer): Promise<void> {
  return child.stop([
    { signal: 'SIGTERM', waitMs: 20_000 },
    { signal: 'SIGKILL', waitMs: 5_000 },
  ]);
}

function tail(file: string): string {
  return readFileSync(file).subarray(-LOG_TAIL_BYTES).toString('utf8');
}
