import { Redis, type RedisOptions } from 'ioredis';
import type { Lane } from '../domain/vocabulary.ts';

/** Where Redis is and how Relay names its keys in it. */
export interface BrokerOptions {
  url: string;
  /** The express lane's stream; the bulk lane's is named after it. */
  stream: string;
  group: string;
  keyPrefix: string;
  sentinels: readonly { host: string; port: number }[];
  sentinelName: string;
}

/** An answer later than this counts as no answer. */
export const COMMAND_TIMEOUT_MS = 1_000;

/**
 * A client for commands. It never queues for a server that is away: a command fails at once while unconnected, after 1 s when
 * unanswered, and is never sent twice. It reconnects for ever.
 */
export function createCommandClient(options: BrokerOptions): Redis {
  return create(options, { commandTimeout: COMMAND_TIMEOUT_MS });
}

/** A client for one blocking read at a time; its owner watches over how long that takes. */
export function createBlockingClient(options: BrokerOptions): Redis {
  return create(options, {});
}

function create(options: BrokerOptions, extra: { commandTimeout?: number }): Redis {
  const common = {
    protocol: 2,
    enableOfflineQueue: false,
    maxRetriesPerRequest: 0,
    autoResendUnfulfilledCommands: false,
    connectTimeout: 2_000,
    // How long a connection that is given up may take to say goodbye before the next is tried.
    disconnectTimeout: 300,
    keepAlive: 5_000,
    lazyConnect: true,
    retryStrategy: (attempt: number) => Math.min(50 * 2 ** Math.min(attempt, 10), 1_000),
    reconnectOnError: (error: Error) => error.message.startsWith('READONLY'),
    ...extra,
  } satisfies RedisOptions;
  const client =
    options.sentinels.length > 0
      ? new Redis({
          ...common,
          ...credentials(options.url),
          sentinels: [...options.sentinels],
          name: options.sentinelName,
        })
      : new Redis(options.url, common);
  // Its state is read where it matters; without a listener every refused connection would be printed.
  client.on('error', () => undefined);
  client.connect().catch(() => undefined);
  return client;
}

// Behind sentinels the URL says who we are, not where the server is.
function credentials(url: string) {
  const { username, password, pathname, protocol } = new URL(url);
  return {
    ...(username ? { username: decodeURIComponent(username) } : {}),
    ...(password ? { password: decodeURIComponent(password) } : {}),
    ...(protocol === 'rediss:' ? { tls: {} } : {}),
    db: Number(pathname.slice(1) || 0),
  };
}

/** True when a command was not answered in time. */
export function isTimeout(error: unknown): boolean {
  return error instanceof Error && error.message === 'Command timed out';
}

/** The key of a lane's stream: bulk has `:bulk` behind the configured name. */
export function streamKey(options: BrokerOptions, lane: Lane): string {
  return `${options.keyPrefix}${options.stream}${lane === 'bulk' ? ':bulk' : ''}`;
}

/** True for the error of a group or stream that was flushed away, before a read or under it. */
export function isNoGroup(error: unknown): boolean {
  return (
    error instanceof Error && (error.message.startsWith('NOGROUP') || error.message.startsWith('UNBLOCKED'))
  );
}
