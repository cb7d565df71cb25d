import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { Batcher } from './batcher.ts';
import { pause } from './pause.ts';

interface Flush<T> {
  items: T[];
  finish: () => void;
}

/** A batcher whose flushes end when the test says so. */
function givenBatcher(
  options: { maxBatch?: number; lingerMs?: number; lanes?: number; weigh?: (item: number) => number } = {},
) {
  const flushes: Flush<number>[] = [];
  const batcher = new Batcher<number>({
    maxBatch: options.maxBatch ?? 4,
    lingerMs: options.lingerMs ?? 20,
    lanes: options.lanes ?? 1,
    ...(options.weigh ? { weigh: options.weigh } : {}),
    flush: (items) => new Promise((finish) => flushes.push({ items, finish })),
  });
  return {
    batcher,
    flushes,
    addAll: (...items: number[]) => items.forEach((item) => void batcher.add(item)),
  };
}

const nextTurn = () => new Promise((resolve) => setImmediate(resolve));
const turns = async () => {
  for (let n = 0; n < 3; n += 1) await nextTurn();
};

describe('a batcher that is quiet', () => {
  it('writes what came in this turn together, in the next', async () => {
    const { flushes, addAll } = givenBatcher({ lingerMs: 10_000 });
    addAll(1, 2, 3);
    expect(flushes).toEqual([]);
    await nextTurn();
    expect(flushes.map(({ items }) => items)).toEqual([[1, 2, 3]]);
  });

  it('is idle: draining it takes no time', async () => {
    const { batcher } = givenBatcher();
    await batcher.drain();
    expect([batcher.queued, batcher.running]).toEqual([0, 0]);
  });
});

describe('a batcher that is busy', () => {
  it('gathers while every lane is taken, and writes all of it next', async () => {
    const { batcher, flushes, addAll } = givenBatcher({ lingerMs: 5, maxBatch: 10 });
    addAll(1);
    await nextTurn();
    addAll(2, 3);
    await pause(20);
    addAll(4);
    expect([flushes.length, batcher.queued, batcher.running]).toEqual([1, 3, 1]);
    flushes[0]!.finish();
    await expect.poll(() => flushes.length).toBe(2);
    expect(flushes[1]!.items).toEqual([2, 3, 4]);
  });

  it('uses another lane after the linger time, and at once for a full batch', async () => {
    const { flushes, addAll } = givenBatcher({ lanes: 3, lingerMs: 30, maxBatch: 3 });
    addAll(1);
    await turns();
    addAll(2);
    await turns();
    expect(flushes.length).toBe(1);
    await expect.poll(() => flushes.length, { interval: 5 }).toBe(2);
    addAll(3, 4, 5, 6);
    expect(flushes.map(({ items }) => items)).toEqual([[1], [2], [3, 4, 5]]);
  });

  it('never runs more flushes than lanes, nor larger ones than it may', async () => {
    const { batcher, flushes, addAll } = givenBatcher({ lanes: 2, maxBatch: 3, lingerMs: 0 });
    addAll(...Array.from({ length: 20 }, (_, n) => n));
    await turns();
    expect([flushes.length, batcher.running, batcher.queued]).toEqual([2, 2, 14]);
    for (let done = 0; done < 7; done += 1) {
      await expect.poll(() => flushes.length).toBeGreaterThan(done);
      expect(batcher.running).toBeLessThanOrEqual(2);
      flushes[done]!.finish();
    }
    expect(flushes.every(({ items }) => items.length <= 3)).toBe(true);
    expect(flushes.flatMap(({ items }) => items)).toEqual(Array.from({ length: 20 }, (_, n) => n));
  });

  it('is drained when the last flush has ended, for everybody who waits', async () => {
    const { batcher, flushes, addAll } = givenBatcher({ maxBatch: 2 });
    let drained = 0;
    addAll(1, 2, 3);
    const waiting = [batcher.drain(), batcher.drain()].map((drain) => drain.then(() => (drained += 1)));
    await turns();
    flushes[0]!.finish();
    await expect.poll(() => flushes.length).toBe(2);
    expect(drained).toBe(0);
    flushes[1]!.finish();
    await Promise.all(waiting);
    expect([batcher.queued, batcher.running]).toEqual([0, 0]);
  });
});

describe('items that weigh', () => {
  it('fill a batch by their weight, are never divided, and go alone when they are heavier than one', async () => {
    const { flushes, addAll } = givenBatcher({ maxBatch: 10, lanes: 9, lingerMs: 0, weigh: (item) => item });
    addAll(4, 5);
    expect(flushes).toEqual([]);
    addAll(25, 3, 3, 8, 10);
    await turns();
    expect(flushes.map(({ items }) => items)).toEqual([[4, 5], [25], [3, 3], [8], [10]]);
  });
});

describe('whatever is added, whenever', () => {
  it('is written once, in order, and draining ends', async () => {
    const script = fc.array(fc.record({ count: fc.nat(12), waitMs: fc.constantFrom(0, 0, 1, 3) }), {
      maxLength: 12,
    });
    const settings = fc.record({
      maxBatch: fc.integer({ min: 1, max: 5 }),
      lanes: fc.integer({ min: 1, max: 3 }),
      lingerMs: fc.constantFrom(0, 1, 4),
      heaviest: fc.integer({ min: 1, max: 7 }),
    });
    await fc.assert(
      fc.asyncProperty(script, settings, async (steps, options) => {
        const begun: number[] = [];
        const weigh = (item: number) => 1 + (item % options.heaviest);
        const batcher = new Batcher<number>({
          ...options,
          weigh,
          async flush(items) {
            const weight = items.reduce((sum, item) => sum + weigh(item), 0);
            if (items.length > 1) expect(weight).toBeLessThanOrEqual(options.maxBatch);
            begun.push(...items);
            await (items.length % 2 ? nextTurn() : pause(1));
          },
        });
        let next = 0;
        for (const { count, waitMs } of steps) {
          for (let n = 0; n < count; n += 1) batcher.add(next++);
          if (waitMs > 0) await pause(waitMs);
        }
        await batcher.drain();
        expect(begun).toEqual(Array.from({ length: next }, (_, n) => n));
      }),
      { numRuns: 40 },
    );
  });

  it('in great number costs no more than its length', async () => {
    let written = 0;
    const batcher = new Batcher<number>({
      maxBatch: 10,
      lanes: 1,
      lingerMs: 0,
      async flush(items) {
        written += items.length;
      },
    });
    for (let n = 0; n < 200_000; n += 1) batcher.add(n);
    const started = performance.now();
    await batcher.drain();
    expect(written).toBe(200_000);
    expect(performance.now() - started).toBeLessThan(5_000);
  });
});
