import { join, resolve } from 'node:path';
import type { Env } from '../../lib/config/env.ts';
import { parseReceiverConfig } from '../../lib/config/receiver.ts';
import {
  parseStandaloneConfig,
  type StandaloneConfig,
  withStandaloneDefaults,
} from '../../lib/config/standalone.ts';
import { projectRoot } from '../../lib/local/home.ts';
import type { RunningService } from '../../lib/runtime/lifecycle.ts';
import { createLineLogger, createLogger, type LogOptions } from '../../lib/runtime/log.ts';
import { relayVersion } from '../../lib/runtime/version.ts';
import { migrate } from '../../lib/store/migrate.ts';
import { ApiClient } from './api-client.ts';
import { freeOr, requireFree } from './binds.ts';
import { type DemoReceiver, startDemo, startDemoReceiver } from './demo.ts';
import { makeDataDir, newAdminKey, newSecretKeys, rememberedSecret } from './remembered.ts';
import type { Screen } from './screen.ts';
import { startServices } from './services.ts';
import { startStatus } from './status.ts';
import { Stops } from './stops.ts';
import { type PresentStore, type Store, startBroker, startDatabase } from './stores.ts';
import { header } from './summary.ts';

export interface StandaloneOptions {
  demo: boolean;
  screen: Screen;
}

/**
 * Runs all of Relay in this process: the stores where none are named, the schema, the services, the demo. Stops in the opposite order. What a
 * run that was killed had accepted is delivered by the next one. Throws ConfigurationError or LocalServiceUnavailable with one sentence for
 * the person at the terminal.
 */
export async function startStandalone(given: Env, options: StandaloneOptions): Promise<RunningService> {
  const { screen } = options;
  const say = (line: string) => screen.say(line);
  const stops = new Stops();
  try {
    await start(withStandaloneDefaults(given), options, stops, say);
  } catch (error) {
    await stops.run(() => undefined);
    throw error;
  }
  return {
    async stop() {
      screen.leaveBlock();
      say('\ndraining; press Ctrl-C again to exit at once');
      await stops.run(say);
      say('stopped');
    },
  };
}

async function start(
  env: Env,
  { demo, screen }: StandaloneOptions,
  stops: Stops,
  say: (line: string) => void,
): Promise<void> {
  const since = new Date();
  const config = parseStandaloneConfig(env);
  await requireFree(config.apiBind, 'RELAY_API_BIND');
  const dataDir = makeDataDir(config.dataDir === null ? defaultDataDir() : resolve(config.dataDir));
  const { postgres, redis } = await startStores(config, dataDir, stops, say);
  const migrated = await migrate(postgres.url);
  if (migrated.length > 0) say(`the schema is made: ${migrated.length} migrations`);

  const logging = logsTo(screen, config);
  const logFor = (service: string) => createLogger({ ...logging, service });
  const headerPrefix = parseReceiverConfig(env).headerPrefix;
  const receiver = demo ? await startReceiver(config, dataDir, headerPrefix, stops, say) : null;
  const adminKey = config.adminKey ?? rememberedSecret(dataDir, 'admin-key', newAdminKey);
  const services = await startServices({
    env: {
      ...env,
      DATABASE_URL: postgres.url,
      RELAY_BROKER_URL: redis.url ?? '',
      RELAY_ADMIN_KEY: adminKey,
      RELAY_SECRET_KEYS: config.secretKeys ?? rememberedSecret(dataDir, 'secret-keys', newSecretKeys),
    },
    metricsBind: config.metricsBind,
    version: relayVersion(),
    logFor,
    lines: createLineLogger({ ...logging, service: 'dispatcher' }),
    say,
  });
  stops.add('the reconciler', () => services.reconciler.stop());
  stops.add('the dispatcher', () => services.dispatcher.stop());
  stops.add('the API', () => services.api.stop());
  if (receiver) {
    const log = logFor('demo');
    const api = new ApiClient(services.api.url, adminKey);
    const { destination } = services;
    stops.add('the demo stream', await startDemo(api, receiver, { dataDir, log, destination }));
  }
  say(
    header({
      version: relayVersion(),
      apiUrl: services.api.url,
      adminKey,
      dispatcherMetricsUrl: services.dispatcher.metricsUrl,
      reconcilerMetricsUrl: services.reconciler.metricsUrl,
      receiverUrl: receiver?.receiver.url ?? null,
      dataDir,
      postgres: postgres.described,
      redis: redis.described,
      privateEndpoints: services.destination.allowPrivate,
    }),
  );
  const status = startStatus({ services, demo: receiver, databaseUrl: postgres.url, screen, since });
  stops.add('the summary', () => status.stop());
}

function defaultDataDir(): string {
  return join(projectRoot(), '.relay', 'data');
}

async function startStores(
  config: StandaloneConfig,
  dataDir: string,
  stops: Stops,
  say: (line: string) => void,
): Promise<{ postgres: PresentStore; redis: Store }> {
  const [postgres, redis] = await Promise.allSettled([
    startDatabase(config, dataDir, say),
    startBroker(config, dataDir, say),
  ]);
  // Whatever did start must be stopped, also when the other did not.
  if (postgres.status === 'fulfilled') stops.add('Postgres', postgres.value.stop);
  if (redis.status === 'fulfilled') stops.add('Redis', redis.value.stop);
  if (postgres.status === 'rejected') throw postgres.reason;
  if (redis.status === 'rejected') throw redis.reason;
  return { postgres: postgres.value, redis: redis.value };
}

function logsTo(screen: Screen, config: StandaloneConfig): Omit<LogOptions, 'service'> {
  const whole = screen.isTerminal ? 'text' : 'json';
  return {
    level: config.logLevel,
    format: config.logFormat === 'auto' ? whole : config.logFormat,
    write: (line) => screen.say(line),
  };
}

async function startReceiver(
  config: StandaloneConfig,
  dataDir: string,
  headerPrefix: string,
  stops: Stops,
  say: (line: string) => void,
): Promise<DemoReceiver> {
  const bind = await freeOr(config.receiverBind, say, "the demo's receiver listens");
  const demo = await startDemoReceiver(bind, dataDir, headerPrefix);
  stops.add('the receiver', () => demo.receiver.close());
  return demo;
}
