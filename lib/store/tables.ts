import type { ColumnType, Generated } from 'kysely';
import type {
  AuditActor,
  BreakerState,
  DeadReason,
  DeferralReason,
  DeliveryStatus,
  DisabledReason,
  EndpointJobKind,
  OperationalScope,
  OutcomeClass,
  PauseReason,
  PortalScope,
  Scope,
  ShownStatus,
  SigningScheme,
  Transport,
} from '../domain/vocabulary.ts';

/** The columns that the API reads and writes through the query builder; the hot statements stand elsewhere, by hand. */
export interface Tables {
  tenants: TenantTable;
  api_keys: ApiKeyTable;
  portal_tokens: PortalTokenTable;
  audit_log: AuditTable;
  endpoints: EndpointTable;
  subscriptions: SubscriptionTable;
  endpoint_jobs: EndpointJobTable;
  events: EventTable;
  deliveries: DeliveryTable;
  delivery_view: DeliveryView;
  delivery_attempts: AttemptTable;
  dead_letters: DeadLetterTable;
}

type MadeByDatabase = ColumnType<Date, never, never>;

interface TenantTable {
  id: string;
  name: string;
  created_at: MadeByDatabase;
  deleted_at: Date | null;
}

interface ApiKeyTable {
  id: string;
  /** Null for an admin key, which may act for every tenant. */
  tenant_id: string | null;
  name: string;
  prefix: string;
  key_hash: Buffer;
  scopes: Scope[];
  created_at: MadeByDatabase;
  expires_at: Date | null;
  revoked_at: Date | null;
  last_used_at: Date | null;
  /** Null: the API's own limit. */
  requests_per_second: number | null;
  /** The key that a rotation put in its place. */
  replaced_by: string | null;
}

interface PortalTokenTable {
  id: string;
  tenant_id: string;
  name: string;
  prefix: string;
  token_hash: Buffer;
  scopes: PortalScope[];
  /** Null: every endpoint of the tenant. */
  endpoint_ids: string[] | null;
  /** The key that made it; null for the key of RELAY_ADMIN_KEY. */
  made_by: string | null;
  created_at: MadeByDatabase;
  expires_at: Date;
  revoked_at: Date | null;
}

interface AuditTable {
  id: string;
  /** Null for what belongs to no tenant, such as an admin key. */
  tenant_id: string | null;
  at: MadeByDatabase;
  actor: AuditActor;
  actor_id: string | null;
  action: string;
  resource: string;
  resource_id: string | null;
  changes: unknown;
  request_id: string;
}

/** An endpoint's own retry policy, as the API takes and shows it; what it leaves out is the dispatcher's default. */
export interface RetryPolicyOverride {
  max_attempts?: number | undefined;
  base_ms?: number | undefined;
  factor?: number | undefined;
  cap_ms?: number | undefined;
}

/** An endpoint's own limits of one send, in milliseconds. */
export interface TimeoutsOverride {
  request_ms?: number | undefined;
  connect_ms?: number | undefined;
  idle_ms?: number | undefined;
}

interface EndpointTable {
  id: string;
  tenant_id: string;
  url: string;
  transport: Generated<Transport>;
  event_types: string[];
  operational_types: Generated<string[]>;
  operational_scope: Generated<OperationalScope>;
  description: string;
  enabled: Generated<boolean>;
  disabled_reason: DisabledReason | null;
  disabled_at: Date | null;
  signing_scheme: SigningScheme;
  secret: Buffer;
  previous_secret: Buffer | null;
  previous_secret_expires_at: Date | null;
  /** Sealed, as one value. */
  headers: Buffer | null;
  header_names: Generated<string[]>;
  header_prefix: string | null;
  /** The sealed private key. */
  signing_key: Buffer | null;
  public_key: string | null;
  previous_signing_key: Buffer | null;
  previous_signing_key_expires_at: Date | null;
  rate_per_second: number;
  burst: number;
  max_in_flight: number;
  retry_policy: RetryPolicyOverride | null;
  timeouts: TimeoutsOverride | null;
  paused_until: Date | null;
  paused_reason: PauseReason | null;
  breaker_state: Generated<BreakerState>;
  breaker_failures: Generated<number>;
  breaker_trips: Generated<number>;
  breaker_streak: Generated<number>;
  breaker_until: Date | null;
  breaker_probe: string | null;
  failing_since: Date | null;
  version: Generated<number>;
  slot_version: Generated<number>;
  created_at: MadeByDatabase;
  updated_at: Generated<Date>;
  deleted_at: Date | null;
}

interface EndpointJobTable {
  endpoint_id: string;
  kind: EndpointJobKind;
  round: Generated<number>;
  after_delivery: string | null;
  requested_at: MadeByDatabase;
}

interface SubscriptionTable {
  tenant_id: string;
  pattern: string;
  endpoint_id: string;
}

interface EventTable {
  id: string;
  tenant_id: string;
  type: string;
  content_type: string;
  payload: Buffer;
  deliver_at: Date | null;
  expires_at: Date | null;
  created_at: MadeByDatabase;
}

interface DeliveryTable {
  id: string;
  event_id: string;
  endpoint_id: string;
  tenant_id: string;
  created_at: MadeByDatabase;
  finished_at: Date | null;
  status: DeliveryStatus;
  attempts: number;
  generation: number;
  dead_reason: DeadReason | null;
}

interface DeliveryView {
  id: string;
  event_id: string;
  endpoint_id: string;
  tenant_id: string;
  created_at: MadeByDatabase;
  finished_at: Date | null;
  dead_reason: DeadReason | null;
  last_class: OutcomeClass | null;
  last_http_status: number | null;
  last_duration_ms: number | null;
  status: ShownStatus;
  attempts: number;
  sends: number;
  seq: number;
  generation: number;
  deferrals: number | null;
  deferral_reason: DeferralReason | null;
  reclaims: number | null;
  cancel_requested: boolean | null;
  next_attempt_at: Date | null;
  lease_expires_at: Date | null;
  claimed_by: number | null;
}

interface AttemptTable {
  delivery_id: string;
  at: Date;
  seq: number;
  send: number | null;
  lateness_ms: number | null;
  duration_ms: number | null;
  claimed_by: number | null;
  attempt: number;
  generation: number;
  http_status: number | null;
  class: OutcomeClass;
  reason: string | null;
  error: string | null;
  response_snippet: string | null;
  next_attempt_at: Date | null;
}

interface DeadLetterTable {
  delivery_id: string;
  endpoint_id: string;
  event_id: string;
  tenant_id: string;
  reason: DeadReason;
  died_at: Date;
  last_class: OutcomeClass | null;
  last_http_status: number | null;
  last_error: string | null;
}
