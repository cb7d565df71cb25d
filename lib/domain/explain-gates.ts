import { at, type DeliveryFacts, type EndpointFacts, inWords, type OwedFacts } from './explain-facts.ts';
import type { DeferralReason, DisabledReason, PauseReason } from './vocabulary.ts';

/** What may stand between an owed delivery and its arrival. */
export const GATES = [
  'inflight',
  'lease_ended',
  'cancelling',
  'expired',
  'missing',
  'endpoint_deleted',
  'disabled',
  'paused',
  'breaker_open',
  'probe',
  'rate_limit',
  'concurrency',
  'retiming',
  'scheduled',
  'retry',
  'reclaimed',
  'unread',
  'unannounced',
  'not_queued',
] as const;
export type GateReason = (typeof GATES)[number];

export interface Gate {
  reason: GateReason;
  detail: string;
  /** What comes next. */
  outlook: string;
}

export const NOT_QUEUED: Gate = {
  reason: 'not_queued',
  detail: 'It is owed and has no row in the queue, which should be impossible.',
  outlook: 'The invariant check finds and repairs it.',
};

/** The first that applies, from what ends it to what only delays it. */
export function gateOf(facts: DeliveryFacts, owed: OwedFacts): Gate {
  return (
    heldBy(facts, owed) ??
    endedBy(facts, owed) ??
    parkedBy(facts) ??
    delayedBy(facts, owed) ??
    probedFor(facts, owed) ??
    slotOf(facts, owed) ??
    unclaimed(owed)
  );
}

function heldBy({ now }: DeliveryFacts, { lease, cancelRequested }: OwedFacts): Gate | null {
  if (!lease) return null;
  const { process, expiresAt } = lease;
  if (expiresAt > now) {
    return {
      reason: 'inflight',
      detail: `Process ${process} is sending it, or is about to; its lease runs until ${at(expiresAt)}.`,
      outlook: cancelRequested
        ? 'Cancelling was asked for: if this request does not succeed, it ends dead.'
        : 'The outcome is written when the request ends.',
    };
  }
  return {
    reason: 'lease_ended',
    detail: `Process ${process} held it until ${at(expiresAt)} and wrote no outcome: it has probably vanished.`,
    outlook: cancelRequested
      ? 'Cancelling was asked for: it ends dead some 5 to 15 seconds after that.'
      : 'The reconciler takes it back some 5 to 15 seconds after that, and it is sent again.',
  };
}

function endedBy({ now, eventMissing, endpoint }: DeliveryFacts, owed: OwedFacts): Gate | null {
  if (owed.cancelRequested) {
    const outlook = 'It ends dead, unsent, within moments.';
    return { reason: 'cancelling', detail: 'Cancelling was asked for.', outlook };
  }
  if (owed.expiresAt && owed.expiresAt <= now) {
    const detail = `Its event expired at ${at(owed.expiresAt)}.`;
    return { reason: 'expired', detail, outlook: 'It ends dead, unsent, within moments.' };
  }
  if (eventMissing || !endpoint) {
    const detail = `Its ${eventMissing ? 'event' : 'endpoint'} is missing from the database.`;
    return { reason: 'missing', detail, outlook: 'It ends dead, refused, when it is claimed.' };
  }
  if (!endpoint.deleted) return null;
  const outlook = 'It ends dead, cancelled, within moments.';
  return { reason: 'endpoint_deleted', detail: 'Its endpoint is deleted.', outlook };
}

const DISABLED: Record<DisabledReason, string> = {
  operator: 'by an operator',
  gone: 'because it answered HTTP 410',
  failing: 'because for days it did nothing but fail',
};
const PAUSED: Record<PauseReason, string> = {
  operator: 'by an operator',
  retry_after: 'because it asked for it (Retry-After)',
};

function parkedBy({ endpoint }: DeliveryFacts): Gate | null {
  if (endpoint && !endpoint.enabled) {
    const why = endpoint.disabledReason ? ` ${DISABLED[endpoint.disabledReason]}` : '';
    const detail = `Its endpoint is disabled${why}, since ${at(endpoint.disabledAt)}.`;
    return { reason: 'disabled', detail, outlook: 'It goes when the endpoint is enabled.' };
  }
  if (!endpoint?.paused || endpoint.pausedUntil) return null;
  const detail = `Its endpoint is paused ${pausedWhy(endpoint)}, without an end.`;
  return { reason: 'paused', detail, outlook: 'It goes when the endpoint is resumed.' };
}

const pausedWhy = ({ pausedReason }: EndpointFacts) => PAUSED[pausedReason ?? 'operator'];

/** Of everything that has an end, what holds it longest. */
function delayedBy(facts: DeliveryFacts, owed: OwedFacts): Gate | null {
  const delays = [...delaysOfEndpoint(facts, owed), ...ownDelay(facts, owed)];
  const [longest] = delays.sort((a, b) => b.until.getTime() - a.until.getTime());
  return longest ? longest.gate : null;
}

interface Delay {
  until: Date;
  gate: Gate;
}

