import { writeSync } from 'node:fs';
import type { Reporter, SerializedError, TestModule } from 'vitest/node';

/**
 * Ends the output with `N passed, N failed`, for readers that do not know vitest's own summary. Written as the
 * process exits, so that nothing comes after it; a run that breaks off before its end counts as a failure.
 */
export default class FinalLine implements Reporter {
  #passed = 0;
  #failed = 1;

  onInit(): void {
    process.once('exit', () => writeSync(1, `${this.#passed} passed, ${this.#failed} failed\n`));
  }

  onTestRunEnd(modules: readonly TestModule[], unhandled: readonly SerializedError[], reason: string): void {
    const tests = modules.flatMap((module) => [...module.children.allTests()]);
    this.#passed = tests.filter((test) => test.result().state === 'passed').length;
    const failedTests = tests.filter((test) => test.result().state === 'failed').length;
    const broken = modules.filter((module) => module.errors().length > 0).length; // files that did not load
    this.#failed = failedTests + broken + unhandled.length;
    if (reason === 'interrupted' || (reason === 'failed' && this.#failed === 0)) this.#failed += 1;
  }
}
