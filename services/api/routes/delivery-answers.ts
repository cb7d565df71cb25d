import type { Attempt, Delivery } from '../../../lib/store/deliveries-read.ts';
import type { Event } from '../../../lib/store/events-read.ts';
import { Problem } from '../http/problem.ts';

/** How deliveries, their attempts and events are shown. */

export const noDelivery = () => new Problem('delivery_not_found', 'there is no delivery of this id');
export const noEvent = () => new Problem('event_not_found', 'there is no event of this id');

export function shownDelivery(delivery: Delivery) {
  return {
    id: delivery.id,
    event_id: delivery.eventId,
    endpoint_id: delivery.endpointId,
    event_type: delivery.eventType,
    status: delivery.status,
    attempt: delivery.attempts,
    sends: delivery.sends,
    generation: delivery.generation,
    dead_reason: delivery.deadReason,
    deferral_reason: delivery.deferralReason,
    cancel_requested: delivery.cancelRequested,
    last_class: delivery.lastClass,
    last_http_status: delivery.lastHttpStatus,
    next_attempt_at: delivery.nextAttemptAt,
    created_at: delivery.createdAt,
    finished_at: delivery.finishedAt,
  };
}

export function shownAttempt(deliveryId: string, attempt: Attempt) {
  return {
    delivery_id: deliveryId,
    seq: attempt.seq,
    attempt_no: attempt.attempt,
    send_no: attempt.send,
    generation: attempt.generation,
    outcome_class: attempt.class,
    reason: attempt.reason,
    http_status: attempt.httpStatus,
    latency_ms: attempt.durationMs,
    lateness_ms: attempt.latenessMs,
    error: attempt.error,
    response_snippet: attempt.responseSnippet,
    worker_id: attempt.claimedBy,
    next_attempt_at: attempt.nextAttemptAt,
    at: attempt.at,
  };
}

export function shownEvent(event: Event) {
  return {
    id: event.id,
    type: event.type,
    content_type: event.contentType,
    payload_bytes: event.payloadBytes,
    matched: event.matched,
    deliver_at: event.deliverAt,
    expires_at: event.expiresAt,
    created_at: event.createdAt,
  };
}
