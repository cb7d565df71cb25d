import type { DeadReason } from './vocabulary.ts';

/** What a claim says about its delivery before anything is sent. */
export type ClaimVerdict =
  | { kind: 'send' }
  /** It ends here, unsent and without an attempt. */
  | { kind: 'end'; reason: Extract<DeadReason, 'refused' | 'cancelled' | 'expired'>; loud: boolean }
  /** The event is larger than what may be sent: a cap that was lowered after it was stored. */
  | { kind: 'oversize' };

/**
 * Judges a claimed row. A missing event or endpoint is an operator's accident and is said loudly; a deleted endpoint or a passed expiry is
 * what somebody asked for.
 */
export function judgeClaim(
  claim: {
    eventMissing: boolean;
    endpointMissing: boolean;
    endpointDeleted: boolean;
    expired: boolean;
    payloadBytes: number;
  },
  limits: { maxPayloadBytes: number },
): ClaimVerdict {
  if (claim.eventMissing || claim.endpointMissing) return { kind: 'end', reason: 'refused', loud: true };
  if (claim.endpointDeleted) return { kind: 'end', reason: 'cancelled', loud: false };
  if (claim.expired) return { kind: 'end', reason: 'expired', loud: false };
  return claim.payloadBytes > limits.maxPayloadBytes ? { kind: 'oversize' } : { kind: 'send' };
}
