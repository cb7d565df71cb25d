import type { Redis } from 'ioredis';
import { LANES, type Lane } from '../domain/vocabulary.ts';
import { type BrokerOptions, createCommandClient, isTimeout, streamKey } from './client.ts';

const PROBE_EVERY_MS = 500;
const FAILURES_UNTIL_AWAY = 2;

export interface LinkOptions extends BrokerOptions {
  /** Told when Redis goes away or comes back. */
  onChange?: (up: boolean, reason: string) => void;
}

/**
 * The process's link to Redis, and its judgement whether Redis is there. The probe is "make the group unless it exists": it proves that
 * Redis answers and takes writes (a full or read-only Redis is as good as none), and it heals a flushed group within a second wherever a
 * process of Relay lives. The lanes take turns, so that an idle process costs Redis no more commands for having two.
 */
export class RedisLink {
  readonly client: Redis;
  readonly options: BrokerOptions;
  readonly #onChange: LinkOptions['onChange'];
  #up = false;
  #turn: Lane = 'express';
  #failures = 0;
  #timer: NodeJS.Timeout | null = null;
  #stopped = false;

  constructor(options: LinkOptions) {
    this.options = options;
    this.#onChange = options.onChange;
    this.client = createCommandClient(options);
  }

  /** Makes both groups, waiting up to 2 s for the first connection, then goes on probing. */
  async start(): Promise<this> {
    const deadline = performance.now() + 2_000;
    while (!(await this.#probe(LANES)) && performance.now() < deadline) {
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    if (!this.#up) this.#onChange?.(false, 'no answer at start');
    this.#schedule();
    return this;
  }

  get up(): boolean {
    return this.#up;
  }

  /** Whether there is a connection, on which Redis may yet refuse to write. */
  get connected(): boolean {
    return this.client.status === 'ready';
  }

  /** Called by whoever was refused: a refused write is better evidence than a good probe half a second ago. */
  reportFailure(error: unknown): void {
    this.#fail(error);
  }

  /** Makes a lane's group at the beginning of its stream, so that what was announced before it is read too. */
  async ensureGroup(lane: Lane): Promise<void> {
    try {
      await this.client.xgroup('CREATE', streamKey(this.options, lane), this.options.group, '0', 'MKSTREAM');
    } catch (error) {
      if (!(error instanceof Error) || !error.message.startsWith('BUSYGROUP')) throw error;
    }
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    if (this.#timer) clearTimeout(this.#timer);
    this.client.disconnect();
  }

  #schedule(): void {
    this.#timer = setTimeout(() => {
      this.#turn = this.#turn === 'express' ? 'bulk' : 'express';
      void this.#probe([this.#turn]).then(() => {
        if (!this.#stopped) this.#schedule();
      });
    }, PROBE_EVERY_MS);
  }

  async #probe(lanes: readonly Lane[]): Promise<boolean> {
    try {
      await Promise.all(lanes.map((lane) => this.ensureGroup(lane)));
      this.#failures = 0;
      this.#set(true, 'answers');
      return true;
    } catch (error) {
      this.#fail(error);
      return false;
    }
  }

  #fail(error: unknown): void {
    this.#failures += 1;
    // One late answer on a busy machine is no outage; a closed connection, or a second failure, is.
    if (this.#failures >= FAILURES_UNTIL_AWAY || this.client.status !== 'ready') {
      this.#set(false, error instanceof Error ? error.message : String(error));
      // Answers that never come may be the end of this connection alone, which its client would not notice for minutes.
      if (isTimeout(error) && this.client.status === 'ready') this.client.disconnect(true);
    }
  }

  #set(up: boolean, reason: string): void {
    if (this.#stopped || up === this.#up) return;
    this.#up = up;
    this.#onChange?.(up, reason);
  }
}
