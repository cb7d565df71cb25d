import { z } from 'zod';
import {
  AUDIT_ACTORS,
  BREAKER_STATES,
  DEAD_REASONS,
  DEFERRAL_REASONS,
  DISABLED_REASONS,
  OPERATIONAL_SCOPES,
  OUTCOME_CLASSES,
  PAUSE_REASONS,
  PORTAL_SCOPES,
  SCOPES,
  SHOWN_STATUSES,
  type ShownStatus,
  SIGNING_SCHEMES,
  TRANSPORTS,
} from '../../../lib/domain/vocabulary.ts';
import { PROBLEMS, type ProblemCode } from '../http/problem.ts';

/** What the API answers, for its documentation; a test holds real answers against these. */

const id = () => z.string().meta({ format: 'uuid' });
const moment = () => z.string().meta({ format: 'date-time' });

export function pageOf<T extends z.ZodType>(item: T) {
  return z.strictObject({
    count: z.int(),
    items: z.array(item),
    next_cursor: z
      .string()
      .nullable()
      .meta({ description: 'Give it as `cursor` for the next page; null at the end.' }),
  });
}

export const TenantShape = z
  .strictObject({ id: id(), name: z.string(), created_at: moment() })
  .meta({ id: 'Tenant' });

export const KeyShape = z
  .strictObject({
    id: id(),
    tenant_id: id().nullable().meta({ description: 'Null for an admin key.' }),
    name: z.string(),
    prefix: z.string(),
    scopes: z.array(z.enum(SCOPES)),
    requests_per_second: z
      .number()
      .nullable()
      .meta({ description: 'Null: the limit that the API is configured with.' }),
    created_at: moment(),
    expires_at: moment().nullable(),
    revoked_at: moment().nullable(),
    replaced_by: id().nullable().meta({ description: 'The key that a rotation put in its place.' }),
    last_used_at: moment().nullable(),
  })
  .meta({ id: 'Key' });

export const NewKeyShape = z
  .strictObject({
    ...KeyShape.shape,
    key: z.string().meta({ description: 'The key itself, shown this once.' }),
  })
  .meta({ id: 'NewKey' });

export const RotatedKeyShape = z
  .strictObject({
    ...NewKeyShape.shape,
    previous_id: id(),
    previous_expires_at: moment().meta({ description: 'Until then both keys work.' }),
  })
  .meta({ id: 'RotatedKey' });

export const PortalTokenShape = z
  .strictObject({
    id: id(),
    tenant_id: id(),
    name: z.string(),
    prefix: z.string(),
    scopes: z.array(z.enum(PORTAL_SCOPES)),
    endpoint_ids: z.array(id()).nullable().meta({ description: 'Null: every endpoint of the tenant.' }),
    created_at: moment(),
    expires_at: moment(),
  })
  .meta({ id: 'PortalToken' });

export const NewPortalTokenShape = z
  .strictObject({
    ...PortalTokenShape.shape,
    token: z.string().meta({ description: 'The token itself, shown this once.' }),
  })
  .meta({ id: 'NewPortalToken' });

export const AuditEntryShape = z
  .strictObject({
    id: id(),
    at: moment(),
    tenant_id: id()
      .nullable()
      .meta({ description: 'Null for what belongs to no tenant, such as an admin key.' }),
    actor: z.enum(AUDIT_ACTORS),
    actor_id: id()
      .nullable()
      .meta({ description: 'The key or portal token; null for `admin`, the key of RELAY_ADMIN_KEY.' }),
    action: z.string().meta({ description: 'The operationId of the route.' }),
    resource: z.string(),
    resource_id: id().nullable(),
    changes: z
      .record(z.string(), z.unknown())
      .meta({ description: 'What was asked for; secrets stand as `[redacted]`.' }),
    request_id: z.string(),
  })
  .meta({ id: 'AuditEntry' });

export const RetryPolicyShape = z.strictObject({
  max_attempts: z.int().optional(),
  base_ms: z.int().optional(),
  factor: z.number().optional(),
  cap_ms: z.int().optional(),
});

export const TimeoutsShape = z.strictObject({
  request_ms: z.int().optional(),
  connect_ms: z.int().optional(),
  idle_ms: z.int().optional(),
});

