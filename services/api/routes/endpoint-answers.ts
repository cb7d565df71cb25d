import { NO_EVENTS } from '../../../lib/domain/event-type.ts';
import { isAddressed } from '../../../lib/domain/transports/endpoint-rules.ts';
import type { BreakerState } from '../../../lib/domain/vocabulary.ts';
import type { Endpoint } from '../../../lib/store/endpoints.ts';
import { idParams } from '../http/fields.ts';
import { Problem } from '../http/problem.ts';
import type { Call, Reply } from '../http/route.ts';
import { EndpointShape } from './shapes.ts';

/** What the routes of one endpoint have in common. */
export const tag = 'Endpoints';
export const ofOne = { access: 'manage', tag, params: idParams, problems: ['endpoint_not_found'] } as const;
export const theEndpoint = [{ status: 200, description: 'The endpoint', schema: EndpointShape }];

export type IdCall = Call<{ id: string }, Record<string, never>, Record<string, never>>;

export const absent = () => new Problem('endpoint_not_found', 'there is no endpoint of this id');
export const refOf = ({ tenantId, params }: Pick<IdCall, 'tenantId' | 'params'>) => ({
  tenantId,
  id: params.id,
});

/** Answers with the endpoint; throws the 404 Problem when there is none. */
export async function reply(endpoint: Promise<Endpoint | null>): Promise<Reply> {
  const found = await endpoint;
  if (!found) throw absent();
  return { status: 200, json: shownEndpoint(found) };
}

export function shownEndpoint(endpoint: Endpoint) {
  return {
    id: endpoint.id,
    tenant_id: endpoint.tenantId,
    url: endpoint.url,
    transport: endpoint.transport,
    event_types: shownEventTypes(endpoint.eventTypes),
    operational_events: endpoint.operationalEvents,
    operational_scope: endpoint.operationalScope,
    description: endpoint.description,
    enabled: endpoint.enabled,
    disabled_reason: endpoint.disabledReason,
    disabled_at: endpoint.disabledAt,
    signing_scheme: isAddressed(endpoint.transport) ? null : endpoint.signingScheme,
    previous_secret_expires_at: endpoint.previousSecretExpiresAt,
    public_key: endpoint.publicKey,
    previous_key_expires_at: endpoint.previousKeyExpiresAt,
    headers: Object.fromEntries(endpoint.headerNames.map((name) => [name, null])),
    header_prefix: endpoint.headerPrefix,
    rate_per_second: endpoint.ratePerSecond,
    burst: endpoint.burst,
    max_in_flight: endpoint.maxInFlight,
    retry_policy: endpoint.retryPolicy,
    timeouts: endpoint.timeouts,
    paused: endpoint.paused,
    paused_until: endpoint.pausedUntil,
    paused_reason: endpoint.pausedReason,
    breaker: shownBreaker(endpoint),
    failing_since: endpoint.failingSince,
    version: endpoint.version,
    created_at: endpoint.createdAt,
    updated_at: endpoint.updatedAt,
  };
}

/** Null for an endpoint that takes no events of producers. */
export function shownEventTypes(patterns: readonly string[]): readonly string[] | null {
  return patterns.every((pattern) => NO_EVENTS.includes(pattern)) && patterns.length > 0 ? null : patterns;
}

export function shownBreaker(endpoint: {
  breakerState: BreakerState;
  breakerFailures: number;
  breakerTrips: number;
  breakerUntil: Date | null;
}) {
  return {
    state: endpoint.breakerState,
    failures: endpoint.breakerFailures,
    trips: endpoint.breakerTrips,
    until: endpoint.breakerUntil,
  };
}
