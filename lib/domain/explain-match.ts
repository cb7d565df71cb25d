import { matchesPattern, NO_EVENTS } from './event-type.ts';
import { hearsOf, isOperational } from './operational-events.ts';
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
  /** Whether its fan-out goes on and will come to this endpoint. */
  stillToCome: boolean;
  /** As it is now; null when the tenant has no such endpoint. */
  endpoint: {
    createdAt: Date;
    deletedAt: Date | null;
    enabled: boolean;
    disabledAt: Date | null;
    disabledReason: DisabledReason | null;
    /** None means everything. */
    eventTypes: readonly string[];
    /** None means none. */
    operationalEvents: readonly string[];
  } | null;
}

/**
 * Why an event was or was not matched to an endpoint. Only what the endpoint is now is known, not what it was then: a reason is given where
 * it must have held, or holds now, and `not_matched_then` where nothing that is known explains it.
 */
export function explainMatch(facts: MatchFacts): { reason: Mismatch | null; detail: string } {
  const { eventType, eventAt, deliveryStatus, stillToCome, endpoint } = facts;
  if (deliveryStatus) return { reason: null, detail: `Matched: its delivery is ${deliveryStatus}.` };
  if (stillToCome) return { reason: null, detail: STILL_TO_COME };
  if (!endpoint) return { reason: 'unknown', detail: UNKNOWN };
  const { createdAt, deletedAt, disabledAt, disabledReason } = endpoint;
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
  if (!subscribes(endpoint, eventType)) return { reason: 'type', detail: otherwise(endpoint, eventType) };
  return { reason: 'not_matched_then', detail: deletedAt ? DELETED_SINCE : NOT_THEN };
}

const STILL_TO_COME =
  'Matched: its delivery is not made yet, because the event goes to very many endpoints and is still being fanned out.';
const UNKNOWN = "No endpoint of this tenant has this id; an event reaches its own tenant's endpoints only.";
const NOT_THEN =
  'It matches now; it did not when the event was accepted, or the event was addressed to one endpoint.';
const DELETED_SINCE =
  'The endpoint, deleted since, did not match when the event was accepted, or the event was addressed to one endpoint.';

type Subscriptions = Pick<NonNullable<MatchFacts['endpoint']>, 'eventTypes' | 'operationalEvents'>;

function subscribes({ eventTypes, operationalEvents }: Subscriptions, type: string): boolean {
  if (isOperational(type)) return hearsOf(operationalEvents, type);
  return eventTypes.length === 0 || eventTypes.some((pattern) => matchesPattern(pattern, type));
}

function otherwise({ eventTypes, operationalEvents }: Subscriptions, type: string): string {
  const patterns = isOperational(type)
    ? operationalEvents
    : eventTypes.filter((one) => !NO_EVENTS.includes(one));
  if (patterns.length > 0)
    return `The endpoint subscribes to ${patterns.join(', ')}: none of these matches ${type}.`;
  return `The endpoint subscribes to no ${isOperational(type) ? 'operational events' : 'events but operational ones'}.`;
}
