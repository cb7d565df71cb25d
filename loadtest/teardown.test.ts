import { describe, expect, it } from 'vitest';
import { createTeardown } from './teardown.ts';

describe('a teardown', () => {
  it('undoes the last thing first, and each thing once', async () => {
    const undone: string[] = [];
    const teardown = createTeardown();
    for (const name of ['database', 'service']) teardown.add(() => void undone.push(name));
    await teardown.run();
    await teardown.run();
    expect(undone).toEqual(['service', 'database']);
  });

  it('undoes the rest when one thing fails, and then says so', async () => {
    const undone: string[] = [];
    const teardown = createTeardown();
    teardown.add(() => void undone.push('database'));
    teardown.add(() => Promise.reject(new Error('stuck')));
    await expect(teardown.run()).rejects.toThrow('stuck');
    expect(undone).toEqual(['database']);
  });
});
