import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { type ChildServer, type StopStep, startChildServer } from './child-server.ts';
import { dockerAnswers, startDockerRedis } from './docker.ts';
import { makeHome, projectRoot, rememberedPassword, rememberedPort } from './home.ts';
import { findOnPath } from './on-path.ts';
import { pingRedis } from './ping-redis.ts';
import { type RedisProgram, unpackedRedis } from './redis-package.ts';
import { LocalServiceUnavailable, type LogLine } from './unavailable.ts';

const READY_WITHIN_MS = 10_000;
const ATTEMPTS = 5;
const STOP: StopStep[] = [
  { signal: 'SIGTERM', waitMs: 5_000 },
  { signal: 'SIGKILL', waitMs: 5_000 },
];

export interface LocalRedis {
  /** With the password in it. */
  url: string;
  port: number;
  /** null when it runs in a container. */
  pid: number | null;
  stop(): Promise<void>;
}

export interface LocalRedisOptions {
  /** Holds the password, the port and the log of this one server; no data, which Relay can lose any time. */
  dir: string;
  /** Default: the port of the last run, or a free one. */
  port?: number;
  /** Where a private copy of the server is unpacked when the machine has none; default `.relay/tools`. */
  toolsDir?: string;
  /** Tests may fall back to a throw-away container, on the engine that this environment names. */
  docker?: NodeJS.ProcessEnv;
  log?: LogLine;
}

/**
 * Starts Redis on 127.0.0.1, without persistence, and waits until it answers: an installed redis-server or
 * valkey-server, else (Debian and its kin) a private copy that touches nothing of the system and needs no root.
 * Start again with the same dir and port for a restart.
 * @throws LocalServiceUnavailable when this machine has none; Relay works without, so callers may go on
 */
export async function startRedis(options: LocalRedisOptions): Promise<LocalRedis> {
  const log = options.log ?? (() => undefined);
  const installed = installedRedis();
  if (!installed && options.docker && (await dockerAnswers(options.docker)))
    return startDockerRedis(options.port);
  const program =
    installed ?? (await unpackedRedis(options.toolsDir ?? join(projectRoot(), '.relay', 'tools'), log));
  const home = makeHome(options.dir);
  const password = rememberedPassword(home);
  const { server, port } = await launch(program, home, password, options.port);
  return {
    url: `redis://:${password}@127.0.0.1:${port}`,
    port,
    pid: server.pid,
    stop: () => server.stop(STOP),
  };
}

function installedRedis(): RedisProgram | null {
  const command = findOnPath(['redis-server', 'valkey-server']);
  return command ? { command, wrapper: [] } : null;
}

async function launch(
  program: RedisProgram,
  home: string,
  password: string,
  wantedPort: number | undefined,
): Promise<{ server: ChildServer; port: number }> {
  let output = '';
  for (let attempt = 1; attempt <= ATTEMPTS; attempt += 1) {
    const port = wantedPort ?? (await rememberedPort(home));
    const server = startChildServer([program.command, '-'], {
      wrapper: program.wrapper,
      logFile: join(home, 'log'),
      deathSignal: 'TERM',
      stdin: configuration(home, port, password),
    });
    if (await ready(server, port, password)) return { server, port };
    await server.stop(STOP);
    output = server.output().trim();
    if (!/Address already in use|Could not create server TCP listening socket/.test(output)) break;
    if (wantedPort === undefined) rmSync(join(home, 'port'), { force: true });
    await sleep(100 * attempt);
  }
  throw new LocalServiceUnavailable(
    'redis',
    `${program.command} did not start: ${output || 'it wrote nothing'}`,
  );
}

/** Given on standard input: on the command line, the password would be visible to everyone on the machine. */
function configuration(home: string, port: number, password: string): string {
  return [
    'bind 127.0.0.1',
    `port ${port}`,
    `requirepass ${password}`,
    `dir ${JSON.stringify(home)}`,
    'save ""',
    'appendonly no',
    'daemonize no',
    '',
  ].join('\n');
}

async function ready(server: ChildServer, port: number, password: string): Promise<boolean> {
  const deadline = Date.now() + READY_WITHIN_MS;
  while (server.alive() && Date.now() < deadline) {
    if (await pingRedis(port, password)) return server.alive();
    await sleep(5);
  }
  return false;
}
