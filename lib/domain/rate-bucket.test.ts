import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { askBucket, type Bucket, type BucketAsk, type RateAsk, toBucketAsk } from './rate-bucket.ts';

const SECOND = 1_000_000;
const START = 1_764_590_000 * SECOND;

const NOTHING: RateAsk = {
  endpointId: 'e',
  slotVersion: 1,
  ratePerSecond: 10,
  burst: 20,
  waited: 0,
  fresh: 0,
  slots: 0,
  slotEveryMs: 100,
  slotsAfterMs: 0,
  maxWaitMs: 1_000,
};

type Known = BucketAsk['known'];

/** An endpoint's bucket, which the database is asked about as its limiter would. */
class Endpoint {
  bucket: Bucket | null = null;
  now = START;
  /** What the database knows, µs from now. */
  horizonUs = 0;
  asked: string[] = [];

  ask(ask: Partial<RateAsk>, { owedUs = 0, known = null }: { owedUs?: number; known?: Known } = {}) {
    const question = toBucketAsk({ ...NOTHING, ...ask }, { owedUs, known });
    const { bucket, reply } = askBucket(this.bucket, question, this.now);
    this.bucket = bucket;
    if (reply.kind === 'answered') return reply;
    this.asked.push(reply.because);
    return this.again(ask, { because: reply.because, horizonUs: this.horizonUs });
  }

  again(ask: Partial<RateAsk>, known: Known) {
    const question = toBucketAsk({ ...NOTHING, ...ask }, { owedUs: 0, known });
    const { bucket, reply } = askBucket(this.bucket, question, this.now);
    this.bucket = bucket;
    if (reply.kind !== 'answered') throw new Error('asked back a second time');
    return reply;
  }

  pass(us: number): this {
    this.now += us;
    return this;
  }
}

/** One whose bucket is full. */
function rested(ask: Partial<RateAsk> = {}): Endpoint {
  const endpoint = new Endpoint();
  endpoint.ask(ask);
  endpoint.asked = [];
  return endpoint.pass(100_000 * SECOND);
}

/** The most moments that lie within any second that begins at one of them. */
function mostInASecond(moments: readonly number[]): number {
  const sorted = [...moments].sort((a, b) => a - b);
  let first = 0;
  return sorted.reduce((most, moment, last) => {
    while (moment - sorted[first]! >= SECOND) first += 1;
    return Math.max(most, last - first + 1);
  }, 0);
}