function delaysOfEndpoint({ now, endpoint }: DeliveryFacts, owed: OwedFacts): Delay[] {
  if (!endpoint) return [];
  const { paused, pausedUntil, breakerState, breakerUntil } = endpoint;
  const delays: Delay[] = [];
  if (paused && pausedUntil) {
    const detail = `Its endpoint is paused ${pausedWhy(endpoint)} until ${at(pausedUntil)}.`;
    delays.push({
      until: pausedUntil,
      gate: { reason: 'paused', detail, outlook: afterwards(owed, pausedUntil) },
    });
  }
  if (breakerUntil && breakerUntil > now) {
    const gate: Omit<Gate, 'outlook'> =
      breakerState === 'open'
        ? {
            reason: 'breaker_open',
            detail: `Its endpoint keeps failing: the breaker is open until ${at(breakerUntil)}.`,
          }
        : {
            reason: 'probe',
            detail: `One request asks whether its endpoint is back; it must have reported by ${at(breakerUntil)}.`,
          };
    delays.push({ until: breakerUntil, gate: { ...gate, outlook: afterwards(owed, breakerUntil) } });
  }
  return delays;
}

function afterwards({ waiting, dueAt }: OwedFacts, end: Date): string {
  if (!dueAt || dueAt <= end) return 'It goes after that, at the pace of its endpoint.';
  return `${waiting === 'slot' ? 'Its slot is' : 'It is due'} at ${at(dueAt)}.`;
}

/** A wait of the delivery's own, whatever its endpoint's state. */
function ownDelay(facts: DeliveryFacts, { waiting, dueAt, reclaims }: OwedFacts): Delay[] {
  const { now, deliverAt } = facts;
  if (waiting !== null || !dueAt || dueAt <= now) return [];
  const outlook = `It is due at ${at(dueAt)}.`;
  if (deliverAt && deliverAt > now) {
    const detail = 'Its producer asked for a later delivery.';
    return [{ until: dueAt, gate: { reason: 'scheduled', detail, outlook } }];
  }
  if (reclaims > 0) {
    const detail = `The process that held it vanished${reclaims > 1 ? `, ${reclaims} times in a row` : ''}.`;
    return [{ until: dueAt, gate: { reason: 'reclaimed', detail, outlook } }];
  }
  return [{ until: dueAt, gate: { reason: 'retry', detail: failure(facts), outlook } }];
}

function failure({ attempts, last }: DeliveryFacts): string {
  if (attempts === 0) return 'It waits for its moment.';
  if (!last) return `Attempt ${attempts} failed, and it waits for its retry.`;
  const when = last.at ? ` at ${at(last.at)}` : '';
  return `Attempt ${attempts} failed${when} (${inWords(last)}), and it waits for its retry.`;
}

/** Whatever is due goes to an endpoint whose breaker is not closed as the probe, one at a time. */
function probedFor({ endpoint }: DeliveryFacts, owed: OwedFacts): Gate | null {
  if (!endpoint || endpoint.breakerState === 'closed') return null;
  const detail =
    endpoint.breakerState === 'open'
      ? `The cooldown of its endpoint's breaker ended at ${at(endpoint.breakerUntil)}: the next delivery to be claimed asks whether the endpoint is back.`
      : `The request that was to ask whether its endpoint is back has not reported by ${at(endpoint.breakerUntil)}: the next delivery to be claimed asks again.`;
  return { reason: 'probe', detail, outlook: afterwards(owed, endpoint.breakerUntil ?? new Date(0)) };
}

function slotOf(facts: DeliveryFacts, owed: OwedFacts): Gate | null {
  const { now, endpoint } = facts;
  if (owed.waiting === null || !endpoint) return null;
  if (owed.waiting === 'parked' || owed.slotVersion !== endpoint.slotVersion) {
    const detail = 'What its endpoint allows has changed, and what waits for it is timed anew.';
    return { reason: 'retiming', detail, outlook: 'It is given a new slot within moments.' };
  }
  if (!owed.dueAt || owed.dueAt <= now) return null;
  const outlook = `Its slot is at ${at(owed.dueAt)}.`;
  return { ...slotReason(facts, owed.deferralReason, endpoint), outlook };
}

function slotReason(
  facts: DeliveryFacts,
  reason: DeferralReason | null,
  { ratePerSecond, burst, maxInFlight }: EndpointFacts,
): Omit<Gate, 'outlook'> {
  switch (reason) {
    case 'rate_limit': {
      const detail = `Its endpoint is owed more than its rate of ${ratePerSecond} a second (burst ${burst}) lets through.`;
      return { reason, detail };
    }
    case 'concurrency':
      return {
        reason,
        detail: `Its endpoint had as many requests open as it may have (max_in_flight ${maxInFlight}).`,
      };
    case 'breaker_open':
    case 'probe':
      return { reason, detail: 'It was deferred while the breaker of its endpoint was not closed.' };
    case 'paused':
      return { reason, detail: 'It was deferred while its endpoint was paused.' };
    case 'disabled':
      return { reason, detail: 'It was deferred while its endpoint was disabled.' };
    case null:
      return { reason: 'retry', detail: failure(facts) };
  }
}

function unclaimed({ dueAt, announcedAt }: OwedFacts): Gate {
  if (announcedAt) {
    return {
      reason: 'unread',
      detail: `It is due since ${at(dueAt)}; dispatchers were told at ${at(announcedAt)}, and none has claimed it yet.`,
      outlook: 'They are behind, or none runs; what was told and lost is told again after 30 seconds.',
    };
  }
  return {
    reason: 'unannounced',
    detail: `It is due since ${at(dueAt)}, and dispatchers were not told yet.`,
    outlook: 'The reconciler tells them within a second, if one runs.',
  };
}
