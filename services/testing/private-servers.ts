import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { inject } from 'vitest';
import { freePort } from '../../lib/local/home.ts';
import { type StopMode, startPostgres } from '../../lib/local/postgres.ts';
import { startRedis } from '../../lib/local/redis.ts';

export interface PrivatePostgres {
  /** The same over restarts. Unmigrated: call migrate(url) first. */
  url: string;
  /** The present postmaster, for signals; null while stopped. */
  pid(): number | null;
  /** `immediate` is a crash; sessions are cut in both modes. */
  stop(mode?: StopMode): Promise<void>;
  /** After stop(), or after a kill from outside: same data, same address. */
  start(): Promise<void>;
}

export interface PrivatePostgresOptions {
  /** true for promises about commits; a kill of the postmaster alone loses nothing without it either. */
  durable?: boolean;
  settings?: Record<string, string>;
}

/** A Postgres of one test's own, to stop, kill and restart. Costs most of a second. Stop it in `afterAll`. */
export async function startPrivatePostgres(options: PrivatePostgresOptions = {}): Promise<PrivatePostgres> {
  const dataDir = join(inject('runDirectory'), `postgres-${randomBytes(4).toString('hex')}`);
  const port = await freePort();
  const launch = () =>
    startPostgres({ dataDir, port, durable: options.durable ?? false, settings: options.settings ?? {} });
  let server: Awaited<ReturnType<typeof launch>> | null = await launch();
  return {
    url: server.url,
    pid: () => server?.pid ?? null,
    async stop(mode) {
      await server?.stop(mode);
      server = null;
    },
    async start() {
      server = await launch();
    },
  };
}

export interface PrivateRedis {
  /** The same over restarts; a restart comes up empty. */
  url: string;
  pid(): number | null;
  stop(): Promise<void>;
  start(): Promise<void>;
}

/** A Redis of one test's own: for FLUSHALL, for stopping and for counting what is in it. Some 30 ms. */
export async function startPrivateRedis(): Promise<PrivateRedis> {
  const dir = join(inject('runDirectory'), `redis-${randomBytes(4).toString('hex')}`);
  const port = await freePort();
  let server: Awaited<ReturnType<typeof startRedis>> | null = await startRedis({ dir, port });
  return {
    url: server.url,
    pid: () => server?.pid ?? null,
    async stop() {
      await server?.stop();
      server = null;
    },
    async start() {
      server = await startRedis({ dir, port });
    },
  };
}
