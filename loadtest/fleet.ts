import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { freePort } from '../lib/local/home.ts';
import { startPostgres } from '../lib/local/postgres.ts';
import { startRedis } from '../lib/local/redis.ts';
import { migrate } from '../lib/store/migrate.ts';
import { createTenantKey } from './api-client.ts';
import type { ProcessGroup } from './cpu.ts';
import { makeDirectory } from './directory.ts';
import type { PrivateTarget, RunningTarget } from './options.ts';
import { type Role, type Service, startService } from './service.ts';
import type { Teardown } from './teardown.ts';

/** What a run needs to know of the fleet under test, whoever started it. */
export interface Fleet {
  apis: readonly string[];
  key: string;
  receiver: string;
  /** Null when it is not ours to look into. */
  database: string | null;
  /** Scratch space of the run. */
  directory: string;
  startDispatchers(): Promise<void>;
  /** The processes whose CPU is counted; none when the fleet is not ours. */
  groups(): ProcessGroup[];
  /** Throws when a process of ours has ended. */
  check(): void;
}

/** A fleet of the run's own, which can be hurt. */
export interface PrivateFleet extends Fleet {
  database: string;
  tenantId: string;
  /** Null without a broker. */
  redis: string | null;
  /** One more receiver; on a free port unless one is given. */
  startReceiver(port?: number): Promise<string>;
  /** Ends all sessions and starts again on the same port and data. */
  restartPostgres(): Promise<void>;
  /** Kills the leading reconciler without a word and waits for another to lead. Throws when none does. */
  killLeader(): Promise<void>;
}

const LEADER_WITHIN_MS = 30_000;

/** A fleet started elsewhere: its processes are not counted, and its dispatchers run already. */
export function runningFleet(target: RunningTarget, teardown: Teardown): Fleet {
  return {
    apis: target.apis,
    key: target.key,
    receiver: target.receiver,
    database: target.database,
    directory: makeDirectory(teardown, { keep: false }),
    startDispatchers: async () => undefined,
    groups: () => [],
    check: () => undefined,
  };
}

/**
 * Starts Postgres (fsync on), Redis, the APIs, the reconcilers and a receiver as processes of their own, with every protection on;
 * the dispatchers wait for `startDispatchers`. Everything is ended by the teardown. `part` keeps the fleets of one run apart.
 */
export async function privateFleet(
  target: PrivateTarget,
  teardown: Teardown,
  part?: string,
): Promise<PrivateFleet> {
  const directory = makeDirectory(teardown, { keep: target.keep, ...(part === undefined ? {} : { part }) });
  const postgres = await startDatabase(target, directory, teardown);
  const redis = target.redis ? await startRedis({ dir: join(directory, 'redis') }) : null;
  if (redis) teardown.add(() => redis.stop());

  const adminKey = randomBytes(24).toString('hex');
  const shared: Record<string, string> = {
    DATABASE_URL: postgres.url,
    RELAY_BROKER_URL: redis?.url ?? '',
    RELAY_ADMIN_KEY: adminKey,
    RELAY_SECRET_KEYS: randomBytes(32).toString('base64'),
    RELAY_ALLOW_PRIVATE_ENDPOINTS: 'true',
    ...target.env,
  };
  const services: Service[] = [];
  const start = (role: Role, count: number, port?: number) =>
    startServices(role, count, {
      shared,
      directory,
      teardown,
      services,
      profile: target.profile,
      port: port ?? null,
    });

  const [[receiver], apis] = await Promise.all([
    start('receiver', 1),
    start('api', target.apis),
    start('reconciler', target.reconcilers),
  ]);
  return {
    apis,
    ...(await createTenantKey(apis[0]!, adminKey)),
    receiver: receiver!,
    database: postgres.url,
    redis: redis?.url ?? null,
    directory,
    startDispatchers: async () => void (await start('dispatcher', target.dispatchers)),
    startReceiver: async (port) => (await start('receiver', 1, port))[0]!,
    restartPostgres: postgres.restart,
    killLeader: () => killLeader(services),
    groups: () => [
      ...services.map(({ role, pid }) => ({ role, pids: [pid] })),
      { role: 'postgres', pids: postgres.pids(), tree: true },
      { role: 'redis', pids: redis?.pid ? [redis.pid] : [] },
    ],
    check() {
      for (const service of services) service.check();
    },
  };
}

async function startDatabase(target: PrivateTarget, directory: string, teardown: Teardown) {
  const launch = (port?: number) =>
    startPostgres({
      dataDir: join(directory, 'postgres'),
      durable: true,
      ...(port === undefined ? {} : { port }),
      settings: {
        ...(target.statements ? { shared_preload_libraries: 'pg_stat_statements' } : {}),
        ...target.postgresSettings,
      },
    });
  let server = await launch();
  // Nobody reads this data again, so nothing has to be written out.
  teardown.add(() => server.stop('immediate'));
  await migrate(server.url);
  return {
    url: server.url,
    pids: () => (server.pid === null ? [] : [server.pid]),
    async restart() {
      await server.stop('fast');
      server = await launch(server.port);
    },
  };
}

async function killLeader(services: Service[]): Promise<void> {
  // After a restart of the database it may take a moment until one leads again.
  const leader = await awaitLeader(services);
  // It ends because we say so, so its absence must not end the run.
  services.splice(services.indexOf(leader), 1);
  process.kill(leader.pid, 'SIGKILL');
  await awaitLeader(services);
}

async function awaitLeader(services: readonly Service[]): Promise<Service> {
  const deadline = Date.now() + LEADER_WITHIN_MS;
  for (;;) {
    const leader = await leaderOf(services);
    if (leader) return leader;
    if (Date.now() > deadline) throw new Error(`no reconciler leads within ${LEADER_WITHIN_MS / 1000} s`);
    await sleep(20);
  }
}

async function leaderOf(services: readonly Service[]): Promise<Service | null> {
  for (const service of services.filter(({ role }) => role === 'reconciler')) {
    const metrics = await fetch(`${service.url}/metrics`, { signal: AbortSignal.timeout(5_000) });
    if (/^relay_leader 1$/m.test(await metrics.text())) return service;
  }
  return null;
}

interface Starting {
  shared: Record<string, string>;
  directory: string;
  teardown: Teardown;
  services: Service[];
  profile: readonly string[];
  /** Null: a free one for each. */
  port: number | null;
}

const BIND_SETTING: Record<Role, string> = {
  api: 'RELAY_API_BIND',
  dispatcher: 'RELAY_METRICS_BIND',
  reconciler: 'RELAY_METRICS_BIND',
  receiver: 'RELAY_RECEIVER_BIND',
};

/** Starts processes of one role at once and returns their URLs. */
function startServices(role: Role, count: number, starting: Starting): Promise<string[]> {
  const { shared, directory, teardown, services, profile } = starting;
  const before = services.filter((service) => service.role === role).length;
  return Promise.all(
    Array.from({ length: count }, async (_, n) => {
      const bind = `127.0.0.1:${starting.port ?? (await freePort())}`;
      const url = `http://${bind}`;
      const env = { ...shared, [BIND_SETTING[role]]: bind };
      const name = before + count === 1 ? role : `${role}-${before + n + 1}`;
      const process = { role, name, url, profile: profile.includes(role) };
      const service = await startService(process, env, directory);
      services.push(service);
      teardown.add(() => service.stop());
      return url;
    }),
  );
}
