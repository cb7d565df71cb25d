import { getEventListeners } from 'node:events';
import { pino } from 'pino';
import { afterEach, describe, expect, it } from 'vitest';
import { Loop, type LoopOptions } from './loop.ts';
import { pause } from './pause.ts';

const loops: Loop[] = [];
afterEach(async () => {
  await Promise.all(loops.splice(0).map((loop) => loop.stop()));
});

function givenLoop(options: Partial<LoopOptions> & Pick<LoopOptions, 'round'>) {
  const lines: { level: number; msg: string; failures?: number }[] = [];
  const log = pino({}, { write: (line: string) => void lines.push(JSON.parse(line)) });
  const loop = new Loop({ name: 'test', log, ...options });
  loops.push(loop);
  return { loop, lines };
}

describe('a loop', () => {
  it('runs again after the wait that its round asked for, or at once', async () => {
    const at: number[] = [];
    const waits = [0, 60, 10_000];
    givenLoop({ round: async () => waits[at.push(performance.now()) - 1] ?? 10_000 }).loop.start();
    await expect.poll(() => at.length).toBe(3);
    expect(at[1]! - at[0]!).toBeLessThan(1_000);
    expect(at[2]! - at[1]!).toBeGreaterThanOrEqual(58);
  });

  it('lets others run between rounds that ask for no wait', async () => {
    let rounds = 0;
    const { loop } = givenLoop({
      round: async () => {
        rounds += 1;
        return 0;
      },
    });
    loop.start();
    await pause(20);
    await loop.stop();
    expect(rounds).toBeGreaterThan(1);
  });

  it('is woken out of its wait', async () => {
    let rounds = 0;
    const { loop } = givenLoop({
      round: async () => {
        rounds += 1;
        return 60_000;
      },
    });
    loop.start();
    await expect.poll(() => rounds).toBe(1);
    loop.wake();
    await expect.poll(() => rounds).toBe(2);
    await pause(20);
    expect(rounds).toBe(2);
  });

  it('does not forget a wake-up that came while its round ran', async () => {
    let rounds = 0;
    let end = () => {};
    const { loop } = givenLoop({
      round: () => {
        rounds += 1;
        return new Promise((resolve) => {
          end = () => resolve(60_000);
        });
      },
    });
    loop.start();
    loop.wake();
    end();
    await expect.poll(() => rounds).toBe(2);
    end();
    await pause(20);
    expect(rounds).toBe(2);
    const stopping = loop.stop();
    end();
    await stopping;
  });
});

describe('a loop whose rounds fail', () => {
  it('backs off, twice as long each time up to a bound, and never ends', async () => {
    const at: number[] = [];
    const { loop } = givenLoop({
      backoffMs: 10,
      maxBackoffMs: 40,
      round: async () => {
        at.push(performance.now());
        throw new Error('away');
      },
    });
    loop.start();
    await expect.poll(() => at.length, { timeout: 5_000 }).toBeGreaterThan(7);
    const gaps = at.slice(1).map((time, n) => time - at[n]!);
    expect(gaps[0]).toBeGreaterThanOrEqual(9);
    expect(gaps[1]).toBeGreaterThanOrEqual(19);
    for (const gap of gaps.slice(2, 7)) expect(gap).toBeGreaterThanOrEqual(39);
    expect(Math.min(...gaps.slice(2, 7))).toBeLessThan(80);
    expect(loop.failing).toBe(true);
  });

  it('says so at every doubling of their number, and when it works again', async () => {
    let rounds = 0;
    const { loop, lines } = givenLoop({
      backoffMs: 1,
      maxBackoffMs: 1,
      round: async () => {
        rounds += 1;
        if (rounds <= 10) throw new Error('away');
        return 60_000;
      },
    });
    loop.start();
    await expect.poll(() => lines.length).toBe(5);
    expect(loop.failing).toBe(false);
    expect(lines.map(({ failures }) => failures)).toEqual([1, 2, 4, 8, 10]);
    expect(lines.at(-1)).toMatchObject({ level: 30, msg: 'loop works again' });
  });

  it('shows the age of its last good round', async () => {
    let fail = false;
    const { loop } = givenLoop({
      backoffMs: 5,
      maxBackoffMs: 5,
      round: async () => {
        if (fail) throw new Error('away');
        return 5;
      },
    });
    loop.start();
    await pause(60);
    await expect.poll(() => loop.ageMs, { interval: 3 }).toBeLessThan(50);
    fail = true;
    await expect.poll(() => loop.ageMs).toBeGreaterThan(100);
  });

  it('is not hurried by a wake-up: what wakes it is likely what fails', async () => {
    let rounds = 0;
    const { loop } = givenLoop({
      backoffMs: 60_000,
      maxBackoffMs: 60_000,
      round: async () => {
        rounds += 1;
        throw new Error('away');
      },
    });
    loop.start();
    await expect.poll(() => rounds).toBe(1);
    loop.wake();
    await pause(30);
    expect(rounds).toBe(1);
  });

  it('leaves nothing behind on the signal that it hands to its rounds', async () => {
    let seen: AbortSignal | null = null;
    let rounds = 0;
    const { loop } = givenLoop({
      backoffMs: 1,
      maxBackoffMs: 1,
      round: async (signal) => {
        seen = signal;
        rounds += 1;
        throw new Error('away');
      },
    });
    loop.start();
    await expect.poll(() => rounds).toBeGreaterThan(20);
    expect(getEventListeners(seen!, 'abort').length).toBeLessThanOrEqual(1);
  });
});

describe('a loop that is stopped', () => {
  it.each(['waiting', 'backing off'])('while %s ends at once', async (state) => {
    const { loop } = givenLoop({
      backoffMs: 60_000,
      maxBackoffMs: 60_000,
      round: async () => {
        if (state === 'waiting') return 60_000;
        throw new Error('away');
      },
    });
    loop.start();
    await pause(20);
    const started = performance.now();
    await loop.stop();
    expect(performance.now() - started).toBeLessThan(500);
  });

  it('waits for the round that runs, which is told to hurry', async () => {
    const steps: string[] = [];
    const { loop } = givenLoop({
      async round(signal) {
        steps.push('begun');
        await pause(60_000, signal);
        steps.push('hurried');
        return 0;
      },
    });
    loop.start();
    await pause(10);
    await loop.stop();
    steps.push('stopped');
    expect(steps).toEqual(['begun', 'hurried', 'stopped']);
  });

  it('or never started is fine', async () => {
    await givenLoop({ round: async () => 0 }).loop.stop();
  });
});