describe('tokens', () => {
  it('let the burst go at once, then one by one at the rate as far as may be waited', () => {
    const { goUs, slotsUs } = rested().ask({ fresh: 40 });
    expect(goUs.slice(0, 20)).toEqual(Array(20).fill(0));
    expect(goUs.slice(20)).toEqual(Array.from({ length: 10 }, (_, n) => (n + 1) * 100_000));
    expect(slotsUs).toHaveLength(10);
  });

  it('are not taken for a wait that may not be waited', () => {
    const endpoint = rested();
    expect(endpoint.ask({ fresh: 25, maxWaitMs: 0 }).goUs).toHaveLength(20);
    endpoint.pass(100_000);
    expect(endpoint.ask({ waited: 5, maxWaitMs: 0 }).goUs).toEqual([0]);
  });

  it('of which an endpoint has never had any begin with one', () => {
    expect(new Endpoint().ask({ fresh: 3 }).goUs).toEqual([0, 100_000, 200_000]);
  });

  const steps = fc.array(
    fc.record({
      passUs: fc.oneof(fc.nat(20_000), fc.nat(3 * SECOND)),
      waited: fc.nat(60),
      fresh: fc.nat(60),
      maxWaitMs: fc.constantFrom(0, 250, 1_000),
      lost: fc.integer({ min: 0, max: 15 }).map((n) => n === 0),
    }),
    { minLength: 1, maxLength: 60 },
  );
  const limits = fc.record({
    ratePerSecond: fc.oneof(
      fc.double({ min: 0.01, max: 200, noNaN: true }),
      fc.integer({ min: 1, max: 1e6 }),
    ),
    burst: fc.integer({ min: 1, max: 100 }),
  });

  it('never let more go in any second than rate and burst', () => {
    fc.assert(
      fc.property(limits, steps, ({ ratePerSecond, burst }, script) => {
        const endpoint = rested({ ratePerSecond, burst });
        const moments: number[] = [];
        for (const { passUs, waited, fresh, maxWaitMs } of script) {
          endpoint.pass(passUs);
          const { goUs } = endpoint.ask({ ratePerSecond, burst, waited, fresh, maxWaitMs });
          moments.push(...goUs.map((us) => endpoint.now + us));
        }
        expect(mostInASecond(moments)).toBeLessThanOrEqual(ratePerSecond + burst);
      }),
    );
  });

  it('that were promised before the bucket was lost are not promised again', () => {
    fc.assert(
      fc.property(limits, steps, ({ ratePerSecond, burst }, script) => {
        const endpoint = rested({ ratePerSecond, burst });
        const moments: number[] = [];
        let losses = 0;
        for (const { passUs, waited, fresh, maxWaitMs, lost } of script) {
          endpoint.pass(passUs);
          if (lost) {
            endpoint.bucket = null;
            losses += 1;
          }
          const owedUs = Math.max(0, Math.max(0, ...moments) - endpoint.now);
          const ask = { ratePerSecond, burst, waited, fresh, maxWaitMs };
          const known: Known = lost ? { because: 'unknown', horizonUs: 0 } : null;
          const { goUs } = endpoint.ask(ask, { owedUs, known });
          moments.push(...goUs.map((us) => endpoint.now + us));
        }
        // A bucket that begins anew has one token.
        expect(mostInASecond(moments)).toBeLessThanOrEqual(ratePerSecond + burst + losses);
      }),
    );
  });

  it('that were promised elsewhere by a process that now shares the bucket are counted', () => {
    const endpoint = rested();
    expect(endpoint.ask({ fresh: 1 }, { owedUs: 500_000 }).goUs).toEqual([550_000]);
    expect(rested().ask({ fresh: 1 }, { owedUs: 40_000 }).goUs).toEqual([0]);
  });

  it('are not refilled by a clock that goes back, and wait for no clock that was ahead', () => {
    const endpoint = rested();
    endpoint.ask({ fresh: 20 });
    endpoint.pass(-3_600 * SECOND);
    expect(endpoint.ask({ fresh: 1 }).goUs).toEqual([100_000]);
    endpoint.pass(200_000);
    expect(endpoint.ask({ fresh: 1 }).goUs).toEqual([0]);
  });
});

describe('a change of the limits', () => {
  it('takes effect at the next question', () => {
    const endpoint = rested();
    endpoint.ask({ fresh: 20 });
    const faster = { slotVersion: 2, ratePerSecond: 1_000 };
    expect(endpoint.ask({ ...faster, fresh: 3 }).goUs).toEqual([1_000, 2_000, 3_000]);
    const slower = { slotVersion: 3, ratePerSecond: 2 };
    expect(endpoint.pass(3_000).ask({ ...slower, fresh: 3 }).goUs).toEqual([500_000, 1_000_000]);
  });

  it('never gives tokens that the bucket does not hold', () => {
    fc.assert(
      fc.property(
        fc.double({ min: 0.1, max: 1_000, noNaN: true }),
        fc.double({ min: 0.1, max: 1_000, noNaN: true }),
        fc.integer({ min: 1, max: 100 }),
        fc.integer({ min: 1, max: 100 }),
        fc.nat(60),
        (before, after, burst, newBurst, taken) => {
          const endpoint = rested({ ratePerSecond: before, burst });
          const first = endpoint.ask({ ratePerSecond: before, burst, fresh: taken });
          const held = Math.max(0, burst - first.goUs.length);
          const next = { slotVersion: 2, ratePerSecond: after, burst: newBurst, waited: 200, maxWaitMs: 0 };
          expect(endpoint.ask(next).goUs).toHaveLength(Math.min(held, newBurst));
        },
      ),
    );
  });

  it('leaves what was promised where it is: a second of debt is a second at any rate', () => {
    const endpoint = rested({ ratePerSecond: 50 });
    expect(endpoint.ask({ ratePerSecond: 50, fresh: 100 }).goUs.at(-1)).toBe(SECOND);
    endpoint.pass(500_000);
    const slow = { slotVersion: 2, ratePerSecond: 5, waited: 10 };
    expect(endpoint.ask(slow).goUs).toEqual([700_000, 900_000]);
  });

  it('is not undone by one who has not heard of it', () => {
    const endpoint = rested();
    endpoint.ask({ slotVersion: 2, ratePerSecond: 1, burst: 1, fresh: 1 });
    expect(endpoint.ask({ slotVersion: 1, fresh: 5 }).goUs).toEqual([SECOND]);
    expect(endpoint.bucket).toMatchObject({ slotVersion: 2, ratePerSecond: 1, burst: 1 });
  });
});

