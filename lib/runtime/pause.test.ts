import { getEventListeners } from 'node:events';
import { describe, expect, it } from 'vitest';
import { pause } from './pause.ts';

describe('a pause', () => {
  it('lasts its time', async () => {
    const started = performance.now();
    await pause(30);
    expect(performance.now() - started).toBeGreaterThanOrEqual(29);
  });

  it('ends early with its signal, before or during it, and leaves no listener on it', async () => {
    const stop = new AbortController();
    const started = performance.now();
    const pausing = pause(60_000, stop.signal);
    stop.abort();
    await pausing;
    await pause(60_000, stop.signal);
    expect(performance.now() - started).toBeLessThan(1_000);
    await pause(1, new AbortController().signal);
    expect(getEventListeners(stop.signal, 'abort')).toEqual([]);
  });
});
