import { Client } from 'undici';
import type { Dial, GuardedConnect } from './guard.ts';
import { SILENT_CLOSE_MS, SilentClosers } from './silent-closers.ts';

/** One undici Client with one socket, for one request at a time. Whoever took it gives it back or discards it. */
export interface Connection {
  readonly client: Client;
  readonly dial: Dial;
  readonly origin: Origin;
  /** False for an origin that would close it silently: ask for its close, so that both sides agree. */
  readonly keep: boolean;
  /** performance.now() */
  readonly createdAt: number;
  /** Responses read to their end. */
  served: number;
  releasedAt: number;
}

interface Origin {
  readonly url: string;
  /** Most recently used last, so that few connections stay warm and the rest time out. */
  readonly idle: Connection[];
  total: number;
}

export interface ConnectionsOptions {
  connect: GuardedConnect;
  maxIdle: number;
  maxIdleMs: number;
}

/** A connection that is always busy would never see its name's new address, so it is retired at this age. */
const MAX_AGE_MS = 60_000;

/** A server that says how long it keeps idle connections is believed, less this for the way of its FIN. */
const KEEP_ALIVE_MARGIN_MS = 1_000;

const NOTHING = () => {};

/**
 * Idle connections by origin, bounded over all origins. undici's Agent keeps a pool for every origin it ever saw (27 KB
 * each, and no limit that evicts); here an origin without a connection leaves nothing behind.
 */
export class Connections {
  readonly #options: ConnectionsOptions;
  readonly #origins = new Map<string, Origin>();
  readonly #all = new Set<Connection>();
  /** In the order of their release: the first is the one that has been idle for longest. */
  readonly #idle = new Set<Connection>();
  readonly #silentClosers = new SilentClosers();
  #dialled = 0;

  constructor(options: ConnectionsOptions) {
    this.#options = options;
  }

  get counts(): { idle: number; busy: number; origins: number; dialled: number } {
    const idle = this.#idle.size;
    return { idle, busy: this.#all.size - idle, origins: this.#origins.size, dialled: this.#dialled };
  }

  /** An idle connection to this origin, or null. */
  takeIdle(url: string): Connection | null {
    const connection = this.#origins.get(url)?.idle.pop();
    if (connection === undefined) return null;
    this.#idle.delete(connection);
    return connection;
  }

  /** A new connection; it is dialled when its first request is dispatched. */
  open(url: string): Connection {
    const origin = this.#originOf(url);
    origin.total++;
    const dial: Dial = { phase: 'resolving', socket: null, error: null };
    const client = new Client(url, {
      connect: (options: Parameters<GuardedConnect>[1], callback: Parameters<GuardedConnect>[2]) => {
        this.#dialled++;
        this.#options.connect(dial, options, callback);
      },
      pipelining: 1,
      headersTimeout: 0,
      bodyTimeout: 0,
      keepAliveTimeout: this.#options.maxIdleMs,
      keepAliveMaxTimeout: this.#options.maxIdleMs,
      keepAliveTimeoutThreshold: Math.min(KEEP_ALIVE_MARGIN_MS, this.#options.maxIdleMs),
    });
    const createdAt = performance.now();
    const keep = !this.#silentClosers.has(url);
    const connection: Connection = { client, dial, origin, keep, createdAt, served: 0, releasedAt: 0 };
    client.on('disconnect', () => this.#onDisconnect(connection));
    this.#all.add(connection);
    return connection;
  }

  /** Takes back a connection whose response has been read to its end. */
  release(connection: Connection): void {
    if (!this.#all.has(connection)) return;
    const now = performance.now();
    connection.served++;
    if (connection.served === 2) this.#silentClosers.acquit(connection.origin.url);
    if (now - connection.createdAt > MAX_AGE_MS) {
      this.discard(connection);
      return;
    }
    connection.releasedAt = now;
    connection.origin.idle.push(connection);
    this.#idle.add(connection);
    if (this.#idle.size > this.#options.maxIdle) this.#evictOldest();
  }

  /** A request was written and the connection ended without a byte of an answer. */
  noteReset(connection: Connection): void {
    if (connection.served === 1) this.#silentClosers.strike(connection.origin.url);
  }

  /** Closes it now, half-open or in the middle of a response as it may be. */
  discard(connection: Connection, reason: Error | null = null): void {
    if (!this.#forget(connection)) return;
    connection.client.destroy(reason, NOTHING);
    connection.dial.socket?.destroy();
  }

  /** Discards all and resolves when their sockets are closed. Requests under way fail with `reason`. */
  async close(reason: Error): Promise<void> {
    const closed = [...this.#all].map((connection) => {
      const { socket } = connection.dial;
      this.discard(connection, reason);
      return socket === null || socket.closed
        ? null
        : new Promise((resolve) => socket.once('close', resolve));
    });
    await Promise.all(closed);
  }

  /** Closed by the server, or by undici after maxIdleMs: not to be handed out. A busy one is its exchange's affair. */
  #onDisconnect(connection: Connection): void {
    if (!this.#idle.has(connection)) return;
    const idleForMs = performance.now() - connection.releasedAt;
    const byServer = idleForMs < Math.min(SILENT_CLOSE_MS, this.#options.maxIdleMs);
    if (connection.served === 1 && byServer) this.#silentClosers.strike(connection.origin.url);
    this.discard(connection);
  }

  #originOf(url: string): Origin {
    const known = this.#origins.get(url);
    if (known !== undefined) return known;
    const origin: Origin = { url, idle: [], total: 0 };
    this.#origins.set(url, origin);
    return origin;
  }

  #evictOldest(): void {
    const [oldest] = this.#idle;
    if (oldest !== undefined) this.discard(oldest);
  }

  #forget(connection: Connection): boolean {
    if (!this.#all.delete(connection)) return false;
    const { origin } = connection;
    if (this.#idle.delete(connection)) origin.idle.splice(origin.idle.indexOf(connection), 1);
    origin.total--;
    if (origin.total === 0) this.#origins.delete(origin.url);
    return true;
  }
}
