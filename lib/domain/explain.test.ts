import { describe, expect, it } from 'vitest';
import { explainDelivery } from './explain.ts';
import type { DeliveryFacts, EndpointFacts, OwedFacts } from './explain-facts.ts';
import { GATES } from './explain-gates.ts';
import { DEAD_REASONS, DEFERRAL_REASONS, DISABLED_REASONS, PAUSE_REASONS } from './vocabulary.ts';

const NOON = Date.parse('2026-12-01T12:00:00Z');
/** So many seconds after noon, which is now. */
const at = (seconds: number) => new Date(NOON + seconds * 1_000);
const FAR = '2026-12-01T12:10:00.000Z';
const NEAR = '2026-12-01T12:01:00.000Z';

const WELL: EndpointFacts = {
  deleted: false,
  enabled: true,
  disabledReason: null,
  disabledAt: null,
  paused: false,
  pausedUntil: null,
  pausedReason: null,
  breakerState: 'closed',
  breakerUntil: null,
  ratePerSecond: 10,
  burst: 20,
  maxInFlight: 8,
  slotVersion: 3,
};

const DUE: OwedFacts = {
  dueAt: at(-5),
  announcedAt: null,
  expiresAt: null,
  reclaims: 0,
  waiting: null,
  slotVersion: null,
  deferralReason: null,
  cancelRequested: false,
  lease: null,
};

const PENDING: DeliveryFacts = {
  now: at(0),
  status: 'pending',
  deadReason: null,
  finishedAt: null,
  attempts: 0,
  last: null,
  eventMissing: false,
  deliverAt: null,
  endpoint: WELL,
  owed: DUE,
};

const FAILED = { class: 'retryable', httpStatus: 503, error: null, at: at(-60) } as const;

function explain(
  owed: Partial<OwedFacts> = {},
  endpoint: Partial<EndpointFacts> = {},
  facts: Partial<DeliveryFacts> = {},
) {
  return explainDelivery({
    ...PENDING,
    owed: { ...DUE, ...owed },
    endpoint: { ...WELL, ...endpoint },
    ...facts,
  });
}

/** Its reason, and what its summary says (every time in it is UTC). */
function reasonOf(explanation: ReturnType<typeof explain>) {
  expect(explanation.gate).not.toBeNull();
  expect(explanation.summary.startsWith(explanation.gate!.detail)).toBe(true);
  return explanation.gate!.reason;
}

describe('a delivery that has ended', () => {
  const ended = (facts: Partial<DeliveryFacts>) =>
    explainDelivery({ ...PENDING, owed: null, finishedAt: at(-1), attempts: 3, ...facts });

  it('says when it arrived, and with which answer', () => {
    const last = { class: 'success', httpStatus: 204, error: null, at: at(-1) } as const;
    expect(ended({ status: 'succeeded', last })).toEqual({
      gate: null,
      summary: 'It arrived at 2026-12-01T11:59:59.000Z with attempt 3: HTTP 204.',
    });
    expect(ended({ status: 'succeeded' }).summary).toBe(
      'It arrived at 2026-12-01T11:59:59.000Z with attempt 3.',
    );
  });

  it.each([
    [
      'permanent_failure',
      { ...FAILED, class: 'permanent' as const, httpStatus: 404 },
      /refused it.*HTTP 404/,
    ],
    [
      'permanent_failure',
      { ...FAILED, httpStatus: null, error: 'too large' },
      /cannot be sent \(too large\)/,
    ],
    ['attempts_exhausted', FAILED, /all 3 attempts failed.*HTTP 503/],
    ['attempts_exhausted', { ...FAILED, httpStatus: null, error: 'timeout' }, /the last with timeout/],
    ['refused', null, /may not send|missing/],
    ['gone', FAILED, /HTTP 410/],
    ['abandoned', null, /vanished 10 times in a row/],
    ['cancelled', null, /cancelled/],
    ['expired', null, /expired/],
  ] as const)('says in words that it died of %s', (deadReason, last, words) => {
    const { gate, summary } = ended({ status: 'dead', deadReason, last });
    expect(gate).toBeNull();
    expect(summary).toMatch(/^It ended dead at 2026-12-01T11:59:59\.000Z: /);
    expect(summary).toMatch(words);
    expect(summary).toMatch(/A replay sends it again\.$/);
  });

  it('has words of its own for every dead reason', () => {
    const said = DEAD_REASONS.map((deadReason) => ended({ status: 'dead', deadReason }).summary);
    expect(new Set(said).size).toBe(DEAD_REASONS.length);
  });

  it('of a deleted or missing endpoint offers no replay', () => {
    for (const endpoint of [{ ...WELL, deleted: true }, null]) {
      const { summary } = ended({ status: 'dead', deadReason: 'cancelled', endpoint });
      expect(summary).toMatch(/cannot be replayed/);
    }
  });
});

