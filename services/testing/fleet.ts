import { randomBytes, randomUUID } from 'node:crypto';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { inject } from 'vitest';
import { type ChildServer, startChildServer } from '../../lib/local/child-server.ts';
import { freePort, projectRoot } from '../../lib/local/home.ts';
import { type Receiver, type ReceiverOptions, startReceiver } from '../receiver/server.ts';
import { ADMIN_KEY, caller, type TestApi } from './api.ts';
import { eventually } from './eventually.ts';
import { givenSecretKeys } from './secret-keys.ts';

export type FleetRole = 'api' | 'dispatcher' | 'reconciler';

/** One of Relay's services as a real process. */
export interface FleetProcess {
  readonly role: FleetRole;
  readonly pid: number;
  /** The API's base URL; elsewhere that of `/metrics` and `/readyz`. */
  readonly url: string;
  /** Its log so far, one object a line. */
  log(): Record<string, unknown>[];
  alive(): boolean;
  /** Sends a signal and does not wait. */
  signal(signal: NodeJS.Signals): void;
  /** Sends SIGTERM and resolves to the exit code; null when it had to be killed. */
  terminate(withinMs?: number): Promise<number | null>;
  kill(): Promise<void>;
}

export interface FleetOptions {
  databaseUrl: string;
  /** Null for no Redis at all. */
  redisUrl: string | null;
  env?: Record<string, string>;
  receiver?: ReceiverOptions;
}

/** Real processes on a database and a Redis of the caller's, with a receiver in this process. Stop it in `afterAll`. */
export interface Fleet {
  readonly receiver: Receiver;
  readonly processes: readonly FleetProcess[];
  readonly env: Record<string, string>;
  start(role: FleetRole, env?: Record<string, string>): Promise<FleetProcess>;
  /** Calls the first API that is alive. */
  call: TestApi['call'];
  /** Registers an endpoint at a path of the receiver, with limits that bind nothing, and gives its secret to the receiver. */
  endpoint(path: string, settings?: Record<string, unknown>): Promise<{ id: string; secret: string }>;
  /** Posts events one after the other on so many connections; returns the accepted delivery ids and every other status. */
  post(count: number, options?: PostOptions): Promise<Posted>;
  /** Resolves when every one of these deliveries was answered 2xx; throws what is missing after `withinMs`. */
  delivered(deliveryIds: readonly string[], withinMs?: number): Promise<void>;
  stop(): Promise<void>;
}

export interface PostOptions {
  connections?: number;
  /** At most so many a second. */
  rate?: number;
  type?: string;
  headers?: (n: number) => Record<string, string>;
}

export interface Posted {
  deliveryIds: string[];
  /** How often each status was answered; 0 for no answer. */
  statuses: Record<number, number>;
}

const READY_WITHIN_MS = 30_000;

export async function startFleet(options: FleetOptions): Promise<Fleet> {
  const directory = join(inject('runDirectory'), `fleet-${randomBytes(4).toString('hex')}`);
  mkdirSync(directory, { recursive: true });
  const env: Record<string, string> = {
    DATABASE_URL: options.databaseUrl,
    RELAY_ADMIN_KEY: ADMIN_KEY,
    RELAY_SECRET_KEYS: givenSecretKeys().setting,
    RELAY_ALLOW_PRIVATE_ENDPOINTS: 'true',
    RELAY_LOG_FORMAT: 'json',
    RELAY_DB_CONNECTIONS: '4',
    ...(options.redisUrl
      ? { RELAY_BROKER_URL: options.redisUrl, RELAY_BROKER_KEY_PREFIX: `fleet-${randomUUID()}:` }
      : {}),
    ...options.env,
  };
  const receiver = await startReceiver(options.receiver);
  const processes: FleetProcess[] = [];
  const secrets: string[] = [];

  const firstApi = () => {
    const api = processes.find((process) => process.role === 'api' && process.alive());
    if (!api) throw new Error('no API is alive');
    return api;
  };
  const call: TestApi['call'] = (...args) => caller(firstApi().url)(...args);

  return {
    receiver,
    processes,
    env,
    call,
    async start(role, extra = {}) {
      const process = await startProcess(role, { ...env, ...extra }, directory);
      processes.push(process);
      return process;
    },
    async endpoint(path, settings = {}) {
      const { status, json, text } = await call('POST', '/v1/endpoints', {
        body: {
          url: `${receiver.url}${path}`,
          rate_per_second: 1e6,
          burst: 1e6,
          max_in_flight: 1000,
          ...settings,
        },
      });
      if (status !== 201) throw new Error(`an endpoint was refused: ${text}`);
      secrets.push(json.secret);
      receiver.setSecrets(secrets);
      return { id: json.id, secret: json.secret };
    },
    post: (count, posting) => post(firstApi, count, posting),
    delivered: (ids, withinMs = 30_000) =>
      eventually(() => {
        const missing = ids.filter((id) => (receiver.find(id)?.successes ?? 0) === 0);
        if (missing.length > 0)
          throw new Error(`${missing.length} of ${ids.length} are missing, first ${missing[0]}`);
      }, withinMs),
    async stop() {
      // A frozen process hears SIGTERM only when it is woken.
      for (const process of processes) if (process.alive()) process.signal('SIGCONT');
      await Promise.all(processes.map((process) => process.kill()));
      await receiver.close(0);
    },
  };
}

