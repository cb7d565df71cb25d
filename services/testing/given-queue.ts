import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { normalizePatterns } from '../../lib/domain/event-type.ts';
import { DEFAULT_TENANT_ID } from '../../lib/domain/limits.ts';
import { type Claim, type ClaimOptions, claimByIds, type PollOptions } from '../../lib/store/claims.ts';
import { type Deferral, defer } from '../../lib/store/defer.ts';
import {
  type Accepted,
  type AcceptOptions,
  acceptEvents,
  acceptKeyedEvents,
  type KeyedEvent,
  type KeyedOutcome,
  type NewEvent,
} from '../../lib/store/ingest.ts';
import { type Finish, finish, type Keep, keep, type SendRecord } from '../../lib/store/settle.ts';

/** An endpoint with its subscriptions; enabled and of the default tenant unless said otherwise. */
export async function givenEndpoint(
  pool: pg.Pool,
  endpoint: { patterns?: string[]; tenantId?: string; disabled?: boolean; deleted?: boolean } = {},
): Promise<string> {
  const tenantId = endpoint.tenantId ?? DEFAULT_TENANT_ID;
  const { rows } = await pool.query<{ id: string }>(
    `insert into relay.endpoints (tenant_id, url, secret, enabled, disabled_reason, deleted_at)
     values ($1, 'https://sink.example.test/in', '\\x00', $2, $3, $4) returning id`,
    [
      tenantId,
      !endpoint.disabled,
      endpoint.disabled ? 'operator' : null,
      endpoint.deleted ? new Date() : null,
    ],
  );
  const id = rows[0]!.id;
  if (!endpoint.disabled && !endpoint.deleted) {
    await pool.query(
      'insert into relay.subscriptions (tenant_id, pattern, endpoint_id) select $1, unnest($2::text[]), $3',
      [tenantId, normalizePatterns(endpoint.patterns ?? []), id],
    );
  }
  return id;
}

export async function givenTenant(pool: pg.Pool): Promise<string> {
  const { rows } = await pool.query<{ id: string }>(
    `insert into relay.tenants (name) values ('other') returning id`,
  );
  return rows[0]!.id;
}

export function newEvent(event: Partial<NewEvent> = {}): NewEvent {
  return {
    tenantId: DEFAULT_TENANT_ID,
    type: 'order.paid',
    contentType: 'application/json',
    payload: Buffer.from('{"a":1}'),
    targetEndpointId: null,
    deliverAt: null,
    expiresAt: null,
    ...event,
  };
}

export function keyedEvent(key: string, event: Partial<KeyedEvent> = {}): KeyedEvent {
  return { ...newEvent(event), key, digest: event.digest ?? Buffer.alloc(32, 1) };
}

const ANNOUNCED: AcceptOptions = { announced: true };

export function accept(pool: pg.Pool, events: readonly NewEvent[], options = ANNOUNCED): Promise<Accepted[]> {
  return withClient(pool, (client) => acceptEvents(client, events, options));
}

export function acceptKeyed(
  pool: pg.Pool,
  events: readonly KeyedEvent[],
  options: Partial<AcceptOptions> & { retentionMs?: number } = {},
): Promise<KeyedOutcome[]> {
  return withClient(pool, (client) =>
    acceptKeyedEvents(client, events, { announced: true, retentionMs: 86_400_000, ...options }),
  );
}

async function withClient<T>(pool: pg.Pool, work: (client: pg.PoolClient) => Promise<T>): Promise<T> {
  const client = await pool.connect();
  try {
    const result = await work(client);
    client.release();
    return result;
  } catch (error) {
    client.release(true);
    throw error;
  }
}

/** Deliveries of as many events to one endpoint, announced and due; their ids in order. */
export async function givenOwed(
  pool: pg.Pool,
  count: number,
  options: { endpointId?: string; event?: Partial<NewEvent>; announced?: boolean } = {},
): Promise<string[]> {
  const targetEndpointId = options.endpointId ?? (await givenEndpoint(pool, { patterns: ['nothing.else'] }));
  const end = options.event?.expiresAt ?? null;
  // Nothing is accepted after its end, so an end that has passed is set afterwards.
  const past = end !== null && end.getTime() <= Date.now();
  const event = { targetEndpointId, ...options.event, ...(past ? { expiresAt: null } : {}) };
  const events = Array.from({ length: count }, () => newEvent(event));
  const ids: string[] = [];
  for (let start = 0; start < count; start += 512) {
    const batch = events.slice(start, start + 512);
    const results = await accept(pool, batch, { announced: options.announced ?? true });
    for (const result of results) ids.push(...acceptedIds(result));
  }
  if (past) await expireAt(pool, ids, end);
  return ids;
}

