import type { Logger } from '../../lib/runtime/log.ts';
import { Loop } from '../../lib/runtime/loop.ts';
import { listenQueue, type QueueListener } from '../../lib/store/wake.ts';

const MODE_CHECK_MS = 250;
const ROOM_CHECK_MS = 20;

export interface PollSourceOptions {
  /** Reaches Postgres itself: LISTEN needs a session of its own. */
  databaseUrl: string;
  pollMode: () => boolean;
  wanted: () => number;
  /** Claims up to so many due rows; returns how many it got. */
  poll: (limit: number) => Promise<number>;
  idleMs: number;
  log: Logger;
}

/**
 * Finds work in the queue itself while the fleet is in poll mode: at once while there is more, otherwise when it is notified of a commit or the idle
 * time has passed. The notification only saves time; whatever it misses the next poll finds.
 */
export class PollSource {
  readonly loops: readonly Loop[];
  readonly #options: PollSourceOptions;
  readonly #polling: Loop;
  #listener: QueueListener | null = null;

  constructor(options: PollSourceOptions) {
    this.#options = options;
    const { log } = options;
    this.#polling = new Loop({ name: 'poll', log, round: () => this.#poll(), maxBackoffMs: 1_000 });
    const listening = new Loop({
      name: 'poll-listen',
      log,
      round: (signal) => this.#listen(signal),
      maxBackoffMs: 2_000,
    });
    this.loops = [this.#polling, listening];
  }

  start(): this {
    for (const loop of this.loops) loop.start();
    return this;
  }

  async stop(): Promise<void> {
    await Promise.all(this.loops.map((loop) => loop.stop()));
    await this.#listener?.close().catch(() => undefined);
  }

  async #poll(): Promise<number> {
    const { pollMode, wanted, poll, idleMs } = this.#options;
    if (!pollMode()) return MODE_CHECK_MS;
    const limit = wanted();
    if (limit <= 0) return ROOM_CHECK_MS;
    if ((await poll(limit)) === limit) return 0;
    // One notification wakes all dispatchers. Of those that then go on in step, the one a moment ahead finds everything that came due, and the
    // others' parts of the rates go unused.
    return idleMs * (0.5 + Math.random() / 2);
  }

  /** Keeps a listening connection while the mode lasts. */
  async #listen(signal: AbortSignal): Promise<number> {
    const { pollMode, databaseUrl } = this.#options;
    if (pollMode() && !this.#listener) {
      this.#listener = await listenQueue(databaseUrl, 'relay-dispatcher-listen', () => this.#polling.wake());
      void this.#listener.ended.then(() => {
        this.#listener = null;
      });
    }
    if ((!pollMode() || signal.aborted) && this.#listener) await this.#listener.close();
    return MODE_CHECK_MS;
  }
}
