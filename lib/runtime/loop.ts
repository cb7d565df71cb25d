import type { Logger } from './log.ts';

export interface LoopOptions {
  name: string;
  log: Logger;
  /** One bounded round; returns how long to wait before the next, in milliseconds (0: at once). */
  round: (signal: AbortSignal) => Promise<number>;
  /** The wait after the first failed round; it doubles up to `maxBackoffMs`. */
  backoffMs?: number;
  maxBackoffMs?: number;
}

/**
 * A loop that never ends after an error: it logs, backs off and runs again, for ever, and tells the age of its last good round.
 * A failure that repeats is logged once for each doubling of its count, so that an outage fills no disk.
 */
export class Loop {
  readonly name: string;
  readonly #options: LoopOptions;
  readonly #abort = new AbortController();
  #wake: (() => void) | null = null;
  #wokenEarly = false;
  #lastGoodAt = performance.now();
  #failures = 0;
  #done: Promise<void> = Promise.resolve();

  constructor(options: LoopOptions) {
    this.name = options.name;
    this.#options = options;
  }

  start(): this {
    this.#done = this.#run();
    return this;
  }

  /** Runs the next round now instead of after its wait. */
  wake(): void {
    this.#wokenEarly = true;
    this.#wake?.();
  }

  /** Ends the loop after the round that is running; `signal` tells that round to hurry. */
  async stop(): Promise<void> {
    this.#abort.abort();
    this.#wake?.();
    await this.#done;
  }

  get ageMs(): number {
    return performance.now() - this.#lastGoodAt;
  }

  get failing(): boolean {
    return this.#failures > 0;
  }

  async #run(): Promise<void> {
    const { signal } = this.#abort;
    while (!signal.aborted) {
      const waitMs = await this.#round(signal);
      if (!signal.aborted) await this.#sleep(waitMs);
    }
  }

  async #round(signal: AbortSignal): Promise<number> {
    try {
      const waitMs = await this.#options.round(signal);
      if (this.#failures > 0)
        this.#options.log.info({ loop: this.name, failures: this.#failures }, 'loop works again');
      this.#failures = 0;
      this.#lastGoodAt = performance.now();
      return waitMs;
    } catch (error) {
      return this.#backOff(error);
    }
  }

  #backOff(error: unknown): number {
    this.#failures += 1;
    const { name, log } = { name: this.name, log: this.#options.log };
    if ((this.#failures & (this.#failures - 1)) === 0) {
      log.warn({ loop: name, failures: this.#failures, err: error }, 'loop round failed; backing off');
    }
    const first = this.#options.backoffMs ?? 100;
    return Math.min(this.#options.maxBackoffMs ?? 5_000, first * 2 ** Math.min(this.#failures - 1, 20));
  }

  #sleep(waitMs: number): Promise<void> {
    if (this.#wokenEarly && this.#failures === 0) waitMs = 0;
    this.#wokenEarly = false;
    if (waitMs <= 0) return new Promise((resolve) => setImmediate(resolve));
    return new Promise((resolve) => {
      const finish = () => {
        clearTimeout(timer);
        this.#abort.signal.removeEventListener('abort', finish);
        this.#wake = null;
        this.#wokenEarly = false;
        resolve();
      };
      const timer = setTimeout(finish, waitMs);
      // A wake-up does not cut a back-off short: what woke us is likely what fails.
      this.#wake = this.#failures === 0 || this.#abort.signal.aborted ? finish : null;
      if (this.#failures > 0) this.#abort.signal.addEventListener('abort', finish, { once: true });
    });
  }
}