describe('slots', () => {
  it('are distinct and increasing, at every rate, in one answer and over many', () => {
    fc.assert(
      fc.property(
        fc.oneof(fc.double({ min: 0.01, max: 1e6, noNaN: true }), fc.constant(1e9), fc.constant(1e-9)),
        fc.array(fc.tuple(fc.integer({ min: 1, max: 128 }), fc.nat(100_000)), {
          minLength: 1,
          maxLength: 10,
        }),
        (ratePerSecond, steps) => {
          const endpoint = new Endpoint();
          const moments: number[] = [];
          for (const [slots, passUs] of steps) {
            const { slotsUs } = endpoint.ask({ slots, ratePerSecond, slotEveryMs: 1_000 / ratePerSecond });
            moments.push(...slotsUs.map((us) => endpoint.now + us));
            endpoint.bucket!.heardAt = endpoint.now;
            endpoint.pass(passUs);
          }
          expect(moments.every(Number.isSafeInteger)).toBe(true);
          expect(moments.slice(1).every((moment, place) => moment - moments[place]! >= 1)).toBe(true);
        },
      ),
    );
  });

  it('begin where waiting in the process ends, and go on where the last one was given', () => {
    const endpoint = rested();
    expect(endpoint.ask({ slots: 2 })).toMatchObject({
      slotsUs: [1_100_000, 1_200_000],
      horizonUs: 1_200_000,
    });
    endpoint.pass(50_000);
    expect(endpoint.ask({ slots: 1 }).slotsUs).toEqual([1_250_000]);
  });

  it('begin after a cooldown or a pause, in which nobody is sent', () => {
    expect(rested().ask({ slots: 2, slotsAfterMs: 30_000 }).slotsUs).toEqual([30_100_000, 30_200_000]);
    expect(rested().ask({ slots: 1, slotsAfterMs: 1 }).slotsUs).toEqual([101_000]);
    const far = rested().ask({ slots: 1, slotsAfterMs: Number.POSITIVE_INFINITY }).slotsUs[0]!;
    expect(far).toBeLessThan(367 * 86_400 * SECOND);
  });

  it('are what those get for whom there is no token, in order, before those who want only a slot', () => {
    const endpoint = rested();
    endpoint.ask({ fresh: 20 });
    const { goUs, slotsUs } = endpoint.ask({ waited: 11, fresh: 2, slots: 3, maxWaitMs: 1_000 });
    expect(goUs).toHaveLength(10);
    expect(slotsUs).toEqual([1, 2, 3, 4, 5, 6].map((n) => 1_000_000 + n * 100_000));
  });

  it('that the database knows come before new ones', () => {
    const endpoint = new Endpoint();
    endpoint.horizonUs = 60 * SECOND;
    expect(endpoint.ask({ slots: 1 }).slotsUs).toEqual([60_100_000]);
    expect(endpoint.asked).toEqual(['unknown']);
  });

  it('of an older version are no concern of the new one', () => {
    const endpoint = rested();
    endpoint.ask({ slots: 100 });
    endpoint.horizonUs = 3 * SECOND;
    expect(endpoint.ask({ slotVersion: 2, slots: 1 }).slotsUs).toEqual([3_100_000]);
    expect(endpoint.asked).toEqual(['unknown']);
    expect(endpoint.ask({ slotVersion: 1, slots: 1 }).slotsUs).toEqual([3_200_000]);
  });
});

