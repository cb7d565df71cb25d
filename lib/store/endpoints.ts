import { sql } from 'kysely';
import type { SecretKeys } from '../config/secret-keys.ts';
import type { DisabledReason, SigningScheme } from '../domain/vocabulary.ts';
import type { Connection, Database } from './database.ts';
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
  transport: 'http';
  eventTypes: string[];
  description: string;
  enabled: boolean;
  disabledReason: DisabledReason | null;
  disabledAt: Date | null;
  signingScheme: SigningScheme;
  /** While a rotation overlaps; null otherwise. */
  previousSecretExpiresAt: Date | null;
  ratePerSecond: number;
  burst: number;
  maxInFlight: number;
  retryPolicy: RetryPolicyOverride | null;
  timeouts: TimeoutsOverride | null;
  pausedUntil: Date | null;
  version: number;
  createdAt: Date;
  updatedAt: Date;
}

/** What somebody may say about an endpoint; everything is already checked. */
export interface EndpointSettings {
  url: string;
  eventTypes: readonly string[];
  description: string;
  signingScheme: SigningScheme;
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
  'description',
  'enabled',
  'disabled_reason as disabledReason',
  'disabled_at as disabledAt',
  'signing_scheme as signingScheme',
  sql<Date | null>`case when previous_secret_expires_at > now() then previous_secret_expires_at end`.as(
    'previousSecretExpiresAt',
  ),
  'rate_per_second as ratePerSecond',
  'burst',
  'max_in_flight as maxInFlight',
  'retry_policy as retryPolicy',
  'timeouts',
  sql<Date | null>`case when paused_until > now() and paused_until < 'infinity' then paused_until end`.as(
    'pausedUntil',
  ),
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
        url: endpoint.url,
        event_types: [...endpoint.eventTypes],
        description: endpoint.description,
        signing_scheme: endpoint.signingScheme,
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

/** Oldest first; `after` is the id that the page before ended with. */
export async function listEndpoints(
  db: Database,
  tenantId: string,
  page: { after: string | null; limit: number },
): Promise<Endpoint[]> {
  const { after } = page;
  return db
    .selectFrom('endpoints')
    .select(SHOWN_COLUMNS)
    .where('tenant_id', '=', tenantId)
    .where('deleted_at', 'is', null)
    .$if(after !== null, (query) => query.where('id', '>', after!))
    .orderBy('id')
    .limit(page.limit)
    .execute();
}

/** Matches again what was parked under the endpoint; a change of nothing changes no version. */
export async function enableEndpoint(db: Database, ref: EndpointRef): Promise<Endpoint | null> {
  return db.transaction().execute(async (trx) => {
    const enabled = await trx
      .updateTable('endpoints')
      .set({
        enabled: true,
        disabled_reason: null,
        disabled_at: null,
        version: sql`version + 1`,
        // What waits for this endpoint was timed while it was disabled.
        slot_version: sql`slot_version + 1`,
        updated_at: sql`now()`,
      })
      .where('id', '=', ref.id)
      .where('tenant_id', '=', ref.tenantId)
      .where('deleted_at', 'is', null)
      .where('enabled', '=', false)
      .returning(SHOWN_COLUMNS)
      .executeTakeFirst();
    if (!enabled) return findEndpoint(trx, ref);
    await replaceSubscriptions(trx, enabled);
    return enabled;
  });
}

/** Matches no further events for the endpoint. Null when it does not exist; disabled already, it keeps its first reason. */
export async function disableEndpoint(
  db: Database,
  ref: EndpointRef,
  reason: DisabledReason,
): Promise<Endpoint | null> {
  return db.transaction().execute(async (trx) => {
    const disabled = await trx
      .updateTable('endpoints')
      .set({
        enabled: false,
        disabled_reason: reason,
        disabled_at: sql`now()`,
        version: sql`version + 1`,
        updated_at: sql`now()`,
      })
      .where('id', '=', ref.id)
      .where('tenant_id', '=', ref.tenantId)
      .where('deleted_at', 'is', null)
      .where('enabled', '=', true)
      .returning(SHOWN_COLUMNS)
      .executeTakeFirst();
    if (!disabled) return findEndpoint(trx, ref);
    await removeSubscriptions(trx, ref.id);
    return disabled;
  });
}

/** Deletes an endpoint: its row stays for its history, and a claim that meets it ends the delivery `cancelled`, unsent. */
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
    return true;
  });
}
