import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { ReadyQueue } from './ready-queue.ts';

const SLOTS = 8;

function queue(slow: readonly string[] = []) {
  return new ReadyQueue<string>({ maxInFlight: SLOTS, isSlow: (endpointId) => slow.includes(endpointId) });
}

function admitMany(ready: ReadyQueue<string>, endpointId: string, count: number, cap = 100): string[] {
  return Array.from({ length: count }, () => ready.admit(endpointId, cap, endpointId, 0));
}

describe('slots of the process', () => {
  it('are held by slow endpoints for one half at most, however many there are', () => {
    const ready = queue(['s1', 's2', 's3']);
    for (const endpointId of ['s1', 's2', 's3']) admitMany(ready, endpointId, 3);
    expect(ready.inFlight).toBe(SLOTS / 2);
    expect(admitMany(ready, 'quick', SLOTS / 2)).toEqual(Array(SLOTS / 2).fill('start'));
    expect(ready.next()).toBeNull();
  });

  it('tell what will soon be done from what hangs', () => {
    const ready = queue(['hangs']);
    admitMany(ready, 'hangs', 4);
    admitMany(ready, 'quick', 2);
    expect([ready.inFlight, ready.quickInFlight]).toEqual([6, 2]);
    ready.setSlow('quick', true);
    expect(ready.quickInFlight).toBe(0);
    ready.setSlow('hangs', false);
    ready.finished('hangs');
    expect(ready.quickInFlight).toBe(3);
  });

  it('are free for others again when an endpoint turns out to be quick', () => {
    const ready = queue(['new']);
    admitMany(ready, 'new', 6);
    expect(ready.inFlight).toBe(SLOTS / 2);
    ready.setSlow('new', false);
    expect([ready.next(), ready.next(), ready.next()]).toEqual(['new', 'new', null]);
  });

  it('are held for one request to each endpoint that is new while slow ones fill their half, and always leave a quarter', () => {
    const known = new Map([
      ['slow', true],
      ['quick', false],
    ]);
    const ready = new ReadyQueue<string>({ maxInFlight: SLOTS, isSlow: (id) => known.get(id) ?? null });
    expect(admitMany(ready, 'slow', 5)).toEqual([...Array(4).fill('start'), 'queued']);
    expect(admitMany(ready, 'new-1', 2)).toEqual(['start', 'queued']);
    expect(admitMany(ready, 'new-2', 1)).toEqual(['start']);
    expect(admitMany(ready, 'new-3', 1)).toEqual(['queued']);
    expect(admitMany(ready, 'quick', 2)).toEqual(['start', 'start']);
    // Once it has been heard of, it is like any other slow one.
    ready.setSlow('new-1', true);
    ready.finished('new-1');
    expect(admitMany(ready, 'new-1', 1)).toEqual(['queued']);
    expect(ready.next()).toBeNull();
  });

  it('are not begun anew by an endpoint that turns slow while it holds more than half', () => {
    const ready = queue();
    admitMany(ready, 'e', 7);
    ready.setSlow('e', true);
    expect(ready.admit('e', 100, 'e', 0)).toBe('queued');
    expect(ready.next()).toBeNull();
    expect(ready.admit('quick', 100, 'quick', 0)).toBe('start');
  });

  it('go round by endpoint, slow and quick alike', () => {
    const ready = queue(['slow']);
    admitMany(ready, 'full', SLOTS);
    for (const endpointId of ['a', 'b', 'slow']) admitMany(ready, endpointId, 4);
    const begun: (string | null)[] = [];
    for (let n = 0; n < 6; n += 1) {
      ready.finished('full');
      begun.push(ready.next());
    }
    expect(begun.filter((id) => id === 'a').length).toBeGreaterThanOrEqual(1);
    expect(begun.filter((id) => id === 'b').length).toBeGreaterThanOrEqual(1);
    expect(begun.filter((id) => id === 'slow').length).toBeGreaterThanOrEqual(2);
  });
});

describe('what waits for its own endpoint', () => {
  it('does not count as work that the process could begin', () => {
    const ready = queue();
    admitMany(ready, 'e', 6, 2);
    expect([ready.inFlight, ready.ready, ready.startable]).toEqual([2, 4, 0]);
    ready.finished('e');
    expect(ready.startable).toBe(1);
  });

  it('is turned away when there is enough of it, so that others can come in', () => {
    const ready = queue();
    for (const n of [1, 2, 3, 4]) expect(admitMany(ready, `hanging ${n}`, 3, 1)).toContain('queued');
    expect(ready.ready).toBe(SLOTS);
    expect(admitMany(ready, 'hanging 5', 2, 1)).toEqual(['start', 'full']);
    expect(ready.admit('quick', 8, 'quick', 0)).toBe('start');
  });

  it('is told from what only waits for the process', () => {
    const ready = queue();
    admitMany(ready, 'capped', 3, 2);
    admitMany(ready, 'other', SLOTS - 2);
    ready.admit('late', 5, 'late', 0);
    const overdue = ready.takeOverdue(1);
    expect(overdue).toContainEqual({ item: 'capped', endpointFull: true });
    expect(overdue).toContainEqual({ item: 'late', endpointFull: false });
  });
});

describe('whatever happens', () => {
  it('no cap is exceeded, slow ones keep to their half, and every slot comes back once', () => {
    const step = fc.record({
      endpoint: fc.nat(5),
      act: fc.constantFrom('admit', 'finish', 'next', 'slow', 'quick', 'overdue'),
    });
    fc.assert(
      fc.property(fc.array(step, { maxLength: 200 }), (steps) => {
        const ready = queue(['e0', 'e1']);
        const active = new Map<string, number>();
        const begin = (id: string) => active.set(id, (active.get(id) ?? 0) + 1);
        for (const { endpoint, act } of steps) {
          const id = `e${endpoint}`;
          if (act === 'admit' && ready.admit(id, 3, id, 0) === 'start') begin(id);
          if (act === 'finish' && (active.get(id) ?? 0) > 0) {
            active.set(id, active.get(id)! - 1);
            ready.finished(id);
          }
          if (act === 'next') {
            const next = ready.next();
            if (next) begin(next);
          }
          if (act === 'slow' || act === 'quick') ready.setSlow(id, act === 'slow');
          if (act === 'overdue') ready.takeOverdue(1);
          const counts = [...active.values()];
          expect(Math.max(0, ...counts)).toBeLessThanOrEqual(3);
          expect(counts.reduce((sum, count) => sum + count, 0)).toBe(ready.inFlight);
          expect(ready.inFlight).toBeLessThanOrEqual(SLOTS);
        }
        for (const [id, count] of active) for (let n = 0; n < count; n += 1) ready.finished(id);
        expect(ready.inFlight).toBe(0);
        expect(() => ready.finished('e0')).toThrow('nobody held');
      }),
    );
  });

  it('everything that was queued comes out, by its turn or by takeAll', () => {
    fc.assert(
      fc.property(fc.array(fc.nat(9), { maxLength: 60 }), (endpoints) => {
        const ready = queue(['e1', 'e2', 'e3']);
        const outcomes = endpoints.map((n) => ready.admit(`e${n}`, 2, `e${n}`, 0));
        const queued = outcomes.filter((outcome) => outcome === 'queued').length;
        expect(ready.ready).toBe(queued);
        expect(ready.takeAll().length).toBe(queued);
        expect(ready.ready).toBe(0);
      }),
    );
  });
});