describe('a delivery that is held', () => {
  const lease = { process: 7, expiresAt: at(20) };

  it('is being sent while its lease runs, whatever its endpoint’s state', () => {
    const sick = { enabled: false, paused: true, breakerState: 'open', breakerUntil: at(60) } as const;
    const explanation = explain({ lease }, sick, { status: 'inflight' });
    expect(reasonOf(explanation)).toBe('inflight');
    expect(explanation.summary).toMatch(/Process 7 .*until 2026-12-01T12:00:20\.000Z/);
  });

  it('says that a cancelling waits for the request', () => {
    const explanation = explain({ lease, cancelRequested: true }, {}, { status: 'inflight' });
    expect(reasonOf(explanation)).toBe('inflight');
    expect(explanation.summary).toMatch(/Cancelling was asked for/);
  });

  it('has lost its holder when the lease has ended', () => {
    const explanation = explain({ lease: { process: 7, expiresAt: at(-1) } });
    expect(reasonOf(explanation)).toBe('lease_ended');
    expect(explanation.summary).toMatch(/vanished.*takes it back.*sent again/);
    const cancelled = explain({ lease: { process: 7, expiresAt: at(-1) }, cancelRequested: true });
    expect(reasonOf(cancelled)).toBe('lease_ended');
    expect(cancelled.summary).toMatch(/Cancelling was asked for: it ends dead/);
  });
});

describe('a delivery that is about to end', () => {
  it.each([
    ['cancelling', { cancelRequested: true }, {}, {}],
    ['expired', { expiresAt: at(-1) }, {}, {}],
    ['missing', {}, {}, { eventMissing: true }],
    ['missing', {}, {}, { endpoint: null }],
    ['endpoint_deleted', {}, { deleted: true, enabled: false }, {}],
  ] as const)('says so (%s), though its endpoint is paused too', (reason, owed, endpoint, facts) => {
    const explanation = explain(owed, { paused: true, ...endpoint }, facts);
    expect(reasonOf(explanation)).toBe(reason);
    expect(explanation.summary).toMatch(/It ends dead/);
  });

  it('is not, before its event expires', () => {
    expect(reasonOf(explain({ expiresAt: at(1) }))).toBe('unannounced');
  });
});

describe('a delivery for an endpoint that is sent nothing', () => {
  it.each(DISABLED_REASONS)('waits for it to be enabled (%s), parked or not', (disabledReason) => {
    const disabled = { enabled: false, disabledReason, disabledAt: at(-3_600) };
    for (const owed of [{ waiting: 'parked', dueAt: null, slotVersion: 3 }, {}] as const) {
      const explanation = explain(owed, disabled);
      expect(reasonOf(explanation)).toBe('disabled');
      expect(explanation.summary).toMatch(/since 2026-12-01T11:00:00\.000Z\. It goes when .* enabled/);
    }
  });

  it('waits for it to be resumed when it is paused without an end', () => {
    const paused = { paused: true, pausedReason: 'operator' } as const;
    const explanation = explain({ waiting: 'parked', dueAt: null, slotVersion: 3 }, paused);
    expect(reasonOf(explanation)).toBe('paused');
    expect(explanation.summary).toMatch(/without an end\. It goes when the endpoint is resumed/);
  });

  it.each(PAUSE_REASONS)('waits for the end of its pause (%s)', (pausedReason) => {
    const paused = { paused: true, pausedReason, pausedUntil: at(60) };
    const due = explain({}, paused);
    expect(reasonOf(due)).toBe('paused');
    expect(due.summary).toMatch(new RegExp(`until ${NEAR}\\. It goes after that`));
    const slot = explain({ waiting: 'slot', slotVersion: 3, dueAt: at(600) }, paused);
    expect(reasonOf(slot)).toBe('paused');
    expect(slot.summary).toMatch(new RegExp(`Its slot is at ${FAR}`));
  });

  it('waits for the cooldown while the breaker is open', () => {
    const open = { breakerState: 'open', breakerUntil: at(60) } as const;
    const slot = { waiting: 'slot', slotVersion: 3, dueAt: at(600), deferralReason: 'breaker_open' } as const;
    for (const owed of [slot, {}]) {
      const explanation = explain(owed, open);
      expect(reasonOf(explanation)).toBe('breaker_open');
      expect(explanation.summary).toMatch(new RegExp(`until ${NEAR}`));
    }
  });

  it('waits for the probe while the breaker is half open', () => {
    const explanation = explain({}, { breakerState: 'half_open', breakerUntil: at(60) });
    expect(reasonOf(explanation)).toBe('probe');
    expect(explanation.summary).toMatch(new RegExp(`must have reported by ${NEAR}`));
  });

  it.each(['open', 'half_open'] as const)(
    'may be the probe itself when the time of %s has passed',
    (state) => {
      const explanation = explain({}, { breakerState: state, breakerUntil: at(-1) });
      expect(reasonOf(explanation)).toBe('probe');
      expect(explanation.summary).toMatch(/the next delivery to be claimed asks/);
    },
  );

  it('names what holds it longest', () => {
    const paused = { paused: true, pausedReason: 'operator' } as const;
    const open = { breakerState: 'open' } as const;
    expect(reasonOf(explain({}, { ...paused, ...open, pausedUntil: at(60), breakerUntil: at(61) }))).toBe(
      'breaker_open',
    );
    expect(reasonOf(explain({}, { ...paused, ...open, pausedUntil: at(61), breakerUntil: at(60) }))).toBe(
      'paused',
    );
    const retry = { dueAt: at(120) };
    expect(reasonOf(explain(retry, { ...open, breakerUntil: at(60) }))).toBe('retry');
    expect(reasonOf(explain(retry, { ...open, breakerUntil: at(-60) }))).toBe('retry');
    expect(reasonOf(explain(retry, { ...open, breakerUntil: at(180) }))).toBe('breaker_open');
  });
});

