interface Step {
  name: string;
  stop: () => Promise<void>;
}

/** What has been started, to be stopped in the opposite order, each thing even when another fails. */
export class Stops {
  readonly #steps: Step[] = [];

  /** Null: there is nothing to stop. */
  add(name: string, stop: (() => Promise<void>) | null): void {
    if (stop) this.#steps.push({ name, stop });
  }

  /** Tells of each step before it is taken, and of those that failed. */
  async run(say: (line: string) => void): Promise<void> {
    for (let step = this.#steps.pop(); step; step = this.#steps.pop()) {
      say(`stopping ${step.name}`);
      try {
        await step.stop();
      } catch (error) {
        say(`${step.name} did not stop cleanly: ${error instanceof Error ? error.message : error}`);
      }
    }
  }
}
