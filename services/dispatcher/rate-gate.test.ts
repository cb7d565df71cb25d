import { describe, expect, it } from 'vitest';
import type { RateAnswer, RateAsk, RateLimiter } from '../../lib/domain/rate-bucket.ts';
import { rateMetrics } from '../../lib/metrics/rate.ts';
import { Metrics } from '../../lib/metrics/registry.ts';
import { FleetRateLimiter } from '../fleet/rate-limiter.ts';
import { type RatedEndpoint, RateGate, type RateVerdict } from './rate-gate.ts';

/** A gate on a limiter without Redis, and the calls that its limiter has had. */
function givenGate(options: { horizons?: Map<string, number>; live?: number } = {}) {
  const { horizons = new Map<string, number>(), live = 1 } = options;
  const limiter = new FleetRateLimiter({
    link: null,
    readHorizons: async () => horizons,
    liveDispatchers: () => live,
    metrics: rateMetrics(new Metrics({ processMetrics: false })),
  });
  return givenGateOn(limiter);
}

function givenGateOn(limiter: RateLimiter) {
  const calls: RateAsk[][] = [];
  const gate = new RateGate({
    ask(asks) {
      calls.push(asks.map((ask) => ({ ...ask })));
      return limiter.ask(asks);
    },
  });
  return { gate, calls };
}

function rated(id: string, settings: Partial<RatedEndpoint> = {}): RatedEndpoint {
  const ratePerSecond = settings.ratePerSecond ?? 10;
  return { id, slotVersion: 1, slotEveryMs: 1_000 / ratePerSecond, ratePerSecond, burst: 20, ...settings };
}

const times = <T>(count: number, make: () => T): T[] => Array.from({ length: count }, make);
const delays = (verdicts: readonly Verdict[], kind: Verdict['kind']) =>
  verdicts.filter((verdict) => verdict.kind === kind).map(({ delayMs }) => delayMs);

type Verdict = Exclude<RateVerdict, { kind: 'unanswered' }>;

function take(gate: RateGate, endpoint: RatedEndpoint, wish: { waited: boolean; maxWaitMs: number }) {
  return new Promise<Verdict>((resolve, reject) =>
    gate.take(endpoint, wish, (verdict) =>
      verdict.kind === 'unanswered' ? reject(verdict.error) : resolve(verdict),
    ),
  );
}

const AT_ONCE = { waited: false, maxWaitMs: 0 };
const FRESH = { waited: false, maxWaitMs: 1_000 };
const WAITED = { waited: true, maxWaitMs: 1_000 };

describe('asks of one turn', () => {
  it('travel together: one call, and one question for each endpoint and kind of wish', async () => {
    const { gate, calls } = givenGate();
    const [one, two] = [rated('one'), rated('two')];
    await Promise.all([
      ...times(3, () => take(gate, one, FRESH)),
      ...times(2, () => take(gate, one, WAITED)),
      ...times(4, () => take(gate, two, AT_ONCE)),
      ...times(5, () => gate.slot(two, { everyMs: 100, afterMs: 0 })),
      gate.slot(two, { everyMs: 250, afterMs: 0 }),
      gate.slot(two, { everyMs: 100, afterMs: 30_000 }),
    ]);
    expect(calls.length).toBe(1);
    expect(calls[0]).toMatchObject([
      { endpointId: 'one', waited: 2, fresh: 3, slots: 0, maxWaitMs: 1_000 },
      { endpointId: 'two', waited: 0, fresh: 4, slots: 0, maxWaitMs: 0 },
      { endpointId: 'two', waited: 0, fresh: 0, slots: 5, slotEveryMs: 100, slotsAfterMs: 0 },
      { endpointId: 'two', waited: 0, fresh: 0, slots: 1, slotEveryMs: 250, slotsAfterMs: 0 },
      { endpointId: 'two', waited: 0, fresh: 0, slots: 1, slotEveryMs: 100, slotsAfterMs: 30_000 },
    ]);
  });

  it('that come while an answer is on its way are the next call, not lost and not asked twice', async () => {
    const { gate, calls } = givenGate();
    const first = take(gate, rated('one'), FRESH);
    await new Promise(setImmediate);
    const second = take(gate, rated('one'), FRESH);
    await Promise.all([first, second]);
    expect(calls.map((asks) => asks.map(({ fresh }) => fresh))).toEqual([[1], [1]]);
  });

  it('about a changed endpoint carry its new limits from then on', async () => {
    const { gate, calls } = givenGate();
    await take(gate, rated('one'), FRESH);
    await take(gate, rated('one', { slotVersion: 2, ratePerSecond: 5, burst: 3 }), FRESH);
    expect(calls[1]).toMatchObject([{ slotVersion: 2, ratePerSecond: 5, burst: 3, slotEveryMs: 200 }]);
  });

  it('for slots behind a cooldown begin after the longest rest that any of them knows', async () => {
    const { gate, calls } = givenGate();
    const rests = [5_000, 9_000, 7_000];
    const slots = await Promise.all(
      rests.map((afterMs) => gate.slot(rated('one'), { everyMs: 100, afterMs })),
    );
    expect(calls[0]).toMatchObject([{ slots: 3, slotsAfterMs: 9_000 }]);
    for (const delayMs of slots) expect(delayMs).toBeGreaterThan(9_000);
    expect(new Set(slots).size).toBe(3);
  });
});

