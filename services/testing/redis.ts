import { randomBytes } from 'node:crypto';
import { inject } from 'vitest';

/** The run's shared Redis, and a prefix for every key, stream and group that a test file makes in it. */
export function createTestRedis(): { url: string; prefix: string } {
  return { url: inject('redisUrl'), prefix: `test-${process.pid}-${randomBytes(4).toString('hex')}` };
}
