import type { Redis } from 'ioredis';
import { pause } from '../runtime/pause.ts';
import { createBlockingClient } from './client.ts';
import type { RedisLink } from './link.ts';

/** A reply may be late by this much before its connection counts as dead. */
const WATCHDOG_MARGIN_MS = 2_000;
const READY_WITHIN_MS = 1_000;
const INTERRUPT_AGAIN_MS = 20;

export interface BlockingReaderOptions {
  /** How long a read waits on the server, ms. */
  blockMs: number;
  /** Told of a read that did not come back in time. */
  onStall?: () => void;
}

/** A connection for one blocking read at a time. It is replaced when a read does not come back in time. */
export class BlockingReader {
  readonly #link: RedisLink;
  readonly #options: BlockingReaderOptions;
  #client: Redis | null = null;
  /** What Redis calls the connection; null until it has said so. */
  #clientId: number | null = null;

  constructor(link: RedisLink, options: BlockingReaderOptions) {
    this.#link = link;
    this.#options = options;
  }

  /** Runs one read; `signal` ends its wait at once, and it then returns what an empty read returns. Throws when Redis is away. */
  async run<T>(read: (client: Redis) => Promise<T>, signal?: AbortSignal): Promise<T | null> {
    const client = await this.#connected();
    if (signal?.aborted) return null;
    return this.#interruptible(this.#watch(read(client)), signal);
  }

  close(): void {
    if (this.#client) this.#drop(this.#client);
  }

  async #connected(): Promise<Redis> {
    const client = this.#client ?? this.#create();
    if (client.status === 'ready') return client;
    await new Promise<void>((resolve, reject) => {
      const settle = (error?: Error) => {
        clearTimeout(timer);
        client.off('ready', onReady);
        error ? reject(error) : resolve();
      };
      const onReady = () => settle();
      // A connection that was begun while nobody answered may never become ready: the next read begins another.
      const timer = setTimeout(() => {
        this.#drop(client);
        settle(new Error('the reading connection to Redis is not ready'));
      }, READY_WITHIN_MS);
      client.once('ready', onReady);
    });
    return client;
  }

  #create(): Redis {
    const client = createBlockingClient(this.#link.options);
    this.#client = client;
    client.on('ready', () => {
      this.#clientId = null;
      client.client('ID').then(
        (id) => {
          if (this.#client === client) this.#clientId = id;
        },
        () => undefined,
      );
    });
    return client;
  }

  #drop(client: Redis): void {
    client.disconnect();
    if (this.#client === client) this.#client = null;
  }

  // After a break some clients look ready while the read that was pending never settles: a read that is late by more than the margin
  // means a dead socket, whatever the client says.
  async #watch<T>(read: Promise<T>): Promise<T> {
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => {
        this.#options.onStall?.();
        this.close();
        reject(new Error('a blocking read did not come back in time; its connection is replaced'));
      }, this.#options.blockMs + WATCHDOG_MARGIN_MS);
    });
    read.catch(() => undefined);
    try {
      return await Promise.race([read, late]);
    } finally {
      clearTimeout(timer);
    }
  }

  // Redis itself ends the wait: closing the connection could lose a reply that is on its way, and its ids would lie under this consumer's
  // name until others take them over.
  async #interruptible<T>(read: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
    let done = false;
    const interrupt = async () => {
      while (!done && this.#link.connected) {
        // The two connections race: a read that has not arrived there cannot be ended yet.
        if (this.#clientId !== null)
          await this.#link.client.client('UNBLOCK', this.#clientId).catch(() => undefined);
        await pause(INTERRUPT_AGAIN_MS);
      }
    };
    const onAbort = () => void interrupt();
    signal?.addEventListener('abort', onAbort, { once: true });
    try {
      return await read;
    } finally {
      done = true;
      signal?.removeEventListener('abort', onAbort);
    }
  }
}
