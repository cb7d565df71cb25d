import type {
  BreakerState,
  DeadReason,
  DeferralReason,
  DisabledReason,
  OutcomeClass,
  PauseReason,
  ShownStatus,
  Wait,
} from './vocabulary.ts';

/** What is known of a delivery when somebody asks where it is. */
export interface DeliveryFacts {
  /** The database's clock when the rest was read. */
  now: Date;
  status: ShownStatus;
  deadReason: DeadReason | null;
  finishedAt: Date | null;
  /** Spent of the budget since acceptance or the last replay. */
  attempts: number;
  /** The newest outcome that was not a deferral; null before the first. */
  last: { class: OutcomeClass; httpStatus: number | null; error: string | null; at: Date | null } | null;
  eventMissing: boolean;
  /** The moment that the producer asked for. */
  deliverAt: Date | null;
  /** Null when it is missing. */
  endpoint: EndpointFacts | null;
  /** Null when nothing is owed. */
  owed: OwedFacts | null;
}

export interface EndpointFacts {
  deleted: boolean;
  enabled: boolean;
  disabledReason: DisabledReason | null;
  disabledAt: Date | null;
  paused: boolean;
  /** Null without an end. */
  pausedUntil: Date | null;
  pausedReason: PauseReason | null;
  breakerState: BreakerState;
  breakerUntil: Date | null;
  ratePerSecond: number;
  burst: number;
  maxInFlight: number;
  slotVersion: number;
}

export interface OwedFacts {
  /** Null while it is parked. */
  dueAt: Date | null;
  announcedAt: Date | null;
  expiresAt: Date | null;
  reclaims: number;
  waiting: Wait | null;
  slotVersion: number | null;
  deferralReason: DeferralReason | null;
  cancelRequested: boolean;
  /** A lease that is set; it may have ended. */
  lease: { process: number; expiresAt: Date } | null;
}

/** A moment in RFC 3339, UTC. */
export const at = (moment: Date | null) => moment?.toISOString() ?? 'an unknown moment';

export function inWords(last: NonNullable<DeliveryFacts['last']>): string {
  return last.httpStatus === null ? (last.error ?? 'no answer') : `HTTP ${last.httpStatus}`;
}
