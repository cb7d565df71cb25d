/** A first pass over a flood may not take more of the machine than this leaves: a deferral costs two rows' worth of writing. */
const PER_SECOND = 2_000;
const BURST = 256;

/** How many deferrals a process may still write at this moment; while there are none left it takes in nothing from the bulk lane. */
export class DeferralBudget {
  #left = BURST;
  #at = performance.now();

  note(): void {
    this.#left -= 1;
  }

  get exhausted(): boolean {
    const now = performance.now();
    this.#left = Math.min(BURST, this.#left + ((now - this.#at) / 1000) * PER_SECOND);
    this.#at = now;
    return this.#left <= 0;
  }
}