describe('a delivery that waits for a moment of its own', () => {
  it('waits for its retry, and says what the last attempt met', () => {
    const explanation = explain({ dueAt: at(60) }, {}, { attempts: 2, last: FAILED });
    expect(reasonOf(explanation)).toBe('retry');
    expect(explanation.summary).toBe(
      `Attempt 2 failed at 2026-12-01T11:59:00.000Z (HTTP 503), and it waits for its retry. It is due at ${NEAR}.`,
    );
    const unnamed = explain({ dueAt: at(60) }, {}, { attempts: 2 });
    expect(unnamed.summary).toMatch(/^Attempt 2 failed, /);
    expect(explain({ dueAt: at(60) }).summary).not.toMatch(/Attempt/);
  });

  it('waits for the moment that its producer named', () => {
    const explanation = explain({ dueAt: at(60) }, {}, { deliverAt: at(60) });
    expect(reasonOf(explanation)).toBe('scheduled');
    expect(explanation.summary).toMatch(new RegExp(`due at ${NEAR}`));
    expect(reasonOf(explain({ dueAt: at(60) }, {}, { deliverAt: at(-60), attempts: 1 }))).toBe('retry');
  });

  it('waits after its holder vanished', () => {
    expect(reasonOf(explain({ dueAt: at(60), reclaims: 1 }))).toBe('reclaimed');
    expect(explain({ dueAt: at(60), reclaims: 3 }).summary).toMatch(/3 times in a row/);
  });
});

describe('a delivery that waits in a slot', () => {
  const slot = { waiting: 'slot', slotVersion: 3, dueAt: at(60) } as const;

  it.each(DEFERRAL_REASONS)('says why it was deferred (%s), and when it asks again', (deferralReason) => {
    const explanation = explain({ ...slot, deferralReason });
    expect(reasonOf(explanation)).toBe(deferralReason);
    expect(explanation.summary).toMatch(new RegExp(`Its slot is at ${NEAR}\\.$`));
  });

  it('says by which numbers', () => {
    expect(explain({ ...slot, deferralReason: 'rate_limit' }).summary).toMatch(/10 a second \(burst 20\)/);
    expect(explain({ ...slot, deferralReason: 'concurrency' }).summary).toMatch(/max_in_flight 8/);
  });

  it('after an attempt that failed waits for its retry', () => {
    const explanation = explain(slot, {}, { attempts: 1, last: FAILED });
    expect(reasonOf(explanation)).toBe('retry');
    expect(explanation.summary).toMatch(/HTTP 503.*Its slot is at/);
  });

  it('of an older version, or parked for what has passed, is being timed anew', () => {
    for (const owed of [
      { ...slot, slotVersion: 2 },
      { waiting: 'parked', slotVersion: 3, dueAt: null },
    ] as const) {
      expect(reasonOf(explain(owed))).toBe('retiming');
    }
  });

  it('that has come is due like any other', () => {
    expect(reasonOf(explain({ ...slot, dueAt: at(-1), deferralReason: 'rate_limit' }))).toBe('unannounced');
  });
});

describe('a delivery that nothing holds', () => {
  it('waits to be announced, or to be read', () => {
    expect(reasonOf(explain())).toBe('unannounced');
    const unread = explain({ announcedAt: at(-4) });
    expect(reasonOf(unread)).toBe('unread');
    expect(unread.summary).toMatch(/due since 2026-12-01T11:59:55\.000Z.*told at 2026-12-01T11:59:56\.000Z/);
  });

  it('without a row in the queue is a fault that is said', () => {
    expect(reasonOf(explainDelivery({ ...PENDING, owed: null }))).toBe('not_queued');
  });
});

describe('the gates', () => {
  it('are each named once', () => {
    expect(new Set(GATES).size).toBe(GATES.length);
    for (const reason of DEFERRAL_REASONS) expect(GATES).toContain(reason);
  });
});
