import { randomBytes } from 'node:crypto';
import { mkdirSync, readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { freePort, projectRoot } from '../lib/local/home.ts';
import { startPostgres } from '../lib/local/postgres.ts';
import { startRedis } from '../lib/local/redis.ts';
import { migrate } from '../lib/store/migrate.ts';
import { createTenantKey } from './api-client.ts';
import type { ProcessGroup } from './cpu.ts';
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

/** A fleet started elsewhere: its processes are not counted, and its dispatchers run already. */
export function runningFleet(target: RunningTarget, teardown: Teardown): Fleet {
  return {
    apis: target.apis,
    key: target.key,
    receiver: target.receiver,
    database: target.database,
    directory: makeDirectory(teardown, false),
    startDispatchers: async () => undefined,
    groups: () => [],
    check: () => undefined,
  };
}

/**
 * Starts Postgres (fsync on), Redis, the APIs, a reconciler and a receiver as processes of their own, with every protection on;
 * the dispatchers wait for `startDispatchers`. Everything is ended by the teardown.
 */
export async function privateFleet(target: PrivateTarget, teardown: Teardown): Promise<Fleet> {
  const directory = makeDirectory(teardown, target.keep);
  const { databaseUrl, postgresPid } = await database(target, directory, teardown);
  const redis = target.redis ? await startRedis({ dir: join(directory, 'redis') }) : null;
  if (redis) teardown.add(() => redis.stop());

  const adminKey = randomBytes(24).toString('hex');
  const shared: Record<string, string> = {
    DATABASE_URL: databaseUrl,
    RELAY_BROKER_URL: redis?.url ?? '',
    RELAY_ADMIN_KEY: adminKey,
    RELAY_SECRET_KEYS: randomBytes(32).toString('base64'),
    RELAY_ALLOW_PRIVATE_ENDPOINTS: 'true',
    ...target.env,
  };
  const services: Service[] = [];
  const start = (role: Role, count: number) =>
    startServices(role, count, { shared, directory, teardown, services, profile: target.profile });

  const [[receiver], apis] = await Promise.all([
    start('receiver', 1),
    start('api', target.apis),
    start('reconciler', 1),
  ]);
  return {
    apis,
    key: await createTenantKey(apis[0]!, adminKey),
    receiver: receiver!,
    database: databaseUrl,
    directory,
    startDispatchers: async () => void (await start('dispatcher', target.dispatchers)),
    groups: () => [
      ...services.map(({ role, pid }) => ({ role, pids: [pid] })),
      { role: 'postgres', pids: postgresPid === null ? [] : [postgresPid], tree: true },
      { role: 'redis', pids: redis?.pid ? [redis.pid] : [] },
    ],
    check() {
      for (const service of services) service.check();
    },
  };
}

async function database(
  target: PrivateTarget,
  directory: string,
  teardown: Teardown,
): Promise<{ databaseUrl: string; postgresPid: number | null }> {
  const postgres = await startPostgres({
    dataDir: join(directory, 'postgres'),
    durable: true,
    settings: {
      ...(target.statements ? { shared_preload_libraries: 'pg_stat_statements' } : {}),
      ...target.postgresSettings,
    },
  });
  // Nobody reads this data again, so nothing has to be written out.
  teardown.add(() => postgres.stop('immediate'));
  await migrate(postgres.url);
  return { databaseUrl: postgres.url, postgresPid: postgres.pid };
}

interface Starting {
  shared: Record<string, string>;
  directory: string;
  teardown: Teardown;
  services: Service[];
  profile: readonly string[];
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
  return Promise.all(
    Array.from({ length: count }, async (_, n) => {
      const bind = `127.0.0.1:${await freePort()}`;
      const url = `http://${bind}`;
      const env = { ...shared, [BIND_SETTING[role]]: bind };
      const name = count === 1 ? role : `${role}-${n + 1}`;
      const process = { role, name, healthUrl: `${url}/healthz`, profile: profile.includes(role) };
      const service = await startService(process, env, directory);
      services.push(service);
      teardown.add(() => service.stop());
      return url;
    }),
  );
}

function makeDirectory(teardown: Teardown, keep: boolean): string {
  const parent = join(projectRoot(), '.relay', 'loadtest');
  const directory = join(parent, keep ? `kept-${process.pid}` : String(process.pid));
  mkdirSync(directory, { recursive: true });
  removeAbandoned(parent);
  if (!keep) teardown.add(() => rmSync(directory, { recursive: true, force: true }));
  return directory;
}

/** A run that was killed leaves gigabytes behind. */
function removeAbandoned(parent: string): void {
  for (const name of readdirSync(parent)) {
    if (/^\d+$/.test(name) && !alive(Number(name)))
      rmSync(join(parent, name), { recursive: true, force: true });
  }
}

function alive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}
