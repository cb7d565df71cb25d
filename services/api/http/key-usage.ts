import type { Logger } from '../../../lib/runtime/log.ts';

const FLUSH_EVERY_MS = 10_000;

/** Gathers which keys were used, and writes it down now and then, so that no request waits for it or pays for it. */
export class KeyUsage {
  readonly #write: (keyIds: string[]) => Promise<void>;
  readonly #log: Logger;
  readonly #timer: NodeJS.Timeout;
  #used = new Set<string>();

  constructor(write: (keyIds: string[]) => Promise<void>, log: Logger) {
    this.#write = write;
    this.#log = log;
    this.#timer = setInterval(() => void this.flush(), FLUSH_EVERY_MS).unref();
  }

  note(keyId: string | null): void {
    if (keyId !== null) this.#used.add(keyId);
  }

  /** Writes what was gathered; a failure loses a time of use and nothing else. */
  async flush(): Promise<void> {
    if (this.#used.size === 0) return;
    const used = [...this.#used];
    this.#used = new Set();
    try {
      await this.#write(used);
    } catch (err) {
      this.#log.debug({ err }, 'the use of keys could not be noted');
    }
  }

  async stop(): Promise<void> {
    clearInterval(this.#timer);
    await this.flush();
  }
}
