/** So many may be inside; who comes later waits in line for a while. */
export class Places {
  #free: number;
  readonly #line: ((taken: boolean) => void)[] = [];

  constructor(count: number) {
    this.#free = count;
  }

  /** True with a place, which is to be given back; false when none was free within the time, ms. */
  take(waitMs: number): Promise<boolean> {
    if (this.#free > 0) {
      this.#free -= 1;
      return Promise.resolve(true);
    }
    return new Promise((resolve) => {
      const timer = setTimeout(() => {
        this.#line.splice(this.#line.indexOf(called), 1);
        resolve(false);
      }, waitMs);
      const called = (taken: boolean) => {
        clearTimeout(timer);
        resolve(taken);
      };
      this.#line.push(called);
    });
  }

  giveBack(): void {
    const next = this.#line.shift();
    if (next) next(true);
    else this.#free += 1;
  }
}
