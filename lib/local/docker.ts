import { existsSync } from 'node:fs';
import { request } from 'node:http';
import { homedir } from 'node:os';
import { join } from 'node:path';
import type { LocalPostgres } from './postgres.ts';
import type { LocalRedis } from './redis.ts';

const PING_TIMEOUT_MS = 800;

type Address = { socketPath: string } | { host: string; port: number };

/**
 * Whether a container engine really answers. Asked before testcontainers is imported, which costs most of a
 * second; a `docker` program on the PATH proves nothing, since the client comes without the engine.
 */
export async function dockerAnswers(env: NodeJS.ProcessEnv): Promise<boolean> {
  const answers = await Promise.all(addresses(env).map(ping));
  return answers.includes(true);
}

/** A throw-away Postgres in a container. Its data goes when it stops. */
export async function startDockerPostgres(port?: number): Promise<LocalPostgres> {
  const { PostgreSqlContainer } = await import('@testcontainers/postgresql');
  const image = new PostgreSqlContainer('postgres:18-alpine')
    .withDatabase('relay')
    .withUsername('relay')
    .withCommand(['postgres', '-c', 'fsync=off', '-c', 'max_connections=400', '-c', 'jit=off']);
  if (port !== undefined) image.withExposedPorts({ container: 5432, host: port });
  const container = await image.start();
  return {
    url: container.getConnectionUri(),
    port: container.getPort(),
    pid: null,
    stop: async () => void (await container.stop()),
  };
}

/** A throw-away Redis in a container. */
export async function startDockerRedis(port?: number): Promise<LocalRedis> {
  const { RedisContainer } = await import('@testcontainers/redis');
  const image = new RedisContainer('redis:7-alpine');
  if (port !== undefined) image.withExposedPorts({ container: 6379, host: port });
  const container = await image.start();
  return {
    url: container.getConnectionUrl(),
    port: container.getPort(),
    pid: null,
    stop: async () => void (await container.stop()),
  };
}

function addresses(env: NodeJS.ProcessEnv): Address[] {
  const runtime = env.XDG_RUNTIME_DIR;
  const sockets = [
    '/var/run/docker.sock',
    ...(runtime ? [join(runtime, 'docker.sock')] : []),
    join(homedir(), '.docker', 'run', 'docker.sock'),
    join(homedir(), '.docker', 'desktop', 'docker.sock'),
  ];
  const local = sockets.filter((path) => existsSync(path)).map((socketPath) => ({ socketPath }));
  return [...configured(env.DOCKER_HOST), ...local];
}

function configured(dockerHost: string | undefined): Address[] {
  if (!dockerHost || !URL.canParse(dockerHost)) return [];
  const url = new URL(dockerHost);
  if (url.protocol === 'unix:') return [{ socketPath: url.pathname }];
  return [{ host: url.hostname, port: Number(url.port || 2375) }];
}

function ping(address: Address): Promise<boolean> {
  return new Promise((resolve) => {
    const call = request({ ...address, path: '/_ping', timeout: PING_TIMEOUT_MS }, (response) => {
      response.resume();
      resolve(response.statusCode === 200);
    });
    call.on('timeout', () => call.destroy());
    call.on('error', () => resolve(false));
    call.on('close', () => resolve(false));
    call.end();
  });
}
