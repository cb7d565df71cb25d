import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    include: ['lib/**/*.test.ts', 'services/**/*.test.ts', 'loadtest/**/*.test.ts'],
    exclude: ['dist/**', 'node_modules/**', '.relay/**'],
    // Real processes: tests spawn servers whose life the kernel ties to the main thread that started them.
    pool: 'forks',
    maxWorkers: 2,
    testTimeout: 30_000,
    hookTimeout: 60_000,
    teardownTimeout: 30_000,
    globalSetup: ['services/testing/global-setup.ts'],
    reporters: ['default', './services/testing/reporter.ts'],
  },
});
