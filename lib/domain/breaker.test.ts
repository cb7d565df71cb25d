import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  type Breaker,
  type BreakerPolicy,
  type Evidence,
  type EvidenceKind,
  evidenceOf,
  isFailure,
  judgeEvidence,
} from './breaker.ts';
import type { SendResult } from './send-result.ts';
import {
  BREAKER_STATES,
  type BreakerState,
  TRANSPORT_FAILURES,
  type TransportFailure,
} from './vocabulary.ts';

const NOW = 1_800_000_000_000;
const ERA = 7;
const POLICY: BreakerPolicy = { enabled: true, threshold: 5, cooldownMs: 30_000, maxCooldownMs: 300_000 };
const KINDS: readonly EvidenceKind[] = ['alive', 'failing', 'unclear', 'none'];

function breaker(state: BreakerState, change: Partial<Breaker> = {}): Breaker {
  return Object.freeze({
    state,
    failures: 2,
    trips: ERA,
    streak: state === 'closed' ? 0 : 2,
    untilMs: state === 'closed' ? null : NOW + 1_000,
    probe: state === 'half_open' ? 'the probe' : null,
    failingSinceMs: null,
    ...change,
  });
}

function evidence(change: Partial<Evidence> = {}): Evidence {
  return { kind: 'failing', success: false, trips: ERA, probe: null, ...change };
}

const judge = (before: Breaker, given: Partial<Evidence>, policy = POLICY) =>
  judgeEvidence(before, evidence(given), policy, NOW);

function repeat(before: Breaker, times: number, given: Partial<Evidence> = {}, policy = POLICY): Breaker {
  let state = before;
  for (let n = 0; n < times; n += 1) state = judge(state, { trips: state.trips, ...given }, policy);
  return state;
}

describe('every state with every evidence', () => {
  type Change = 'none' | 'reset' | 'counted' | 'recovered' | 'reopened' | 'put off';

  const CLOSED: Record<EvidenceKind, Change> = {
    alive: 'reset',
    failing: 'counted',
    unclear: 'none',
    none: 'none',
  };
  const PROBED: Record<EvidenceKind, Change> = {
    alive: 'recovered',
    failing: 'reopened',
    unclear: 'put off',
    none: 'put off',
  };
  const CHANGES: Record<Change, Partial<Breaker>> = {
    none: {},
    reset: { failures: 0 },
    counted: { failures: 3 },
    recovered: { state: 'closed', failures: 0, streak: 0, untilMs: null, probe: null },
    reopened: { state: 'open', trips: ERA + 1, streak: 3, untilMs: NOW + 120_000, probe: null },
    'put off': { state: 'open', untilMs: NOW + 5_000, probe: null },
  };

  const cases = BREAKER_STATES.flatMap((state) =>
    KINDS.flatMap((kind) =>
      [ERA, ERA - 1].flatMap((trips) =>
        [null, 'the probe', 'another'].flatMap((probe) =>
          [true, false].flatMap((enabled) =>
            [true, false].flatMap((success) =>
              [null, NOW - 5_000].map((failingSinceMs) => ({
                state,
                kind,
                trips,
                probe,
                enabled,
                success,
                failingSinceMs,
              })),
            ),
          ),
        ),
      ),
    ),
  );

  function expectedChange({ state, kind, trips, probe, enabled }: (typeof cases)[number]): Change {
    if (!enabled) return 'none';
    if (state === 'closed' && trips === ERA && probe === null) return CLOSED[kind];
    if (state === 'half_open' && probe === 'the probe') return PROBED[kind];
    return 'none';
  }

  function expectedSince({ kind, success, failingSinceMs }: (typeof cases)[number]): number | null {
    if (success) return null;
    return kind === 'none' ? failingSinceMs : (failingSinceMs ?? NOW);
  }

  it('comes to what the rules say, and to the same object when that is nothing', () => {
    expect(cases).toHaveLength(3 * 4 * 2 * 3 * 2 * 2 * 2);
    for (const each of cases) {
      const before = breaker(each.state, { failingSinceMs: each.failingSinceMs });
      const after = judge(before, each, { ...POLICY, enabled: each.enabled });
      const expected = {
        ...before,
        ...CHANGES[expectedChange(each)],
        failingSinceMs: expectedSince(each),
      };
      expect(after, JSON.stringify(each)).toEqual(expected);
      const changes = JSON.stringify(expected) !== JSON.stringify(before);
      expect(after === before, JSON.stringify(each)).toBe(!changes);
    }
  });
});

