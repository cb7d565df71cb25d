import { sql, type UpdateObject } from 'kysely';
import type { SecretKeys } from '../config/secret-keys.ts';
import { CLASH_RULE, prefixClash, validateHeadersLength } from '../domain/custom-headers.ts';
import { overlaps, takesKeyPair, validateSecret } from '../domain/signing.ts';
import { type AddressedTransport, isAddressed, validateToken } from '../domain/transports/endpoint-rules.ts';
import type { OperationalScope, SigningScheme, Transport } from '../domain/vocabulary.ts';
import type { Connection, Database } from './database.ts';
import {
  changedHeaders,
  type HeaderColumns,
  type HeadersChange,
  headerColumns,
  openHeaders,
} from './endpoint-headers.ts';
import { requestJob } from './endpoint-jobs.ts';
import { NO_KEY_PAIR } from './endpoint-key-pair.ts';
import { type Endpoint, type EndpointRef, type EndpointSettings, SHOWN_COLUMNS } from './endpoints.ts';
import { openSecret, sealSecret } from './secret-box.ts';
import { replaceSubscriptions } from './subscriptions.ts';
import type { Tables } from './tables.ts';

/** What to change; what is absent stays. A secret replaces the current one, which goes on signing for the overlap. */
export type EndpointChange = {
  [K in keyof Omit<EndpointSettings, 'headers' | 'transport'>]?: EndpointSettings[K] | undefined;
} & {
  secret?: string | undefined;
  headers?: HeadersChange | undefined;
};

export interface ChangeOptions {
  keys: SecretKeys;
  /** How long a replaced secret signs beside the new one, ms. */
  overlapMs: number;
  /** What an endpoint without a header prefix of its own goes by. */
  headerPrefix: string;
  /** Whether an endpoint that hears of all tenants may be made or changed; not unless said. */
  admin?: boolean;
}

export type ChangeResult =
  | { kind: 'changed'; endpoint: Endpoint }
  | { kind: 'not_found' }
  /** It hears, or would hear, of all tenants. */
  | { kind: 'admin_only' }
  /** The secret cannot sign under the scheme that the endpoint would have. */
  | { kind: 'unfit_secret'; field: 'secret' | 'signing_scheme'; rule: string }
  /** The custom headers that the endpoint would have cannot be sent. */
  | { kind: 'unfit_headers'; field: string; rule: string };

type Columns = UpdateObject<Tables, 'endpoints', 'endpoints'>;

interface Secrets {
  id: string;
  transport: Transport;
  signing_scheme: SigningScheme;
  secret: Buffer;
  previous_secret: Buffer | null;
}

interface Headers {
  id: string;
  headers: Buffer | null;
  header_names: string[];
  header_prefix: string | null;
}

interface Pace {
  rate_per_second: number;
  burst: number;
  max_in_flight: number;
}

/**
 * Changes an endpoint, its subscriptions and its secrets in one transaction. Another pace has what waits for the endpoint timed anew: its
 * slots were spaced by the old one.
 */
export async function changeEndpoint(
  db: Database,
  ref: EndpointRef,
  change: EndpointChange,
  options: ChangeOptions,
): Promise<ChangeResult> {
  return db.transaction().execute(async (trx): Promise<ChangeResult> => {
    const before = await lockEndpoint(trx, ref);
    if (!before) return { kind: 'not_found' };
    const scopes = [before.operational_scope, change.operationalScope];
    if (!options.admin && scopes.includes('all_tenants')) return { kind: 'admin_only' };
    const secrets = secretChange(before, change, options);
    if ('kind' in secrets) return secrets;
    const headers = headerChange(before, change, options);
    if ('kind' in headers) return headers;
    const retimes = changesPace(before, change);
    const endpoint = await trx
      .updateTable('endpoints')
      .set({
        ...columns(change),
        ...secrets,
        ...headers,
        ...(takesKeyPair(change.signingScheme ?? before.signing_scheme) ? {} : NO_KEY_PAIR),
        ...(retimes ? { slot_version: sql<number>`slot_version + 1` } : {}),
        version: sql<number>`version + 1`,
        updated_at: sql<Date>`now()`,
      })
      .where('id', '=', ref.id)
      .returning(SHOWN_COLUMNS)
      .executeTakeFirstOrThrow();
    if (changesSubscriptions(change)) await replaceSubscriptions(trx, endpoint);
    if (retimes) await requestJob(trx, ref.id, 'retime');
    return { kind: 'changed', endpoint };
  });
}

async function lockEndpoint(
  trx: Connection,
  ref: EndpointRef,
): Promise<(Secrets & Headers & Pace & { operational_scope: OperationalScope }) | undefined> {
  return trx
    .selectFrom('endpoints')
    .select(['id', 'transport', 'signing_scheme', 'secret', 'headers', 'header_names', 'header_prefix'])
    .select(['rate_per_second', 'burst', 'max_in_flight', 'operational_scope'])
    .select(
      sql<Buffer | null>`case when previous_secret_expires_at > now() then previous_secret end`.as(
        'previous_secret',
      ),
    )
    .where('id', '=', ref.id)
    .where('tenant_id', '=', ref.tenantId)
    .where('deleted_at', 'is', null)
    .forUpdate()
    .executeTakeFirst();
}