async function startProcess(
  role: FleetRole,
  env: Record<string, string>,
  directory: string,
): Promise<FleetProcess> {
  const port = await freePort();
  const bind = { [role === 'api' ? 'RELAY_API_BIND' : 'RELAY_METRICS_BIND']: `127.0.0.1:${port}` };
  const settings = Object.entries({ ...env, ...bind }).map(([key, value]) => `${key}=${value}`);
  const main = join(projectRoot(), 'dist', 'services', role, 'main.js');
  const child = startChildServer([process.execPath, '--enable-source-maps', main], {
    wrapper: ['env', ...settings],
    logFile: join(directory, `${role}-${randomBytes(3).toString('hex')}.log`),
    deathSignal: 'TERM',
  });
  const running = toProcess(role, child, `http://127.0.0.1:${port}`);
  await eventually(async () => {
    if (!running.alive()) throw new Error(`the ${role} has ended: ${child.output().slice(-2000)}`);
    const answer = await fetch(`${running.url}/healthz`, { signal: AbortSignal.timeout(1_000) });
    if (!answer.ok) throw new Error(`the ${role} is not healthy`);
  }, READY_WITHIN_MS);
  return running;
}

function toProcess(role: FleetRole, child: ChildServer, url: string): FleetProcess {
  return {
    role,
    url,
    pid: child.pid,
    alive: child.alive,
    log: () =>
      child
        .output()
        .split('\n')
        .filter((line) => line.startsWith('{') && line.endsWith('}'))
        .map((line) => JSON.parse(line) as Record<string, unknown>),
    signal: (signal) => void process.kill(child.pid, signal),
    async terminate(withinMs = 20_000) {
      await child.stop([
        { signal: 'SIGTERM', waitMs: withinMs },
        { signal: 'SIGKILL', waitMs: 5_000 },
      ]);
      return child.exited;
    },
    kill: () => child.stop([{ signal: 'SIGKILL', waitMs: 5_000 }]),
  };
}

async function post(firstApi: () => FleetProcess, count: number, options: PostOptions = {}): Promise<Posted> {
  const { connections = 8, rate = Number.POSITIVE_INFINITY, type = 'order.paid', headers } = options;
  const posted: Posted = { deliveryIds: [], statuses: {} };
  const startedAt = performance.now();
  let next = 0;
  const worker = async () => {
    while (next < count) {
      const n = next++;
      const aheadMs = (n * 1000) / rate - (performance.now() - startedAt);
      if (aheadMs > 0) await new Promise((resolve) => setTimeout(resolve, aheadMs));
      await postOne(firstApi, posted, { type, n }, headers?.(n) ?? {});
    }
  };
  await Promise.all(Array.from({ length: Math.min(connections, count) }, worker));
  return posted;
}

async function postOne(
  firstApi: () => FleetProcess,
  posted: Posted,
  event: object,
  headers: Record<string, string>,
): Promise<void> {
  try {
    const { status, json } = await caller(firstApi().url)('POST', '/v1/events', { body: event, headers });
    posted.statuses[status] = (posted.statuses[status] ?? 0) + 1;
    if (status === 202) posted.deliveryIds.push(...(json.delivery_ids as string[]));
  } catch {
    posted.statuses[0] = (posted.statuses[0] ?? 0) + 1;
  }
}
