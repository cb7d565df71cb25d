/** What must be undone when the run ends, however it ends: last made, first undone. */
export interface Teardown {
  add(undo: () => Promise<void> | void): void;
  /** Undoes everything, each thing even when another fails; the first failure is thrown at the end. */
  run(): Promise<void>;
}

export function createTeardown(): Teardown {
  const undos: (() => Promise<void> | void)[] = [];
  return {
    add: (undo) => void undos.push(undo),
    async run() {
      const failures: unknown[] = [];
      while (undos.length > 0) {
        try {
          await undos.pop()!();
        } catch (error) {
          failures.push(error);
        }
      }
      if (failures.length > 0) throw failures[0];
    },
  };
}
