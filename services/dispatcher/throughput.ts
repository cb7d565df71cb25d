const WINDOW_MS = 1_000;

/** Completions per second over about the last second. */
export class Throughput {
  #windowStart = performance.now();
  #count = 0;
  #perSecond = 0;

  note(): void {
    this.#count += 1;
  }

  perSecond(now: number): number {
    const elapsed = now - this.#windowStart;
    if (elapsed >= WINDOW_MS) {
      this.#perSecond = (this.#count * 1000) / elapsed;
      this.#count = 0;
      this.#windowStart = now;
    }
    return this.#perSecond;
  }
}
