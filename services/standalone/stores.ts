import { join } from 'node:path';
import type { StandaloneConfig } from '../../lib/config/standalone.ts';
import { startPostgres } from '../../lib/local/postgres.ts';
import { startRedis } from '../../lib/local/redis.ts';
import { LocalServiceUnavailable, type LogLine } from '../../lib/local/unavailable.ts';

/** A server that was found or started. */
export interface Store {
  /** Null: there is none, and Relay runs without it. */
  url: string | null;
  /** For people: where it is, without its password. */
  described: string;
  /** Null: somebody else's, and left alone. */
  stop: (() => Promise<void>) | null;
}

export type PresentStore = Store & { url: string };

/** Postgres: the one that is named, else an embedded one whose commits survive anything. */
export async function startDatabase(
  config: StandaloneConfig,
  dataDir: string,
  say: LogLine,
): Promise<PresentStore> {
  if (config.databaseUrl !== null) return named(config.databaseUrl);
  const postgres = await startPostgres({ dataDir: join(dataDir, 'postgres'), durable: true, log: say });
  return {
    url: postgres.url,
    described: `embedded, 127.0.0.1:${postgres.port}`,
    stop: () => postgres.stop('fast'),
  };
}

/** Redis: the one that is named, else a local one. A machine that has none gets Relay without it. */
export async function startBroker(config: StandaloneConfig, dataDir: string, say: LogLine): Promise<Store> {
  if (config.brokerUrl !== null) return named(config.brokerUrl);
  try {
    const redis = await startRedis({ dir: join(dataDir, 'redis'), log: say });
    return { url: redis.url, described: `local, 127.0.0.1:${redis.port}`, stop: () => redis.stop() };
  } catch (error) {
    if (!(error instanceof LocalServiceUnavailable)) throw error;
    say(`Without Redis: Relay finds its work in the database instead (${error.message}).`);
    return { url: null, described: 'none: work is found in the database', stop: null };
  }
}

function named(url: string): PresentStore {
  return { url, described: hostOf(url), stop: null };
}

function hostOf(url: string): string {
  return URL.canParse(url) && new URL(url).host !== '' ? new URL(url).host : 'as configured';
}