describe('a delivery that has not waited', () => {
  it('takes no token while slots lie ahead, and those that have waited do', () => {
    const endpoint = rested();
    endpoint.ask({ slots: 20 });
    const { goUs, slotsUs } = endpoint.ask({ waited: 1, fresh: 1 });
    expect([goUs, slotsUs]).toEqual([[0], [3_100_000]]);
  });

  it('may wait with the last of them when no slot lies farther than that', () => {
    const endpoint = rested();
    endpoint.ask({ slots: 1 });
    expect(endpoint.pass(200_000).ask({ fresh: 1 }).goUs).toEqual([0]);
  });
});

describe('slots for which nobody comes', () => {
  /** 100 slots, the first of them 3 s past. */
  function abandoned(): Endpoint {
    const endpoint = rested();
    endpoint.ask({ slots: 100 });
    return endpoint.pass(4 * SECOND);
  }

  it('are looked up in the database and given up when it does not know them', () => {
    const endpoint = abandoned();
    expect(endpoint.ask({ fresh: 1 }).goUs).toEqual([0]);
    expect(endpoint.asked).toEqual(['suspect']);
  });

  it('stay when it knows them, and are not looked up again for a while', () => {
    const endpoint = abandoned();
    endpoint.horizonUs = 7 * SECOND;
    expect(endpoint.ask({ fresh: 1 }).goUs).toEqual([]);
    endpoint.pass(1.9 * SECOND).ask({ slots: 100 });
    expect(endpoint.asked).toEqual(['suspect']);
    endpoint.pass(0.2 * SECOND).ask({ slots: 1 });
    expect(endpoint.asked).toEqual(['suspect', 'suspect']);
  });

  it('are not given up for a difference that may be on its way to the database', () => {
    const endpoint = abandoned();
    endpoint.horizonUs = 4 * SECOND;
    expect(endpoint.ask({ slots: 1 }).slotsUs).toEqual([7_100_000]);
  });

  it.each([
    [
      'somebody came for one within 2 s',
      (e: Endpoint) => e.ask({ waited: 1 }) && e.pass(1.9 * SECOND).ask({ slots: 70 }),
    ],
    ['somebody comes for one now', (e: Endpoint) => e.ask({ waited: 1, fresh: 1 })],
    ['they are three apart and no longer', (e: Endpoint) => e.ask({ fresh: 1, slotEveryMs: 1_400 })],
    ['they end soon', (e: Endpoint) => e.pass(3 * SECOND).ask({ fresh: 1 })],
    ['the asker knows only an older version', (e: Endpoint) => e.ask({ slotVersion: 0, fresh: 1 })],
    ['nobody wants one', (e: Endpoint) => e.ask({})],
  ])('are not suspected when %s', (_, ask) => {
    const endpoint = abandoned();
    ask(endpoint);
    expect(endpoint.asked).toEqual([]);
  });

  it('are not lowered by an answer about an older version', () => {
    const endpoint = abandoned();
    endpoint.ask({ slotVersion: 2, slots: 100 });
    endpoint.again({ slotVersion: 1, slots: 1 }, { because: 'suspect', horizonUs: 0 });
    expect(endpoint.ask({ slots: 0 }).horizonUs).toBe(11_100_000);
  });
});

describe('one who was served elsewhere', () => {
  it('finds at most one token, and slots after those that were given there', () => {
    const endpoint = rested();
    endpoint.ask({ slots: 1 });
    const { goUs, slotsUs } = endpoint.again(
      { waited: 2, slots: 1 },
      { because: 'away', horizonUs: 30 * SECOND },
    );
    expect([goUs, slotsUs]).toEqual([[0, 100_000], [30_100_000]]);
  });

  it('moves no slot nearer', () => {
    const endpoint = rested();
    endpoint.ask({ slots: 50 });
    const { slotsUs } = endpoint.again({ slots: 1 }, { because: 'away', horizonUs: 0 });
    expect(slotsUs).toEqual([6_100_000]);
  });
});