export const BreakerShape = z
  .strictObject({
    state: z.enum(BREAKER_STATES),
    failures: z.int().meta({ description: 'In a row, while it is closed.' }),
    trips: z.int().meta({ description: 'How often it has opened or been reset.' }),
    until: moment().nullable().meta({
      description: 'The end of the cooldown while open; while half open, when the probe must have reported.',
    }),
  })
  .meta({ id: 'Breaker' });

export const EndpointShape = z
  .strictObject({
    id: id(),
    tenant_id: id(),
    url: z.string(),
    transport: z.enum(TRANSPORTS),
    event_types: z
      .array(z.string())
      .nullable()
      .meta({ description: 'None at all means everything, null none but operational events.' }),
    operational_events: z.array(z.string()),
    operational_scope: z.enum(OPERATIONAL_SCOPES),
    description: z.string(),
    enabled: z.boolean(),
    disabled_reason: z.enum(DISABLED_REASONS).nullable(),
    disabled_at: moment().nullable(),
    signing_scheme: z
      .enum(SIGNING_SCHEMES)
      .nullable()
      .meta({ description: 'Null for what is not signed: chat and email.' }),
    previous_secret_expires_at: moment().nullable(),
    public_key: z
      .string()
      .nullable()
      .meta({ description: 'Of the key pair that signs beside the secret; null without one.' }),
    previous_key_expires_at: moment().nullable(),
    headers: z
      .record(z.string(), z.null())
      .meta({ description: 'The custom headers by name; values are not shown.' }),
    header_prefix: z
      .string()
      .nullable()
      .meta({ description: "First part of the names of Relay's own headers; null for the configured one." }),
    rate_per_second: z.number(),
    burst: z.number(),
    max_in_flight: z.int(),
    retry_policy: RetryPolicyShape.nullable(),
    timeouts: TimeoutsShape.nullable(),
    paused: z.boolean(),
    paused_until: moment()
      .nullable()
      .meta({ description: 'Null while it is paused without an end, and when it is not paused.' }),
    paused_reason: z.enum(PAUSE_REASONS).nullable(),
    breaker: BreakerShape,
    failing_since: moment()
      .nullable()
      .meta({ description: 'The first failure after the last success; null while it is well.' }),
    version: z.int(),
    created_at: moment(),
    updated_at: moment(),
  })
  .meta({ id: 'Endpoint' });

export const NewEndpointShape = z
  .strictObject({
    ...EndpointShape.shape,
    secret: z
      .string()
      .nullable()
      .meta({ description: 'The signing secret, shown this once; null for chat and email.' }),
  })
  .meta({ id: 'NewEndpoint' });

export const RotationShape = z
  .strictObject({
    id: id(),
    secret: z.string().nullable().meta({
      description: 'The new signing secret, shown this once; null for chat, whose token its owner has.',
    }),
    previous_secret_expires_at: moment().nullable(),
    version: z.int(),
  })
  .meta({ id: 'Rotation' });

export const DeliveryShape = z
  .strictObject({
    id: id(),
    event_id: id(),
    endpoint_id: id(),
    event_type: z.string(),
    status: z.enum(SHOWN_STATUSES),
    attempt: z
      .int()
      .meta({ description: 'Attempts spent of the budget since acceptance or the last replay.' }),
    sends: z.int().meta({ description: 'Requests sent in all; replay does not reset it.' }),
    generation: z.int().meta({ description: '1, and one more for each replay.' }),
    dead_reason: z.enum(DEAD_REASONS).nullable(),
    deferral_reason: z.enum(DEFERRAL_REASONS).nullable(),
    cancel_requested: z.boolean(),
    last_class: z.enum(OUTCOME_CLASSES).nullable(),
    last_http_status: z.int().nullable(),
    next_attempt_at: moment().nullable(),
    created_at: moment(),
    finished_at: moment().nullable(),
  })
  .meta({ id: 'Delivery' });

