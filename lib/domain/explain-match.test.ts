import { describe, expect, it } from 'vitest';
import { NO_EVENTS } from './event-type.ts';
import { explainMatch, type MatchFacts } from './explain-match.ts';

const NOON = Date.parse('2026-12-01T12:00:00Z');
const at = (seconds: number) => new Date(NOON + seconds * 1_000);

/** An endpoint older than the event of noon, which matches it now. */
const ENDPOINT: NonNullable<MatchFacts['endpoint']> = {
  createdAt: at(-60),
  deletedAt: null,
  enabled: true,
  disabledAt: null,
  disabledReason: null,
  eventTypes: ['order.*'],
  operationalEvents: [],
};

const explain = (endpoint: Partial<typeof ENDPOINT>, facts: Partial<MatchFacts> = {}) =>
  explainMatch({
    eventType: 'order.paid',
    eventAt: at(0),
    deliveryStatus: null,
    stillToCome: false,
    endpoint: { ...ENDPOINT, ...endpoint },
    ...facts,
  });

describe('an endpoint that an event was matched to', () => {
  it('says how its delivery is, whatever became of the endpoint', () => {
    for (const endpoint of [{}, { deletedAt: at(1) }, { eventTypes: ['user.*'] }]) {
      expect(explain(endpoint, { deliveryStatus: 'dead' })).toEqual({
        reason: null,
        detail: 'Matched: its delivery is dead.',
      });
    }
  });

  it('has none yet while the fan-out has not come to it', () => {
    for (const endpoint of [{}, { deletedAt: at(1) }, { eventTypes: ['user.*'] }]) {
      const explanation = explain(endpoint, { stillToCome: true });
      expect(explanation.reason).toBeNull();
      expect(explanation.detail).toMatch(/^Matched: .*still being fanned out/);
    }
  });
});

describe('an endpoint that an event was not matched to', () => {
  it.each([
    ['created_after', { createdAt: at(1) }, /made at 2026-12-01T12:00:01\.000Z/],
    ['created_after', { createdAt: at(1), eventTypes: ['user.*'], deletedAt: at(2) }, /after/],
    ['deleted', { deletedAt: at(-1) }, /deleted at 2026-12-01T11:59:59\.000Z/],
    ['disabled', { enabled: false, disabledAt: at(-1), disabledReason: 'gone' }, /since 2026-.*\(gone\)/],
    ['disabled', { enabled: false, disabledAt: null, disabledReason: 'operator' }, /disabled \(operator\)/],
    ['type', { eventTypes: ['user.*', 'order'] }, /user\.\*, order: none of these matches order\.paid/],
    ['type', { eventTypes: [...NO_EVENTS] }, /no events but operational ones/],
    ['type', { eventTypes: ['user.*'], enabled: false, disabledAt: at(1) }, /none of these/],
    ['not_matched_then', {}, /did not when .* addressed to one endpoint/],
    ['not_matched_then', { eventTypes: [] }, /did not when/],
    ['not_matched_then', { eventTypes: ['*'], enabled: false, disabledAt: at(1) }, /did not when/],
    ['not_matched_then', { deletedAt: at(1) }, /deleted since/],
  ] as const)('says why: %s (%j)', (reason, endpoint, words) => {
    const explanation = explain(endpoint);
    expect(explanation.reason).toBe(reason);
    expect(explanation.detail).toMatch(words);
  });

  it('is unknown when the tenant has none of this id', () => {
    expect(explain({}, { endpoint: null })).toEqual({
      reason: 'unknown',
      detail: "No endpoint of this tenant has this id; an event reaches its own tenant's endpoints only.",
    });
  });
});

describe('an operational event', () => {
  const about = { eventType: '~endpoint.disabled' };

  it.each([
    ['type', { eventTypes: ['*'] }, /no operational events/],
    [
      'type',
      { operationalEvents: ['delivery.*'] },
      /delivery\.\*: none of these matches ~endpoint\.disabled/,
    ],
    ['not_matched_then', { eventTypes: ['user.*'], operationalEvents: ['endpoint.*'] }, /did not when/],
    ['not_matched_then', { operationalEvents: ['*'] }, /did not when/],
  ] as const)('is matched by what is asked of Relay alone: %s (%j)', (reason, endpoint, words) => {
    const explanation = explain(endpoint, about);
    expect(explanation.reason).toBe(reason);
    expect(explanation.detail).toMatch(words);
  });
});
