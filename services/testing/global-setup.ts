import { mkdirSync, readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import type { TestProject } from 'vitest/node';
import { startPostgres } from '../../lib/local/postgres.ts';
import { startRedis } from '../../lib/local/redis.ts';
import { buildWhenStale } from '../standalone/prepare.mjs';

declare module 'vitest' {
  export interface ProvidedContext {
    /** A superuser on a server of this run; make databases in it with createTestDatabase(). */
    postgresUrl: string;
    /** Shared by all test files: keep to a prefix of your own (createTestRedis). */
    redisUrl: string;
    /** A directory of this run, removed after it, for servers of one test's own. */
    runDirectory: string;
  }
}

const log = (line: string) => process.stderr.write(`${line}\n`);

/** One Postgres and one Redis for the whole run (or those that the environment names), and a fresh dist. */
export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const { root } = project.config;
  if (!(await buildWhenStale(root))) log('dist has type errors: tests that start processes may run old code');
  const runDirectory = makeRunDirectory(root);
  const stops: (() => Promise<void>)[] = [];
  async function teardown(): Promise<void> {
    await Promise.all(stops.map((stop) => stop()));
    rmSync(runDirectory, { recursive: true, force: true });
  }
  try {
    project.provide('runDirectory', runDirectory);
    project.provide('postgresUrl', process.env.DATABASE_URL ?? (await postgres(runDirectory, stops)));
    project.provide('redisUrl', process.env.RELAY_BROKER_URL ?? (await redis(runDirectory, stops)));
    return teardown;
  } catch (error) {
    await teardown();
    throw error;
  }
}

async function postgres(runDirectory: string, stops: (() => Promise<void>)[]): Promise<string> {
  const server = await startPostgres({
    dataDir: join(runDirectory, 'postgres'),
    durable: false,
    settings: { max_connections: '400' }, // several processes at once, each with its pool, in both workers
    docker: process.env,
    log,
  });
  stops.push(() => server.stop('immediate'));
  return server.url;
}

async function redis(runDirectory: string, stops: (() => Promise<void>)[]): Promise<string> {
  const server = await startRedis({ dir: join(runDirectory, 'redis'), docker: process.env, log });
  stops.push(() => server.stop());
  return server.url;
}

/** Named by process, so that what a killed run left behind can be told from a live run's. */
function makeRunDirectory(root: string): string {
  const parent = join(root, '.relay', 'tests');
  mkdirSync(parent, { recursive: true });
  for (const name of readdirSync(parent)) {
    if (!alive(Number(name))) rmSync(join(parent, name), { recursive: true, force: true });
  }
  const directory = join(parent, String(process.pid));
  mkdirSync(directory, { recursive: true });
  return directory;
}

function alive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}
