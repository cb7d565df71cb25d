/**
 * The closed lists of Relay: every status, class and reason that is stored, counted or shown. The column's CHECK, the
 * TypeScript type and the metric's label values all come from here, so that a number on a graph and a row in the
 * database can be compared without a translation table (a test compares them with the migrations).
 */

/** What `deliveries.status` may hold. */
export const DELIVERY_STATUSES = ['pending', 'succeeded', 'dead'] as const;
export type DeliveryStatus = (typeof DELIVERY_STATUSES)[number];

/** The statuses of a delivery that has ended, and which a replay may start from. */
export const FINISHED_STATUSES = ['succeeded', 'dead'] as const;
export type FinishedStatus = (typeof FINISHED_STATUSES)[number];

/** What people are shown: `inflight` is a pending delivery whose queue row has a running lease. */
export const SHOWN_STATUSES = ['pending', 'inflight', 'succeeded', 'dead'] as const;
export type ShownStatus = (typeof SHOWN_STATUSES)[number];

/** What became of one attempt. `deferred` and `lost` spend nothing of the retry budget. */
export const OUTCOME_CLASSES = ['success', 'deferred', 'retryable', 'permanent', 'lost'] as const;
export type OutcomeClass = (typeof OUTCOME_CLASSES)[number];

/** Why a delivery ended without success. */
export const DEAD_REASONS = [
  'permanent_failure',
  'attempts_exhausted',
  'refused',
  'gone',
  'abandoned',
  'cancelled',
  'expired',
] as const;
export type DeadReason = (typeof DEAD_REASONS)[number];

/** Which gate held a delivery back. */
export const DEFERRAL_REASONS = [
  'rate_limit',
  'concurrency',
  'breaker_open',
  'probe',
  'paused',
  'disabled',
] as const;
export type DeferralReason = (typeof DEFERRAL_REASONS)[number];

/**
 * Why no HTTP answer arrived. `refused` is our own policy (the address is forbidden), `oversize` our own limit; neither
 * is evidence about the endpoint's health, and neither is `dns`.
 */
export const TRANSPORT_FAILURES = [
  'timeout',
  'connect',
  'tls',
  'dns',
  'reset',
  'protocol',
  'refused',
  'oversize',
  'other',
] as const;
export type TransportFailure = (typeof TRANSPORT_FAILURES)[number];

/** How an endpoint is reached. `http` is signed; the others have a format and a credential of their own. */
export const TRANSPORTS = ['http', 'telegram', 'discord', 'slack', 'email'] as const;
export type Transport = (typeof TRANSPORTS)[number];

/** Those that post to a chat platform's API, with a token that the platform gave out. */
export const CHAT_TRANSPORTS = ['telegram', 'discord', 'slack'] as const satisfies readonly Transport[];
export type ChatTransport = (typeof CHAT_TRANSPORTS)[number];

/** How a payload is signed for an endpoint. */
export const SIGNING_SCHEMES = ['relay', 'standard', 'stripe', 'github'] as const;
export type SigningScheme = (typeof SIGNING_SCHEMES)[number];

/** How the dispatchers learn of work: by the stream, or by asking the database. */
export const WAKE_MODES = ['stream', 'poll'] as const;
export type WakeMode = (typeof WAKE_MODES)[number];

/** Why an endpoint is disabled: somebody said so, it answered 410, or it has done nothing but fail for days. */
export const DISABLED_REASONS = ['operator', 'gone', 'failing'] as const;
export type DisabledReason = (typeof DISABLED_REASONS)[number];

/** Why an endpoint is paused: somebody said so, or it asked for it itself. */
export const PAUSE_REASONS = ['operator', 'retry_after'] as const;
export type PauseReason = (typeof PAUSE_REASONS)[number];

export const BREAKER_STATES = ['closed', 'open', 'half_open'] as const;
export type BreakerState = (typeof BREAKER_STATES)[number];

/**
 * The two streams. `queue.lane` holds the place in this list: 0 goes first, 1 is whatever can wait its turn (retries, woken slots, replays,
 * what exceeds an endpoint's own rate).
 */
export const LANES = ['express', 'bulk'] as const;
export type Lane = (typeof LANES)[number];

/** What `queue.waiting` may hold: `slot` has a moment of its own, `parked` waits without one. */
export const WAITS = ['slot', 'parked'] as const;
export type Wait = (typeof WAITS)[number];

/** What an API key may do. `manage` includes `replay`. */
export const SCOPES = ['events:write', 'read', 'manage', 'replay'] as const;
export type Scope = (typeof SCOPES)[number];

/** What a portal token may do at most: it is handed to customers. */
export const PORTAL_SCOPES = ['read', 'replay'] as const satisfies readonly Scope[];
export type PortalScope = (typeof PORTAL_SCOPES)[number];

/** Who changed something: an API key, a portal token, or whoever holds RELAY_ADMIN_KEY. */
export const AUDIT_ACTORS = ['key', 'portal', 'admin'] as const;
export type AuditActor = (typeof AUDIT_ACTORS)[number];

export const ENDPOINT_JOBS = ['retime', 'cancel'] as const;
export type EndpointJobKind = (typeof ENDPOINT_JOBS)[number];

/** What Relay tells about itself. Each has one dot: see `relay.operational_patterns` in the schema. */
export const OPERATIONAL_EVENTS = [
  'endpoint.disabled',
  'endpoint.enabled',
  'endpoint.opened',
  'endpoint.recovered',
  'delivery.dead',
  'replay.finished',
] as const;
export type OperationalEvent = (typeof OPERATIONAL_EVENTS)[number];

/** Whose operational events an endpoint hears of: its own tenant's, or everybody's. */
export const OPERATIONAL_SCOPES = ['tenant', 'all_tenants'] as const;
export type OperationalScope = (typeof OPERATIONAL_SCOPES)[number];

/** Where a replay job stands: `failed` could not go on, and is gone on with when it is resumed. */
export const REPLAY_STATES = ['running', 'paused', 'failed', 'cancelled', 'finished'] as const;
export type ReplayState = (typeof REPLAY_STATES)[number];

/** The states in which a replay job has something left to do. */
export const OPEN_REPLAY_STATES = ['running', 'paused', 'failed'] as const;
export type OpenReplayState = (typeof OPEN_REPLAY_STATES)[number];

/**
 * Why a replay job passed over a delivery that it had selected: its endpoint is deleted, its event is, it has changed since (somebody else replayed it,
 * or it is gone), or somebody held it until the job was cancelled.
 */
export const REPLAY_SKIPS = ['endpoint_deleted', 'event_missing', 'changed', 'locked'] as const;
export type ReplaySkip = (typeof REPLAY_SKIPS)[number];