export const AttemptShape = z
  .strictObject({
    delivery_id: id(),
    seq: z.int().meta({ description: 'Orders the log; never reset.' }),
    attempt_no: z.int(),
    send_no: z.int().nullable(),
    generation: z.int(),
    outcome_class: z.enum(OUTCOME_CLASSES),
    reason: z.string().nullable(),
    http_status: z.int().nullable(),
    latency_ms: z.int().nullable(),
    lateness_ms: z.int().nullable(),
    error: z.string().nullable(),
    response_snippet: z.string().nullable(),
    worker_id: z.int().nullable(),
    next_attempt_at: moment().nullable(),
    at: moment(),
  })
  .meta({ id: 'Attempt' });

export const DeliveryDetailShape = z
  .strictObject({
    delivery: DeliveryShape,
    attempts: z.array(AttemptShape),
    attempts_truncated: z
      .boolean()
      .meta({ description: 'Whether older rows of the log than the newest 500 were left out.' }),
  })
  .meta({ id: 'DeliveryDetail' });

export const AcceptedShape = z
  .strictObject({
    event_id: id(),
    delivery_ids: z.array(id()),
    fan_out: z
      .strictObject({
        state: z.literal('continues'),
        matched: z.int().meta({ description: 'How many endpoints it goes to in all.' }),
      })
      .optional()
      .meta({
        description:
          'Only for an event that matches more than 1,000 endpoints: `delivery_ids` are those of the first 1,000, and the others are made after this answer.',
      }),
  })
  .meta({ id: 'Accepted' });

export const EventShape = z
  .strictObject({
    id: id(),
    type: z.string(),
    content_type: z.string(),
    payload_bytes: z.int(),
    matched: z.int().nullable().meta({
      description: 'How many endpoints it goes to; null for an event from before this was counted.',
    }),
    deliver_at: moment().nullable(),
    expires_at: moment().nullable(),
    created_at: moment(),
  })
  .meta({ id: 'Event' });

export const EventDetailShape = z
  .strictObject({
    event: EventShape,
    counts: z
      .strictObject({
        ...(Object.fromEntries(SHOWN_STATUSES.map((status) => [status, z.int()])) as Record<
          ShownStatus,
          z.ZodInt
        >),
        capped: z.boolean().meta({ description: 'Whether there are more than the 10,000 that are counted.' }),
      })
      .meta({ description: 'Its deliveries by status.' }),
    deliveries: z.array(DeliveryShape),
    next_cursor: z.string().nullable(),
  })
  .meta({ id: 'EventDetail' });

export const DeadLetterShape = z
  .strictObject({
    delivery_id: id(),
    endpoint_id: id(),
    event_id: id(),
    event_type: z.string(),
    url: z.string().nullable(),
    attempt: z.int(),
    generation: z.int(),
    dead_reason: z.enum(DEAD_REASONS),
    last_class: z.enum(OUTCOME_CLASSES).nullable(),
    last_http_status: z.int().nullable(),
    last_error: z.string().nullable(),
    created_at: moment(),
    died_at: moment(),
  })
  .meta({ id: 'DeadLetter' });

export const ReplayShape = z
  .strictObject({
    replayed: z.int(),
    skipped: z
      .int()
      .meta({ description: 'Matched, but their endpoint is deleted or somebody else replays them.' }),
    limit: z.int(),
    delivery_ids: z.array(id()).meta({ description: 'What was replayed, oldest death first.' }),
  })
  .meta({ id: 'BulkReplay' });

export const SingleReplayShape = z
  .strictObject({ replayed: z.literal(1), delivery_id: id() })
  .meta({ id: 'Replay' });

const check = z.strictObject({ status: z.enum(['pass', 'fail', 'skipped']), detail: z.string() });

export const ReadinessShape = z
  .strictObject({
    ready: z.boolean(),
    draining: z.boolean(),
    database: check,
    dispatcher: check,
    queue: check,
  })
  .meta({ id: 'Readiness' });

export const ProblemShape = z
  .strictObject({
    type: z.string(),
    title: z.string(),
    status: z.int(),
    code: z.enum(Object.keys(PROBLEMS) as [ProblemCode, ...ProblemCode[]]),
    detail: z.string(),
    request_id: z.string(),
    errors: z.array(z.strictObject({ field: z.string(), rule: z.string() })).optional(),
  })
  .meta({ id: 'Problem' });
