import { describe, expect, it } from 'vitest';
import type { Breaker } from './breaker.ts';
import { type Health, type HealthEvidence, type HealthPolicy, judgeHealth } from './endpoint-health.ts';

const NOW = 1_800_000_000_000;
const DAY_MS = 86_400_000;
const POLICY: HealthPolicy = {
  breaker: { enabled: true, threshold: 5, cooldownMs: 30_000, maxCooldownMs: 300_000 },
  autoDisableMs: 5 * DAY_MS,
};

function health(breaker: Partial<Breaker> = {}, pausedForMs: number | null = null): Health {
  return {
    endpointId: 'an endpoint',
    breaker: {
      state: 'closed',
      failures: 0,
      trips: 0,
      streak: 0,
      untilMs: null,
      probe: null,
      failingSinceMs: null,
      ...breaker,
    },
    pausedForMs,
    nowMs: NOW,
  };
}

function evidence(item: Partial<HealthEvidence> = {}): HealthEvidence {
  const failure = { kind: 'failing', success: false, trips: 0, probe: null, retryAfterMs: null } as const;
  return { endpointId: 'an endpoint', ...failure, ...item };
}

const SUCCESS = evidence({ kind: 'alive', success: true });
const judge = (before: Health, batch: HealthEvidence[]) => judgeHealth(before, batch, POLICY);

describe('a pause that an endpoint asks for', () => {
  it.each([
    ['nothing runs', null, 1_000, 1_000],
    ['a shorter one runs', 5_000, 5_501, 5_501],
    ['it would move the end by half a second at most', 5_000, 5_500, null],
    ['a longer one runs', 60_000, 1_000, null],
    ['one without end runs', Number.POSITIVE_INFINITY, 3_600_000, null],
    ['none is asked for', 5_000, null, null],
  ])('when %s (%s ms, %s asked) is %s', (_, pausedForMs, retryAfterMs, pauseMs) => {
    const verdict = judge(health({ failingSinceMs: NOW }, pausedForMs), [
      evidence({ kind: 'alive', retryAfterMs }),
    ]);
    expect(verdict).toMatchObject({ pauseMs, changes: pauseMs !== null });
    expect(verdict.change).toMatchObject({
      paused: pauseMs !== null,
      pausedForMs: pauseMs ?? pausedForMs,
    });
  });

  it('is the longest of the batch', () => {
    const batch = [1_000, null, 9_000, 2_000].map((retryAfterMs) => evidence({ retryAfterMs }));
    expect(judge(health(), batch).pauseMs).toBe(9_000);
  });
});

describe('days of nothing but failure', () => {
  const failingFor = (ms: number) => health({ failingSinceMs: NOW - ms });

  it('disable past the limit, not at it', () => {
    expect(judge(failingFor(5 * DAY_MS), [evidence()]).change.disabled).toBe(false);
    expect(judge(failingFor(5 * DAY_MS + 1), [evidence()]).change.disabled).toBe(true);
  });

  it('need a further failure, and end with a success anywhere in the batch', () => {
    const long = failingFor(9 * DAY_MS);
    expect(judge(long, []).change.disabled).toBe(false);
    expect(judge(long, [evidence({ kind: 'none' })]).change.disabled).toBe(false);
    for (const batch of [
      [SUCCESS, evidence()],
      [evidence(), SUCCESS],
      [evidence(), SUCCESS, evidence()],
    ]) {
      expect(judge(long, batch).change.disabled).toBe(false);
    }
  });

  it('begin anew at the failure after a success', () => {
    const long = failingFor(9 * DAY_MS);
    expect(judge(long, [SUCCESS, evidence()])).toMatchObject({ failingSince: 'now', changes: true });
    expect(judge(long, [SUCCESS])).toMatchObject({ failingSince: null, changes: true });
    expect(judge(failingFor(1), [evidence({ kind: 'alive' })])).toMatchObject({
      failingSince: 'same',
      changes: false,
    });
  });
});

describe('a batch', () => {
  it('that cancels itself out changes nothing', () => {
    expect(judge(health(), [evidence(), SUCCESS])).toMatchObject({ changes: false });
  });

  it('can recover and open an endpoint, and says both', () => {
    const probed = health({
      state: 'half_open',
      trips: 2,
      streak: 3,
      probe: 'p',
      untilMs: NOW + 1,
      failures: 5,
    });
    const batch = [
      evidence({ kind: 'alive', trips: 2, probe: 'p' }),
      ...Array.from({ length: 5 }, () => evidence({ trips: 2 })),
    ];
    expect(judge(probed, batch).change).toMatchObject({
      recovered: true,
      opened: true,
      state: 'open',
      trips: 3,
      breakerForMs: 30_000,
    });
  });
});