describe('the verdicts of one answer', () => {
  it('are handed out in order: who has waited, who has not, who wants only a slot', async () => {
    // 40 tokens a second and a promise of up to 100 ms: one at once, as a bucket begins, and four that wait for theirs.
    const endpoint = rated('one', { ratePerSecond: 40, burst: 2 });
    const { gate } = givenGate();
    const wish = { maxWaitMs: 100 };
    const asked = {
      fresh: times(4, () => take(gate, endpoint, { waited: false, ...wish })),
      waited: times(3, () => take(gate, endpoint, { waited: true, ...wish })),
    };
    const [fresh, waited] = await Promise.all([Promise.all(asked.fresh), Promise.all(asked.waited)]);
    expect(delays(waited, 'go')).toEqual([0, 25, 50]);
    expect(delays(fresh, 'go')).toEqual([75, 100]);
    expect(fresh.map(({ kind }) => kind)).toEqual(['go', 'go', 'slot', 'slot']);
    const [third, fourth] = delays(fresh, 'slot');
    expect(third).toBeGreaterThan(1_000);
    expect(fourth! - third!).toBeCloseTo(25, 1);
  });

  it('give every one that is turned away a moment of its own', async () => {
    const { gate } = givenGate();
    const verdicts = await Promise.all(times(500, () => take(gate, rated('one'), FRESH)));
    const slots = delays(verdicts, 'slot');
    expect(slots.length).toBe(500 - delays(verdicts, 'go').length);
    expect(delays(verdicts, 'go').length).toBe(11); // one token and a second's promises
    const gaps = slots.slice(1).map((delayMs, place) => delayMs - slots[place]!);
    expect(Math.min(...gaps)).toBeCloseTo(100, 3);
    expect(Math.max(...gaps)).toBeCloseTo(100, 3);
  });

  it('keep the questions about several endpoints apart', async () => {
    const { gate } = givenGate();
    const quick = rated('quick', { ratePerSecond: 1_000 });
    const slow = rated('slow', { ratePerSecond: 1 });
    const pairs = await Promise.all(
      times(5, () => Promise.all([take(gate, quick, FRESH), take(gate, slow, AT_ONCE)])),
    );
    expect(pairs.map(([verdict]) => verdict.kind)).toEqual(Array(5).fill('go'));
    expect(pairs.map(([, verdict]) => verdict.kind)).toEqual(['go', 'slot', 'slot', 'slot', 'slot']);
  });
});

describe('a limiter that cannot answer', () => {
  it('rejects all that asked, and is asked again by those who come after', async () => {
    let away = true;
    const { gate } = givenGateOn({
      async ask(asks): Promise<RateAnswer[]> {
        if (away) throw new Error('the database is away');
        return asks.map(({ fresh }) => ({ go: Array(fresh).fill(0), slots: [], horizonMs: 0 }));
      },
    });
    const asked = [
      take(gate, rated('one'), FRESH),
      take(gate, rated('one'), WAITED),
      take(gate, rated('two'), FRESH),
      gate.slot(rated('two'), { everyMs: 100, afterMs: 0 }),
    ];
    const ends = await Promise.allSettled(asked);
    expect(ends.map(({ status }) => status)).toEqual(Array(4).fill('rejected'));
    away = false;
    expect(await take(gate, rated('one'), FRESH)).toEqual({ kind: 'go', delayMs: 0 });
  });

  it('is one whose horizons cannot be read: nothing goes on a guess', async () => {
    const { gate } = givenGateOn(
      new FleetRateLimiter({
        link: null,
        readHorizons: () => Promise.reject(new Error('the database is away')),
        liveDispatchers: () => 1,
        metrics: rateMetrics(new Metrics({ processMetrics: false })),
      }),
    );
    await expect(take(gate, rated('one'), FRESH)).rejects.toThrow('the database is away');
  });
});

describe('an endpoint for which others wait', () => {
  it('is known by the slots that were given out here', async () => {
    const { gate } = givenGate();
    const endpoint = rated('one');
    expect(gate.hasQueue(endpoint)).toBe(false);
    await gate.slot(endpoint, { everyMs: 100, afterMs: 0 });
    expect(gate.hasQueue(endpoint)).toBe(true);
    expect(gate.hasQueue(rated('two'))).toBe(false);
  });

  it('is known by the slots that the database tells of, once anybody has asked', async () => {
    const { gate } = givenGate({ horizons: new Map([['one', 60_000]]) });
    const verdict = await take(gate, rated('one'), FRESH);
    expect(verdict.kind).toBe('slot');
    expect(verdict.delayMs).toBeGreaterThan(60_000);
    expect(gate.hasQueue(rated('one'))).toBe(true);
  });

  it('is no queue while those slots are as near as what is waited in the process', async () => {
    const { gate } = givenGate({ horizons: new Map([['one', 900]]) });
    expect((await take(gate, rated('one'), FRESH)).kind).toBe('go');
    expect(gate.hasQueue(rated('one'))).toBe(false);
  });

  it('is unknown again when its slots were timed anew', async () => {
    const { gate } = givenGate();
    await gate.slot(rated('one'), { everyMs: 100, afterMs: 30_000 });
    expect(gate.hasQueue(rated('one'))).toBe(true);
    expect(gate.hasQueue(rated('one', { slotVersion: 2 }))).toBe(false);
  });
});
