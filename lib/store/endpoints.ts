import { sql } from 'kysely';
import type { SecretKeys } from '../config/secret-keys.ts';
import type { CustomHeaders } from '../domain/custom-headers.ts';
import type {
  BreakerState,
  DisabledReason,
  OperationalScope,
  PauseReason,
  SigningScheme,
  Transport,
} from '../domain/vocabulary.ts';
import type { Connection, Database } from './database.ts';
import { headerColumns } from './endpoint-headers.ts';
import { requestJob } from './endpoint-jobs.ts';
import { newId } from './new-id.ts';
import { sealSecret } from './secret-box.ts';
import { removeSubscriptions, replaceSubscriptions } from './subscriptions.ts';
import type { RetryPolicyOverride, TimeoutsOverride } from './tables.ts';
import { holdTenant } from './tenants.ts';

/** An endpoint as people see it: without its secrets. */
export interface Endpoint {
  id: string;
  tenantId: string;
  url: string;
  /** Fixed when it is made: `url`, secret and headers mean what it says. */
  transport: Transport;
  eventTypes: string[];
  /** Patterns over what Relay tells of itself, without their mark. */
  operationalEvents: string[];
  operationalScope: OperationalScope;
  description: string;
  enabled: boolean;
  disabledReason: DisabledReason | null;
  disabledAt: Date | null;
  signingScheme: SigningScheme;
  /** While a rotation overlaps; null otherwise. */
  previousSecretExpiresAt: Date | null;
  /** Of the key pair; null without one. */
  publicKey: string | null;
  /** While the key pair before this one signs too; null otherwise. */
  previousKeyExpiresAt: Date | null;
  /** Of the custom headers, whose values are not shown. */
  headerNames: string[];
  /** Null: the configured one. */
  headerPrefix: string | null;
  ratePerSecond: number;
  burst: number;
  maxInFlight: number;
  retryPolicy: RetryPolicyOverride | null;
  timeouts: TimeoutsOverride | null;
  paused: boolean;
  /** Null without an end, and when it is not paused. */
  pausedUntil: Date | null;
  pausedReason: PauseReason | null;
  breakerState: BreakerState;
  /** Failures in a row while it is closed. */
  breakerFailures: number;
  /** How often it has opened or been reset: rises only. */
  breakerTrips: number;
  /** The end of the cooldown, or the moment by which the probe must have reported; null while it is closed. */
  breakerUntil: Date | null;
  /** The first failure after the last success. */
  failingSince: Date | null;
  version: number;
  createdAt: Date;
  updatedAt: Date;
}

/** What somebody may say about an endpoint; everything is already checked. */
export interface EndpointSettings {
  /** `http` unless said. */
  transport?: Transport | undefined;
  url: string;
  eventTypes: readonly string[];
  /** None unless said. */
  operationalEvents?: readonly string[] | undefined;
  /** Its own tenant's unless said. */
  operationalScope?: OperationalScope | undefined;
  description: string;
  signingScheme: SigningScheme;
  headers: CustomHeaders;
  headerPrefix: string | null;
  ratePerSecond: number;
  burst: number;
  maxInFlight: number;
  retryPolicy: RetryPolicyOverride | null;
  timeouts: TimeoutsOverride | null;
}

/** Names one endpoint of one tenant: another tenant's endpoint is as good as none. */
export interface EndpointRef {
  tenantId: string;
  id: string;
}

export const SHOWN_COLUMNS = [
  'id',
  'tenant_id as tenantId',
  'url',
  'transport',
  'event_types as eventTypes',
  'operational_types as operationalEvents',
  'operational_scope as operationalScope',
  'description',
  'enabled',
  'disabled_reason as disabledReason',
  'disabled_at as disabledAt',
  'signing_scheme as signingScheme',
  sql<Date | null>`case when previous_secret_expires_at > now() then previous_secret_expires_at end`.as(
    'previousSecretExpiresAt',
  ),
  'public_key as publicKey',
  sql<Date | null>`case when previous_signing_key_expires_at > now() then previous_signing_key_expires_at end`.as(
    'previousKeyExpiresAt',
  ),
  'header_names as headerNames',
  'header_prefix as headerPrefix',
  'rate_per_second as ratePerSecond',
  'burst',
  'max_in_flight as maxInFlight',
  'retry_policy as retryPolicy',
  'timeouts',
  sql<boolean>`coalesce(paused_until > now(), false)`.as('paused'),
  sql<Date | null>`case when paused_until > now() and paused_until < 'infinity' then paused_until end`.as(
    'pausedUntil',
  ),
  // The row keeps a pause that has ended until the next one overwrites it.
  sql<PauseReason | null>`case when paused_until > now() then paused_reason end`.as('pausedReason'),
  'breaker_state as breakerState',
  'breaker_failures as breakerFailures',
  'breaker_trips as breakerTrips',
  'breaker_until as breakerUntil',
  'failing_since as failingSince',
  'version',
  'created_at as createdAt',
  'updated_at as updatedAt',
] as const;

