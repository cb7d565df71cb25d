import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { type ChildServer, type StopStep, startChildServer } from './child-server.ts';
import { CLUSTER_DATABASE, CLUSTER_USER, clusterMajor, ensureCluster } from './cluster.ts';
import { dockerAnswers, startDockerPostgres } from './docker.ts';
import { makeHome, rememberedPort } from './home.ts';
import { findPostgresBinaries, type PostgresBinaries } from './postgres-binaries.ts';
import { claimPostmaster, clearPostmaster, readPostmaster } from './postmaster.ts';
import { chooseRunAs } from './run-as.ts';
import { LocalServiceUnavailable, type LogLine } from './unavailable.ts';

const READY_WITHIN_MS = 10 * 60_000; // replaying a long log after a crash takes minutes, and must be let finish
const RETRY_WITHIN_MS = 15_000;
const STOP: Record<StopMode, StopStep[]> = {
  fast: [
    { signal: 'SIGINT', waitMs: 30_000 },
    { signal: 'SIGQUIT', waitMs: 10_000 },
    { signal: 'SIGKILL', waitMs: 10_000 },
  ],
  immediate: [
    { signal: 'SIGQUIT', waitMs: 10_000 },
    { signal: 'SIGKILL', waitMs: 10_000 },
  ],
};

/** `fast` ends sessions and writes everything out; `immediate` is a crash that the next start recovers from. */
export type StopMode = 'fast' | 'immediate';

export interface LocalPostgres {
  /** Names the database `relay`; the user may create others. */
  url: string;
  port: number;
  /** The postmaster; null when it runs in a container. */
  pid: number | null;
  stop(mode?: StopMode): Promise<void>;
}

export interface LocalPostgresOptions {
  /** Holds the data, the password, the port and the log of this one server. */
  dataDir: string;
  /** Default: the port of the last run, or a free one. */
  port?: number;
  /** false turns fsync off: for tests, whose data is thrown away. */
  durable: boolean;
  /** More server settings, such as `{ max_connections: '20' }`. */
  settings?: Record<string, string>;
  /** Tests may fall back to a throw-away container, on the engine that this environment names. */
  docker?: NodeJS.ProcessEnv;
  log?: LogLine;
}

/**
 * Starts Postgres on 127.0.0.1 and waits until it takes connections: from the npm package's programs, else
 * from installed ones. Start again with the same dataDir and port for a restart; after a kill -9 too.
 * @throws LocalServiceUnavailable when this machine has no Postgres, or the data is in use by a live process
 */
export async function startPostgres(options: LocalPostgresOptions): Promise<LocalPostgres> {
  const log = options.log ?? (() => undefined);
  const home = makeHome(options.dataDir);
  const binaries = binariesFor(home);
  if (!binaries) return startInDocker(options);
  await clearPostmaster(home, log);
  const runAs = chooseRunAs(binaries.postgres, home);
  const password = ensureCluster(binaries, home, runAs, { durable: options.durable, log });
  const { server, port } = await launch(binaries, home, runAs.wrapper, options, log);
  claimPostmaster(home, server.pid);
  return {
    url: `postgres://${CLUSTER_USER}:${password}@127.0.0.1:${port}/${CLUSTER_DATABASE}`,
    port,
    pid: server.pid,
    stop: (mode = 'fast') => server.stop(STOP[mode]),
  };
}

function binariesFor(home: string): PostgresBinaries | null {
  const found = findPostgresBinaries();
  const major = clusterMajor(home);
  const matching = found.find((binaries) => major === null || binaries.major === major);
  if (matching || found.length === 0) return matching ?? null;
  throw new LocalServiceUnavailable(
    'postgres',
    `the data in ${home} was made by Postgres ${major} and this machine has ` +
      `${found.map((binaries) => binaries.major).join(', ')}: install that version, or choose another data directory`,
  );
}

async function startInDocker(options: LocalPostgresOptions): Promise<LocalPostgres> {
  if (options.docker && (await dockerAnswers(options.docker))) return startDockerPostgres(options.port);
  throw new LocalServiceUnavailable(
    'postgres',
    `no Postgres for ${process.platform}-${process.arch} here: install PostgreSQL 15 or newer ` +
      '(Debian: apt-get install postgresql), or set DATABASE_URL to a server that runs',
  );
}

async function launch(
  binaries: PostgresBinaries,
  home: string,
  wrapper: string[],
  options: LocalPostgresOptions,
  log: LogLine,
): Promise<{ server: ChildServer; port: number }> {
  const retryUntil = Date.now() + RETRY_WITHIN_MS;
  for (;;) {
    const port = options.port ?? (await rememberedPort(home));
    const argv = [binaries.postgres, '-D', join(home, 'data'), '-p', String(port), ...settings(options)];
    const server = startChildServer(argv, {
      wrapper: [...wrapper, 'env', 'LC_ALL=C'],
      logFile: join(home, 'log'),
      deathSignal: 'INT',
    });
    if (await ready(server, join(home, 'data'), log)) return { server, port };
    const output = server.output();
    if (!passes(output) || Date.now() > retryUntil) {
      throw new Error(`Postgres did not start: ${output.trim() || `no output from ${argv[0]}`}`);
    }
    if (options.port === undefined) rmSync(join(home, 'port'), { force: true });
    await sleep(100);
    await clearPostmaster(home, log);
  }
}

/** Reasons that go away by themselves: back ends of a killed postmaster still ending, a port just lost. */
function passes(output: string): boolean {
  return /pre-existing shared memory|lock file .* already exists|could not bind|Address already in use/.test(
    output,
  );
}

function settings(options: LocalPostgresOptions): string[] {
  const values: Record<string, string> = {
    listen_addresses: '127.0.0.1',
    unix_socket_directories: '',
    timezone: 'UTC',
    log_timezone: 'UTC',
    max_connections: '200',
    shared_buffers: '256MB',
    max_wal_size: '4GB',
    jit: 'off', // planning a hot statement must not compile it
    autovacuum_naptime: '10s', // the queue table turns over in seconds
    ...(options.durable ? {} : { fsync: 'off', full_page_writes: 'off' }),
    ...options.settings,
  };
  return Object.entries(values).flatMap(([name, value]) => ['-c', `${name}=${value}`]);
}

async function ready(server: ChildServer, data: string, log: LogLine): Promise<boolean> {
  const started = Date.now();
  let sayNextAt = started + 5_000;
  while (server.alive()) {
    const postmaster = readPostmaster(data);
    if (postmaster?.pid === server.pid && postmaster.ready) return true;
    const now = Date.now();
    if (now - started > READY_WITHIN_MS) await server.stop(STOP.immediate);
    if (now >= sayNextAt) {
      log('Postgres is still starting (recovering after an unclean stop)');
      sayNextAt = now + 5_000;
    }
    await sleep(5);
  }
  return false;
}
