import type { Pool } from 'pg';
import type { DisabledReason, SigningScheme, Transport } from '../domain/vocabulary.ts';
import { plainArray } from './array-literal.ts';
import type { RetryPolicyOverride, TimeoutsOverride } from './tables.ts';

/** All that sending to an endpoint needs. Cached by `version`, which every claim returns; what changes without it (pause, breaker) comes with the claim. */
export interface EndpointConfig {
  id: string;
  tenantId: string;
  url: string;
  transport: Transport;
  version: number;
  slotVersion: number;
  enabled: boolean;
  disabledReason: DisabledReason | null;
  deleted: boolean;
  signingScheme: SigningScheme;
  /** Sealed: see secret-box.ts. */
  secret: Buffer;
  /** Sealed; null outside the overlap of a rotation. */
  previousSecret: Buffer | null;
  /** From the moment of the query, by the database's clock; null with `previousSecret`. */
  previousSecretExpiresInMs: number | null;
  /** Sealed; of the key pair, null without one. */
  privateKey: Buffer | null;
  /** Sealed; null outside the overlap of a rotation, and its end as that of the secret. */
  previousPrivateKey: Buffer | null;
  previousPrivateKeyExpiresInMs: number | null;
  /** Sealed: see endpoint-headers.ts. Null for none. */
  headers: Buffer | null;
  /** Null: the configured one. */
  headerPrefix: string | null;
  maxInFlight: number;
  ratePerSecond: number;
  burst: number;
  retryPolicy: RetryPolicyOverride | null;
  timeouts: TimeoutsOverride | null;
}

// An expired secret is not selected: expiry is judged here, not by something that sweeps.
const BY_ID = `
select e.id, e.tenant_id as "tenantId", e.url, e.transport, e.version, e.slot_version as "slotVersion", e.enabled,
  e.disabled_reason as "disabledReason", e.deleted_at is not null as deleted, e.signing_scheme as "signingScheme", e.secret,
  case when e.previous_secret_expires_at > now() then e.previous_secret end as "previousSecret",
  case when e.previous_secret_expires_at > now()
    then (extract(epoch from e.previous_secret_expires_at - now()) * 1000)::float8 end as "previousSecretExpiresInMs",
  e.signing_key as "privateKey",
  case when e.previous_signing_key_expires_at > now() then e.previous_signing_key end as "previousPrivateKey",
  case when e.previous_signing_key_expires_at > now()
    then (extract(epoch from e.previous_signing_key_expires_at - now()) * 1000)::float8 end as "previousPrivateKeyExpiresInMs",
  e.headers, e.header_prefix as "headerPrefix",
  e.max_in_flight as "maxInFlight", e.rate_per_second as "ratePerSecond", e.burst,
  e.retry_policy as "retryPolicy", e.timeouts
from relay.endpoints e
where e.id = any($1::uuid[])`;

/** Reads the configuration of these endpoints, deleted ones too; an id that is not in the answer does not exist. */
export async function readEndpointConfigs(
  pool: Pool,
  ids: readonly string[],
): Promise<Map<string, EndpointConfig>> {
  const { rows } = await pool.query<EndpointConfig>({
    name: 'relay_endpoint_configs',
    text: BY_ID,
    values: [plainArray(ids)],
  });
  return new Map(rows.map((row) => [row.id, row]));
}