describe('a closed breaker', () => {
  const well = breaker('closed', { failures: 0 });

  it('opens at the threshold and not before', () => {
    expect(repeat(well, 4)).toMatchObject({ state: 'closed', failures: 4, trips: ERA });
    expect(repeat(well, 5)).toMatchObject({
      state: 'open',
      trips: ERA + 1,
      streak: 1,
      untilMs: NOW + 30_000,
    });
  });

  it('counts failures in a row only', () => {
    const spared = repeat(repeat(repeat(well, 4), 1, { kind: 'alive' }), 4);
    expect(spared).toMatchObject({ state: 'closed', failures: 4 });
  });

  it('opens at the first failure past a threshold that was lowered meanwhile', () => {
    const after = judge(breaker('closed', { failures: 4 }), {}, { ...POLICY, threshold: 1 });
    expect(after).toMatchObject({ state: 'open', failures: 5 });
  });

  it('is the same object after a success when all is well', () => {
    expect(judge(well, { kind: 'alive', success: true })).toBe(well);
  });
});

describe('the cooldown', () => {
  const waitAfter = (streak: number, policy = POLICY) => {
    const after = judge(breaker('half_open', { streak }), { probe: 'the probe' }, policy);
    return after.untilMs! - NOW;
  };

  it('doubles with each opening up to its cap', () => {
    expect([0, 1, 2, 3, 4, 5].map((streak) => waitAfter(streak) / 1_000)).toEqual([
      30, 60, 120, 240, 300, 300,
    ]);
  });

  it('is the cap after 10,000 openings in a row', () => {
    expect(waitAfter(10_000)).toBe(300_000);
  });

  it('is the cap when the first is longer already', () => {
    expect(waitAfter(0, { ...POLICY, cooldownMs: 900_000 })).toBe(300_000);
  });

  it('begins anew after a recovery', () => {
    const recovered = judge(breaker('half_open', { streak: 4 }), { kind: 'alive', probe: 'the probe' });
    expect(repeat(recovered, 5)).toMatchObject({ state: 'open', streak: 1, untilMs: NOW + 30_000 });
  });

  it('is short after a probe that proved nothing, and never longer than a whole one', () => {
    const undecided = (cooldownMs: number) =>
      judge(breaker('half_open'), { kind: 'unclear', probe: 'the probe' }, { ...POLICY, cooldownMs });
    expect(undecided(30_000)).toMatchObject({ state: 'open', trips: ERA, streak: 2, untilMs: NOW + 5_000 });
    expect(undecided(2_000).untilMs).toBe(NOW + 2_000);
  });
});

describe('the first failure after the last success', () => {
  it('stays while failures go on, whatever their era, and ends with a success of any era', () => {
    const since = NOW - 86_400_000;
    const failing = breaker('open', { failingSinceMs: since });
    expect(judge(failing, { trips: 0 })).toBe(failing);
    expect(judge(failing, { trips: 0, kind: 'alive', success: true }).failingSinceMs).toBeNull();
  });

  it('is noted with the breaker switched off too', () => {
    const after = judge(breaker('closed'), {}, { ...POLICY, enabled: false });
    expect(after).toEqual({ ...breaker('closed'), failingSinceMs: NOW });
  });

  it('is also an answer that is no success, and a name that does not resolve, but nothing of our own making', () => {
    const noted = KINDS.filter((kind) => isFailure({ kind, success: false }));
    expect(noted).toEqual(['alive', 'failing', 'unclear']);
  });
});

