import { describe, expect, it } from 'vitest';
import type { Claim, EndpointGates } from '../../lib/store/claims.ts';
import type { HealthChange } from '../../lib/store/endpoint-health.ts';
import { EndpointStates } from './endpoint-state.ts';

const ID = 'e';
const LATER = Number.POSITIVE_INFINITY;
const EARLIER = Number.NEGATIVE_INFINITY;

const WELL: EndpointGates = {
  breaker: 'closed',
  failures: 0,
  failing: false,
  breakerForMs: null,
  pausedForMs: null,
};

function claim(gates: Partial<EndpointGates> | null, trips = 0): Claim {
  return { endpointId: ID, trips, gates: gates && { ...WELL, ...gates } } as Claim;
}

function change(values: Partial<HealthChange>): HealthChange {
  const quiet = { opened: false, recovered: false, paused: false, disabled: false };
  const well = {
    state: 'closed',
    trips: 0,
    failures: 0,
    failing: false,
    breakerForMs: null,
    pausedForMs: null,
  } as const;
  return { endpointId: ID, ...well, ...quiet, ...values };
}

function heldBy(gates: Partial<EndpointGates>, breakerEnabled = true) {
  const states = new EndpointStates({ breakerEnabled });
  states.learnFromClaim(claim(gates), LATER);
  return states.hold(ID);
}

describe('what holds an endpoint back', () => {
  it('is nothing for a well one', () => {
    expect(new EndpointStates({ breakerEnabled: true }).hold(ID)).toBeNull();
    expect(heldBy({ failures: 4, failing: true })).toBeNull();
  });

  it('is an open breaker until its cooldown ends, then the want of a probe', () => {
    expect(heldBy({ breaker: 'open', breakerForMs: 5_000 })).toMatchObject({ reason: 'breaker_open' });
    expect(heldBy({ breaker: 'open', breakerForMs: -1 })).toEqual({ reason: 'probe_wanted' });
  });

  it('is a probe until its deadline, and then the want of another', () => {
    expect(heldBy({ breaker: 'half_open', breakerForMs: 5_000 })).toMatchObject({ reason: 'probe' });
    expect(heldBy({ breaker: 'half_open', breakerForMs: 0 })).toEqual({ reason: 'probe_wanted' });
  });

  it('is a pause, and an endless one for ever', () => {
    expect(heldBy({ pausedForMs: 5_000 })).toMatchObject({ reason: 'paused' });
    expect(heldBy({ pausedForMs: Infinity })).toEqual({ reason: 'paused', forMs: Infinity });
  });

  it('is for both the longer of the two, and no probe passes a pause', () => {
    const hold = heldBy({ breaker: 'open', breakerForMs: 1_000, pausedForMs: 60_000 });
    expect(hold).toMatchObject({ reason: 'breaker_open' });
    expect((hold as { forMs: number }).forMs).toBeGreaterThan(59_000);
    expect(heldBy({ breaker: 'open', breakerForMs: -1, pausedForMs: 60_000 })).toMatchObject({
      reason: 'paused',
    });
    expect(heldBy({ breaker: 'open', breakerForMs: 9, pausedForMs: Infinity })).toMatchObject({
      reason: 'paused',
    });
  });

  it('is no breaker where breakers are switched off', () => {
    expect(heldBy({ breaker: 'open', breakerForMs: 5_000 }, false)).toBeNull();
  });
});

describe('what is known of an endpoint', () => {
  it('is what the last claim read', () => {
    const states = new EndpointStates({ breakerEnabled: true });
    states.learnFromClaim(claim({ breaker: 'open', breakerForMs: 5_000 }), LATER);
    states.learnFromClaim(claim(null), LATER);
    expect(states.hold(ID)).toBeNull();
  });

  it('is not taken back by a claim that was begun before it was learned', () => {
    const states = new EndpointStates({ breakerEnabled: true });
    states.learnFromChange(change({ state: 'open', trips: 1, breakerForMs: 5_000 }));
    states.learnFromClaim(claim(null), EARLIER);
    expect(states.hold(ID)).toMatchObject({ reason: 'breaker_open' });
    states.learnFromClaim(claim(null, 1), LATER);
    expect(states.hold(ID)).toBeNull();
  });

  it('lets nobody else of the process ask for a probe that is under way', () => {
    const states = new EndpointStates({ breakerEnabled: true });
    states.learnFromClaim(claim({ breaker: 'open', breakerForMs: 0 }), 0);
    states.learnOfProbe(ID, 10_000);
    expect(states.hold(ID)).toMatchObject({ reason: 'probe' });
    states.learnOfProbe(ID, 0);
    expect(states.hold(ID)).toEqual({ reason: 'probe_wanted' });
  });
});
