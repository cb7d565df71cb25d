import { z } from 'zod';
import type { ApiConfig } from '../../../lib/config/api.ts';
import { RETRY_POLICY_DEFAULT as DEFAULTS, RETRY_POLICY_LIMITS } from '../../../lib/domain/backoff.ts';
import { checkDestination, URL_MAX_LENGTH } from '../../../lib/domain/destination.ts';
import { NO_EVENTS, validatePattern } from '../../../lib/domain/event-type.ts';
import { SIGNING_SCHEMES, TRANSPORTS } from '../../../lib/domain/vocabulary.ts';
import { number, text } from '../http/fields.ts';
import { invalid, Problem } from '../http/problem.ts';
import { changedHeaders, headerPrefix, newHeaders } from './header-settings.ts';
import { operationalEvents, operationalScope } from './operational-settings.ts';

const MAX_PATTERNS = 200;

const eventTypes = z
  .array(z.string({ error: 'must be text' }), { error: 'must be a list of event type patterns' })
  .max(MAX_PATTERNS, { error: `must have at most ${MAX_PATTERNS} patterns` })
  .superRefine((patterns, context) => {
    for (const [index, pattern] of patterns.entries()) {
      const rule = validatePattern(pattern);
      if (rule !== null) context.addIssue({ code: 'custom', path: [index], message: rule });
    }
  })
  .nullable()
  .transform((patterns) => patterns ?? [...NO_EVENTS])
  .meta({
    description:
      'Exact types, prefixes such as `order.*`, or `*`; none at all means everything. `null`: no events but `operational_events`.',
  });

const limited = (name: keyof typeof RETRY_POLICY_LIMITS) => number(RETRY_POLICY_LIMITS[name]).optional();

const retryPolicy = z
  .strictObject(
    {
      max_attempts: limited('max_attempts'),
      base_ms: limited('base_ms'),
      factor: limited('factor'),
      cap_ms: limited('cap_ms'),
    },
    { error: objectRule },
  )
  .refine(({ cap_ms = DEFAULTS.capMs, base_ms = DEFAULTS.baseMs }) => cap_ms >= base_ms, {
    path: ['cap_ms'],
    error: `must be at least base_ms (${DEFAULTS.baseMs} unless you say), or the first wait is already cut short`,
  })
  .nullable();

/** No larger than any dispatcher could be told to allow; what is configured there is the ceiling (see `requireTimeouts`). */
const LONGEST_MS = 600_000;
const duration = () => number({ min: 100, max: LONGEST_MS, whole: true }).optional();

const timeouts = z
  .strictObject(
    { request_ms: duration(), connect_ms: duration(), idle_ms: duration() },
    { error: objectRule },
  )
  .nullable();

/** A wrong type is said in one way for every object; an unknown field names itself. */
function objectRule(issue: z.core.$ZodRawIssue): string | undefined {
  return issue.code === 'invalid_type' ? 'must be an object' : undefined;
}

const settings = {
  url: text(URL_MAX_LENGTH, 1),
  transport: z
    .enum(TRANSPORTS, { error: `must be one of ${TRANSPORTS.join(', ')}` })
    .meta({ description: 'What `url` and `secret` mean. It stays what it was when the endpoint was made.' }),
  event_types: eventTypes,
  operational_events: operationalEvents,
  operational_scope: operationalScope,
  description: text(1000),
  signing_scheme: z.enum(SIGNING_SCHEMES, { error: `must be one of ${SIGNING_SCHEMES.join(', ')}` }),
  secret: z.string({ error: 'must be text' }),
  headers: newHeaders,
  header_prefix: headerPrefix,
  rate_per_second: number({ min: 0, above: true, max: 1e9 }),
  burst: number({ min: 1, max: 1e9 }),
  max_in_flight: number({ min: 1, max: 10_000, whole: true }),
  retry_policy: retryPolicy,
  timeouts,
};

export const NewEndpoint = z.strictObject({
  url: settings.url,
  transport: settings.transport.default('http'),
  event_types: settings.event_types.default([]),
  operational_events: settings.operational_events.default([]),
  operational_scope: settings.operational_scope.default('tenant'),
  description: settings.description.default(''),
  signing_scheme: settings.signing_scheme.default('relay'),
  secret: settings.secret.optional(),
  headers: settings.headers.default({}),
  header_prefix: settings.header_prefix.default(null),
  rate_per_second: settings.rate_per_second.default(10),
  burst: settings.burst.default(20),
  max_in_flight: settings.max_in_flight.default(8),
  retry_policy: settings.retry_policy.default(null),
  timeouts: settings.timeouts.default(null),
});

export const EndpointPatch = z.strictObject({ ...settings, headers: changedHeaders }).partial();

type Timeouts = z.output<typeof timeouts>;

/** The URL as it will be dialled. Throws a 422 Problem naming the rule that forbids it; names are not resolved here. */
export function requireDestination(url: string, config: ApiConfig): string {
  const checked = checkDestination(url, config.destination);
  if (checked.ok) return checked.url.href;
  throw new Problem('endpoint_refused', `${checked.field}: ${checked.rule}`, {
    errors: [{ field: checked.field, rule: checked.rule }],
  });
}

/** Throws a 400 Problem when an endpoint's own limits exceed what its dispatchers are configured to allow. */
export function requireTimeouts(timeouts: Timeouts | undefined, config: ApiConfig): void {
  const ceilings = {
    request_ms: config.requestTimeoutMs,
    connect_ms: config.connectTimeoutMs,
    idle_ms: config.idleTimeoutMs,
  };
  for (const [name, ceiling] of Object.entries(ceilings)) {
    const asked = timeouts?.[name as keyof typeof ceilings];
    if (asked !== undefined && asked > ceiling) {
      throw invalid(`timeouts.${name}`, `must be at most ${ceiling}, the configured limit`);
    }
  }
}