async function expireAt(pool: pg.Pool, ids: readonly string[], end: Date): Promise<void> {
  await pool.query(
    `with owed as (
       update relay.queue set expires_at = $2, look_at = least(look_at, $2) where delivery_id = any($1::uuid[]) returning event_id
     )
     update relay.events set expires_at = $2 where id = any(array(select event_id from owed))`,
    [ids, end],
  );
}

/** One owed delivery's id. */
export async function givenOne(pool: pg.Pool, event: Partial<NewEvent> = {}): Promise<string> {
  const [id] = await givenOwed(pool, 1, {
    event,
    ...(event.targetEndpointId ? { endpointId: event.targetEndpointId } : {}),
  });
  return id!;
}

export function acceptedIds(result: Accepted | KeyedOutcome | undefined): string[] {
  if (result?.kind !== 'accepted') throw new Error(`not accepted: ${result?.kind}`);
  return result.deliveryIds;
}

export const PROCESS = { processNumber: 7 };

export function lease(options: Partial<ClaimOptions> = {}): ClaimOptions {
  return { token: randomUUID(), leaseMs: 30_000, processNumber: 7, ...options };
}

/** The same for a poll, by the only dispatcher there is unless said. */
export function pollLease(options: Partial<PollOptions> = {}): PollOptions {
  return { ...lease(), part: { rank: 0, live: 1 }, ...options };
}

/** Claims a delivery that must be free. */
export async function givenClaimed(
  pool: pg.Pool,
  id: string,
  options: Partial<ClaimOptions> = {},
): Promise<Claim> {
  const [claim] = await claimByIds(pool, [id], lease(options));
  if (!claim) throw new Error(`${id} could not be claimed`);
  return claim;
}

type Fence = Pick<Claim, 'deliveryId' | 'token'>;
const fence = ({ deliveryId, token }: Fence) => ({ deliveryId, token });

export function sendRecord(send: Partial<SendRecord> = {}): SendRecord {
  return {
    class: 'success',
    httpStatus: 200,
    durationMs: 12,
    latenessMs: 3,
    error: null,
    snippet: 'ok',
    ...send,
  };
}

export function success(claim: Fence): Finish {
  return { ...fence(claim), status: 'succeeded', reason: null, send: sendRecord() };
}

export function death(claim: Fence, reason: Finish['reason'] = 'permanent_failure'): Finish {
  return {
    ...fence(claim),
    status: 'dead',
    reason,
    send: sendRecord({ class: 'permanent', httpStatus: 404 }),
  };
}

export function unsent(claim: Fence, reason: Finish['reason']): Finish {
  return { ...fence(claim), status: 'dead', reason, send: null };
}

export function retry(
  claim: Fence,
  delayMs = 0,
  send: Partial<SendRecord> = {},
): Extract<Keep, { kind: 'retry' }> {
  return {
    ...fence(claim),
    kind: 'retry',
    delayMs,
    send: sendRecord({ class: 'retryable', httpStatus: 503, snippet: 'busy', ...send }),
  };
}

/** For a claim whose endpoint has the slot version of a new one, unless said otherwise. */
export function deferral(
  claim: Fence & Pick<Claim, 'endpointId'>,
  options: Partial<Pick<Deferral, 'reason' | 'repeated' | 'slotVersion' | 'wait'>> = {},
): Deferral {
  return {
    ...fence(claim),
    endpointId: claim.endpointId,
    reason: 'concurrency',
    repeated: false,
    slotVersion: 1,
    wait: 0,
    ...options,
  };
}

export function release(claim: Fence): Keep {
  return { ...fence(claim), kind: 'release', delayMs: 0 };
}

/** Whether an end was written; false: the lease was lost. */
export async function finishOne(pool: pg.Pool, end: Finish): Promise<boolean> {
  return (await finish(pool, [end], PROCESS)).has(end.deliveryId);
}

/** Whether a keep was written; false: the lease was lost. */
export async function keepOne(pool: pg.Pool, kept: Keep): Promise<boolean> {
  return (await keep(pool, [kept], PROCESS)).has(kept.deliveryId);
}

/** Whether a deferral was written; false: the lease was lost. */
export async function deferOne(pool: pg.Pool, deferred: Deferral): Promise<boolean> {
  return (await defer(pool, [deferred], PROCESS)).has(deferred.deliveryId);
}
