import { matchesPattern } from './event-type.ts';
import type { DisabledReason, ShownStatus } from './vocabulary.ts';

/** Why an event made no delivery to an endpoint. */
export const MISMATCHES = [
  'created_after',
  'deleted',
  'disabled',
  'type',
  'not_matched_then',
  'unknown',
] as const;
export type Mismatch = (typeof MISMATCHES)[number];

export interface MatchFacts {
  eventType: string;
  eventAt: Date;
  /** The delivery that the event made to the endpoint. */
  deliveryStatus: ShownStatus | null;
  /** As it is now; null when the tenant has no such endpoint. */
  endpoint: {
    createdAt: Date;
    deletedAt: Date | null;
    enabled: boolean;
    disabledAt: Date | null;
    disabledReason: DisabledReason | null;
    /** None means everything. */
    eventTypes: readonly string[];
  } | null;
}

/**
 * Why an event was or was not matched to an endpoint. Only what the endpoint is now is known, not what it was then: a reason is given where
 * it must have held, or holds now, and `not_matched_then` where nothing that is known explains it.
 */
export function explainMatch(facts: MatchFacts): { reason: Mismatch | null; detail: string } {
  const { eventType, eventAt, deliveryStatus, endpoint } = facts;
  if (deliveryStatus) return { reason: null, detail: `Matched: its delivery is ${deliveryStatus}.` };
  if (!endpoint) return { reason: 'unknown', detail: UNKNOWN };
  const { createdAt, deletedAt, disabledAt, disabledReason, eventTypes } = endpoint;
  if (createdAt > eventAt) {
    const detail = `The endpoint was made at ${createdAt.toISOString()}, after the event was accepted.`;
    return { reason: 'created_after', detail };
  }
  if (deletedAt && deletedAt <= eventAt) {
    const detail = `The endpoint was deleted at ${deletedAt.toISOString()}, before the event was accepted.`;
    return { reason: 'deleted', detail };
  }
  if (!endpoint.enabled && (disabledAt === null || disabledAt <= eventAt)) {
    const since = disabledAt ? ` since ${disabledAt.toISOString()}` : '';
    const detail = `The endpoint is disabled${since} (${disabledReason ?? 'no reason recorded'}).`;
    return { reason: 'disabled', detail };
  }
  if (!subscribes(eventTypes, eventType)) {
    const detail = `The endpoint subscribes to ${eventTypes.join(', ')}: none of these matches ${eventType}.`;
    return { reason: 'type', detail };
  }
  return { reason: 'not_matched_then', detail: deletedAt ? DELETED_SINCE : NOT_THEN };
}

const UNKNOWN = "No endpoint of this tenant has this id; an event reaches its own tenant's endpoints only.";
const NOT_THEN =
  'It matches now; it did not when the event was accepted, or the event was addressed to one endpoint.';
const DELETED_SINCE =
  'The endpoint, deleted since, did not match when the event was accepted, or the event was addressed to one endpoint.';

function subscribes(patterns: readonly string[], type: string): boolean {
  return patterns.length === 0 || patterns.some((pattern) => matchesPattern(pattern, type));
}
