import type { DeliveryTimes } from '../../../lib/domain/delivery-times.ts';
import type { FirstAnswer } from '../../../lib/store/ingest.ts';

/** One event that a client posted, already checked. */
export interface EventRequest extends DeliveryTimes {
  tenantId: string;
  type: string;
  contentType: string;
  payload: Buffer;
  idempotencyKey: string | null;
  targetEndpointId: string | null;
}

/** What became of it. Every kind but `accepted` means that the client must not believe it stored. */
export type AcceptResult =
  | (FirstAnswer & { kind: 'accepted'; eventId: string; replayed: boolean })
  /** The key was used for another request. */
  | { kind: 'conflict' }
  /** Somebody's open transaction holds the key. */
  | { kind: 'in_progress' }
  /** The targeted endpoint does not exist for this tenant, or is disabled. */
  | { kind: 'no_target' }
  | { kind: 'too_many_deliveries' }
  /** Its end has passed, by the database's clock. */
  | { kind: 'already_expired' }
  | { kind: 'overloaded' }
  /** The connection broke, or Postgres stopped, between the statement and its answer. */
  | { kind: 'commit_unknown' }
  /** Nothing was committed, and no fault of this event. */
  | { kind: 'unavailable' }
  /** Postgres refuses the data of this event. */
  | { kind: 'rejected'; message: string };

/** A request on its way through a batch. */
export interface Member {
  request: EventRequest;
  /** Set for requests with an idempotency key. */
  digest: Buffer | null;
  arrivedAt: number;
  answer: (result: AcceptResult) => void;
  /** Requests with the same key that arrived meanwhile; they are answered from this one's result. */
  followers: Member[];
  /** How often it was looked at again, because its key changed hands. */
  looks: number;
}

/** The name of a request's key within a process. */
export function keyOf(request: EventRequest): string {
  return `${request.tenantId} ${request.idempotencyKey}`;
}