function columns(change: EndpointChange): Columns {
  const given: Columns = {
    url: change.url,
    event_types: change.eventTypes && [...change.eventTypes],
    operational_types: change.operationalEvents && [...change.operationalEvents],
    operational_scope: change.operationalScope,
    description: change.description,
    signing_scheme: change.signingScheme,
    header_prefix: change.headerPrefix,
    retry_policy: change.retryPolicy,
    timeouts: change.timeouts,
    rate_per_second: change.ratePerSecond,
    burst: change.burst,
    max_in_flight: change.maxInFlight,
  };
  return Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined));
}

function changesSubscriptions({ eventTypes, operationalEvents, operationalScope }: EndpointChange): boolean {
  return [eventTypes, operationalEvents, operationalScope].some((given) => given !== undefined);
}

function changesPace(before: Pace, change: EndpointChange): boolean {
  const { ratePerSecond, burst, maxInFlight } = change;
  return (
    (ratePerSecond ?? before.rate_per_second) !== before.rate_per_second ||
    (burst ?? before.burst) !== before.burst ||
    (maxInFlight ?? before.max_in_flight) !== before.max_in_flight
  );
}

type SecretColumns = Pick<Columns, 'secret' | 'previous_secret' | 'previous_secret_expires_at'>;

/** What happens to the two secrets: a new one takes the place of the current, and neither may be unfit for the scheme. */
function secretChange(
  before: Secrets,
  change: EndpointChange,
  { keys, overlapMs }: ChangeOptions,
): SecretColumns | Extract<ChangeResult, { kind: 'unfit_secret' }> {
  if (isAddressed(before.transport)) return tokenChange(before, before.transport, change.secret, keys);
  const scheme = change.signingScheme ?? before.signing_scheme;
  const fits = (sealed: Buffer) => validateSecret(scheme, openSecret(keys, before.id, sealed)) === null;
  if (change.secret !== undefined) {
    const rule = validateSecret(scheme, change.secret);
    if (rule !== null) return { kind: 'unfit_secret', field: 'secret', rule };
    const overlap = sql<Date>`now() + ${overlapMs}::float8 * interval '1 ms'`;
    return {
      secret: sealSecret(keys, before.id, change.secret),
      // A third secret never signs: what was previous until now is dropped.
      ...(overlaps(scheme) && fits(before.secret)
        ? { previous_secret: before.secret, previous_secret_expires_at: overlap }
        : NO_PREVIOUS),
    };
  }
  if (scheme === before.signing_scheme) return {};
  if (!fits(before.secret)) return { kind: 'unfit_secret', field: 'signing_scheme', rule: UNFIT };
  const keepsPrevious = overlaps(scheme) && (before.previous_secret === null || fits(before.previous_secret));
  return keepsPrevious ? {} : NO_PREVIOUS;
}

/** A platform's token: the newest alone is of use, and Relay cannot tell whether the one before it still works. */
function tokenChange(
  { id }: Secrets,
  transport: AddressedTransport,
  secret: string | undefined,
  keys: SecretKeys,
): SecretColumns | Extract<ChangeResult, { kind: 'unfit_secret' }> {
  if (secret === undefined) return {};
  const rule = validateToken(transport, secret);
  if (rule !== null) return { kind: 'unfit_secret', field: 'secret', rule };
  return { secret: sealSecret(keys, id, secret), ...NO_PREVIOUS };
}

/** A custom header may hold no name that Relay's own headers have, under the prefix that the endpoint would have. */
function headerChange(
  before: Headers,
  change: EndpointChange,
  { keys, headerPrefix }: ChangeOptions,
): Partial<HeaderColumns> | Extract<ChangeResult, { kind: 'unfit_headers' }> {
  if (change.headers === undefined && change.headerPrefix === undefined) return {};
  const unfit = (field: string, rule: string) => ({ kind: 'unfit_headers', field, rule }) as const;
  const names = change.headers ? Object.keys(change.headers) : before.header_names;
  const ownPrefix = change.headerPrefix === undefined ? before.header_prefix : change.headerPrefix;
  const clash = prefixClash(names, ownPrefix ?? headerPrefix);
  if (clash !== null)
    return unfit(change.headers ? `headers.${clash}` : 'header_prefix', `${clash} ${CLASH_RULE}`);
  if (!change.headers) return {};
  const changed = changedHeaders(openHeaders(keys, before.id, before.headers), change.headers);
  if ('missing' in changed) return unfit(`headers.${changed.missing}`, NO_VALUE);
  const rule = validateHeadersLength(changed.headers);
  return rule === null ? headerColumns(keys, before.id, changed.headers) : unfit('headers', rule);
}

const NO_VALUE = 'null keeps the stored value, and none is stored under this name';
const NO_PREVIOUS = { previous_secret: null, previous_secret_expires_at: null };
const UNFIT = 'the stored secret cannot sign under this scheme; give a `secret` that can together with it';