/** Stores a new endpoint with its subscriptions; null when the tenant does not exist. */
export async function createEndpoint(
  db: Database,
  keys: SecretKeys,
  endpoint: EndpointSettings & { tenantId: string; secret: string },
): Promise<Endpoint | null> {
  const id = newId();
  return db.transaction().execute(async (trx) => {
    if (!(await holdTenant(trx, endpoint.tenantId))) return null;
    const created = await trx
      .insertInto('endpoints')
      .values({
        id,
        tenant_id: endpoint.tenantId,
        secret: sealSecret(keys, id, endpoint.secret),
        transport: endpoint.transport ?? 'http',
        url: endpoint.url,
        event_types: [...endpoint.eventTypes],
        operational_types: [...(endpoint.operationalEvents ?? [])],
        operational_scope: endpoint.operationalScope ?? 'tenant',
        description: endpoint.description,
        signing_scheme: endpoint.signingScheme,
        ...headerColumns(keys, id, endpoint.headers),
        header_prefix: endpoint.headerPrefix,
        rate_per_second: endpoint.ratePerSecond,
        burst: endpoint.burst,
        max_in_flight: endpoint.maxInFlight,
        retry_policy: endpoint.retryPolicy,
        timeouts: endpoint.timeouts,
      })
      .returning(SHOWN_COLUMNS)
      .executeTakeFirstOrThrow();
    await replaceSubscriptions(trx, created);
    return created;
  });
}

export async function findEndpoint(db: Connection, ref: EndpointRef): Promise<Endpoint | null> {
  const row = await db
    .selectFrom('endpoints')
    .select(SHOWN_COLUMNS)
    .where('id', '=', ref.id)
    .where('tenant_id', '=', ref.tenantId)
    .where('deleted_at', 'is', null)
    .executeTakeFirst();
  return row ?? null;
}

/** Tells whether a tenant has, or had, this endpoint: the history of a deleted one stays readable. */
export async function endpointExisted(db: Database, ref: EndpointRef): Promise<boolean> {
  const row = await db
    .selectFrom('endpoints')
    .select('id')
    .where('id', '=', ref.id)
    .where('tenant_id', '=', ref.tenantId)
    .executeTakeFirst();
  return row !== undefined;
}

/** Oldest first; `after` is the id that the page before ended with, and `ids` names those that are looked for. */
export async function listEndpoints(
  db: Database,
  tenantId: string,
  page: { after: string | null; limit: number; ids?: readonly string[] | null },
): Promise<Endpoint[]> {
  const { after, ids = null } = page;
  return db
    .selectFrom('endpoints')
    .select(SHOWN_COLUMNS)
    .where('tenant_id', '=', tenantId)
    .where('deleted_at', 'is', null)
    .$if(after !== null, (query) => query.where('id', '>', after!))
    .$if(ids !== null, (query) => query.where('id', 'in', [...ids!]))
    .orderBy('id')
    .limit(page.limit)
    .execute();
}

/**
 * Deletes an endpoint: its row stays for its history, and what is owed to it ends `cancelled`, unsent, by a job or by the claim that meets it
 * first. False when there is no such endpoint.
 */
export async function deleteEndpoint(db: Database, ref: EndpointRef): Promise<boolean> {
  return db.transaction().execute(async (trx) => {
    const deleted = await trx
      .updateTable('endpoints')
      .set({ deleted_at: sql`now()`, updated_at: sql`now()`, version: sql`version + 1` })
      .where('id', '=', ref.id)
      .where('tenant_id', '=', ref.tenantId)
      .where('deleted_at', 'is', null)
      .returning('id')
      .executeTakeFirst();
    if (!deleted) return false;
    await removeSubscriptions(trx, ref.id);
    await requestJob(trx, ref.id, 'cancel');
    return true;
  });
}
