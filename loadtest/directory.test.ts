import { existsSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { makeDirectory } from './directory.ts';
import { createTeardown } from './teardown.ts';

describe('the scratch space of a run', () => {
  it('is gone with its last part', async () => {
    const [first, second] = [createTeardown(), createTeardown()];
    const one = makeDirectory(first, { keep: false, part: 'one' });
    const other = makeDirectory(second, { keep: false, part: 'other' });
    writeFileSync(join(one, 'file'), 'x');
    expect(dirname(one)).toBe(dirname(other));
    await first.run();
    expect([existsSync(one), existsSync(other)]).toEqual([false, true]);
    await second.run();
    expect(existsSync(dirname(one))).toBe(false);
  });
});