describe('any sequence of evidence and probes', () => {
  const steps = fc.array(
    fc.oneof(
      fc.record({
        kind: fc.constantFrom(...KINDS),
        success: fc.boolean(),
        era: fc.constantFrom(0, 0, 0, -1),
        probe: fc.constantFrom('none', 'own', 'other'),
        afterMs: fc.nat(400_000),
      }),
      fc.record({ claim: fc.constant(true), afterMs: fc.nat(400_000) }),
    ),
    { maxLength: 60 },
  );
  const policies = fc.record({
    enabled: fc.boolean(),
    threshold: fc.integer({ min: 1, max: 10 }),
    cooldownMs: fc.integer({ min: 1, max: 600_000 }),
    maxCooldownMs: fc.integer({ min: 1, max: 3_600_000 }),
  });

  it('leaves a way out: an end to every wait, a name for every probe, an era that never falls', () => {
    fc.assert(
      fc.property(policies, steps, (policy, sequence) => {
        let [state, nowMs, claims] = [breaker('closed', { failures: 0 }), NOW, 0];
        for (const step of sequence) {
          nowMs += step.afterMs;
          const before = state;
          if ('claim' in step) {
            // What the store's claim of a probe does.
            if (state.untilMs === null || state.untilMs > nowMs) continue;
            claims += 1;
            state = { ...state, state: 'half_open', probe: `probe ${claims}`, untilMs: nowMs + 20_000 };
          } else {
            const probe = { none: null, own: state.probe, other: 'stranger' }[step.probe];
            state = judgeEvidence(state, { ...step, trips: state.trips + step.era, probe }, policy, nowMs);
          }
          expect(state.untilMs === null).toBe(state.state === 'closed');
          expect(state.probe === null).toBe(state.state !== 'half_open');
          expect(state.trips).toBeGreaterThanOrEqual(before.trips);
          expect(state.untilMs ?? nowMs).toBeLessThanOrEqual(
            Math.max(before.untilMs ?? 0, nowMs + Math.max(20_000, policy.maxCooldownMs)),
          );
        }
      }),
    );
  });

  it('can be ended by one probe that is answered', () => {
    fc.assert(
      fc.property(policies, steps, (policy, sequence) => {
        const enabled = { ...policy, enabled: true };
        let state = breaker('closed', { failures: 0 });
        for (const step of sequence) {
          if ('claim' in step) continue;
          state = judgeEvidence(state, { ...step, trips: state.trips, probe: null }, enabled, NOW);
        }
        if (state.state === 'closed') return;
        const probing: Breaker = { ...state, state: 'half_open', probe: 'last' };
        const answered = evidence({ kind: 'alive', probe: 'last' });
        expect(judgeEvidence(probing, answered, enabled, NOW)).toMatchObject({ state: 'closed', streak: 0 });
      }),
    );
  });
});

describe('the evidence in a result', () => {
  const answer = (status: number): SendResult => ({
    kind: 'response',
    status,
    retryAfter: [],
    snippet: Buffer.alloc(0),
    firstByteMs: 1,
    durationMs: 1,
  });
  const failure = (name: TransportFailure): SendResult => ({
    kind: 'failure',
    failure: name,
    detail: '',
    requestSent: true,
    durationMs: 1,
  });

  it('is life in every answer but 5xx', () => {
    for (let status = 0; status <= 999; status += 1) {
      expect(evidenceOf(answer(status))).toBe(status >= 500 && status < 600 ? 'failing' : 'alive');
    }
  });

  it('depends on whose doing it was that no answer came', () => {
    const kinds = Object.fromEntries(TRANSPORT_FAILURES.map((name) => [name, evidenceOf(failure(name))]));
    expect(kinds).toEqual({
      timeout: 'failing',
      connect: 'failing',
      tls: 'failing',
      protocol: 'failing',
      dns: 'unclear',
      reset: 'unclear',
      refused: 'none',
      oversize: 'none',
      other: 'none',
    });
  });
});
