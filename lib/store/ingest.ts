import { randomBytes } from 'node:crypto';
import type { ClientBase, Pool } from 'pg';
import type { DeliveryTimes } from '../domain/delivery-times.ts';
import { patternCandidates } from '../domain/event-type.ts';
import { DELIVERIES_AT_ONCE, MAX_DELIVERIES_PER_EVENT, STALL_MS } from '../domain/limits.ts';
import { plainArray, quotedArray } from './array-literal.ts';
import { byteaArray } from './binary-array.ts';
import { deliveryId, eventIdTail } from './event-ids.ts';
import type { Queryable } from './pool.ts';

/** One event to be committed, already checked. */
export interface NewEvent extends DeliveryTimes {
  tenantId: string;
  type: string;
  contentType: string;
  payload: Buffer;
  /** Only this endpoint, without matching subscriptions. */
  targetEndpointId: string | null;
}

export interface KeyedEvent extends NewEvent {
  key: string;
  digest: Buffer;
}

export interface AcceptOptions {
  /** True when the row ids will be put on the stream after the commit; false in poll mode, where they are due to be found now. */
  announced: boolean;
  /** Deliveries to these endpoints are put on the bulk lane; few, because each row is compared with all of them. None unless said. */
  bulkEndpoints?: readonly string[];
}

export type Accepted =
  /** `endpointIds` stand in the order of `deliveryIds`: the first of those that it matched. */
  | (FirstAnswer & {
      kind: 'accepted';
      eventId: string;
      endpointIds: string[];
      announce: boolean;
    })
  | { kind: 'no_target' }
  | { kind: 'too_many_deliveries' }
  /** Its end has passed. */
  | { kind: 'already_expired' };

/** What the answer to an accepted event tells of its deliveries. */
export interface FirstAnswer {
  deliveryIds: string[];
  /** How many endpoints it matched, when that is more than it has deliveries: the fan-out continues. Else null. */
  continuesTo: number | null;
}

export type KeyedOutcome =
  | Accepted
  | { kind: 'replayed'; eventId: string }
  | { kind: 'conflict' }
  | { kind: 'expired_key' }
  /** Another transaction took the key while this statement waited for it: a new statement will see it. */
  | { kind: 'look_again' };

// Built of the same steps with and without idempotency keys; the steps are named for what they hold. A CTE is never joined to
// another CTE here: with hash joins off that is quadratic. Payloads pass through one materialised step, not three: each is a copy.
const REQUESTS = `
clock as materialized (
  select lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0') as ms
),
request as (
  select t.ord::integer as ord, (c.ms || t.tail)::uuid as event_id, c.ms || left(t.tail, 16) as stem,
    t.tenant_id, t.type, t.content_type, t.payload, t.candidates, t.target_id, t.deliver_at, t.expires_at`;

const FROM_ARRAYS = `
  from clock c, unnest($1::text[], $2::uuid[], $3::text[], $4::text[], $5::bytea[], $6::text[], $7::uuid[], $8::timestamptz[],
    $9::timestamptz[]`;

const MATCHED = `
matched as materialized (
  select r.*, coalesce(s.endpoint_ids, t.endpoint_ids) as endpoint_ids,
    (r.target_id is null or t.endpoint_ids is not null)
      and coalesce(cardinality(s.endpoint_ids), 0) <= ${MAX_DELIVERIES_PER_EVENT}
      and (r.expires_at <= now()) is not true as admissible
  from request r
  left join lateral (
    select array_agg(s.endpoint_id) as endpoint_ids
    from relay.subscriptions s
    where r.target_id is null and s.tenant_id = r.tenant_id and s.pattern = any(string_to_array(r.candidates, ' '))
  ) s on true
  left join lateral (
    select array_agg(e.id) as endpoint_ids
    from relay.endpoints e
    where e.id = r.target_id and e.tenant_id = r.tenant_id and e.enabled and e.deleted_at is null
  ) t on true
)`;

const WRITES = `
new_event as (
  insert into relay.events (id, tenant_id, type, content_type, payload, deliver_at, expires_at, matched)
  select event_id, tenant_id, type, content_type, payload, deliver_at, expires_at, coalesce(cardinality(endpoint_ids), 0)
  from admitted where won
),
new_fan_out as (
  insert into relay.fan_outs (event_id, tenant_id, endpoint_ids, next_tail)
  select event_id, tenant_id, endpoint_ids, ${DELIVERIES_AT_ONCE + 1}
  from admitted where won and cardinality(endpoint_ids) > ${DELIVERIES_AT_ONCE}
),
owed as materialized (
  select (a.stem || lpad(to_hex(u.n), 4, '0'))::uuid as delivery_id, a.event_id, u.endpoint_id, a.tenant_id,
    greatest(a.deliver_at, now()) as due_at, a.expires_at, $10::boolean and coalesce(a.deliver_at <= now(), true) as announced,
    case when u.endpoint_id = any($11::uuid[]) then 1 else 0 end as lane
  from admitted a, unnest(a.endpoint_ids) with ordinality u(endpoint_id, n)
  where a.won and u.n <= ${DELIVERIES_AT_ONCE}
),
new_delivery as (
  insert into relay.deliveries (id, event_id, endpoint_id, tenant_id)
  select delivery_id, event_id, endpoint_id, tenant_id from owed
),
new_queue as (
  insert into relay.queue (delivery_id, endpoint_id, event_id, due_at, look_at, announced_at, expires_at, lane)
  select delivery_id, endpoint_id, event_id, due_at,
    least(case when announced then now() + interval '${STALL_MS} ms' else due_at end, expires_at),
    case when announced then now() end, expires_at, lane
  from owed
)`;

const PLAIN = `with ${REQUESTS}${FROM_ARRAYS})
    with ordinality t(tail, tenant_id, type, content_type, payload, candidates, target_id, deliver_at, expires_at, ord)
),
${MATCHED},
admitted as not materialized (select m.*, m.admissible as won from matched m),
${WRITES}
select ord, event_id, won, coalesce(cardinality(endpoint_ids), 0) as matches, deliver_at <= now() is not false as due,
  expires_at <= now() is true as expired, case when won then array_to_string(endpoint_ids[:${DELIVERIES_AT_ONCE}], ' ') end as endpoints
from admitted`;

// Keys are inserted first and in one order everywhere, so that two statements that share keys wait for each other instead of
// deadlocking. The limit makes `prior` a probe for each request: a plain join may read the whole index once, as long as the planner
// takes the table for small. What it reads is what the statement's snapshot saw.
const KEYED = `with ${REQUESTS}, t.key, t.digest${FROM_ARRAYS}, $12::text[], $13::bytea[])
    with ordinality t(tail, tenant_id, type, content_type, payload, candidates, target_id, deliver_at, expires_at, key, digest, ord)
),
${MATCHED},
claimed as (
  insert into relay.idempotency_keys (tenant_id, key, digest, event_id, expires_at)
  select tenant_id, key, digest, event_id, now() + $14::double precision * interval '1 ms'
  from matched where admissible order by tenant_id, key collate "C"
  on conflict do nothing
  returning event_id
),
admitted as materialized (
  select m.*, m.admissible and m.event_id in (select c.event_id from claimed c) as won from matched m
),
${WRITES}
select a.ord, a.event_id, a.won, a.admissible, coalesce(cardinality(a.endpoint_ids), 0) as matches,
  a.deliver_at <= now() is not false as due, a.expires_at <= now() is true as expired,
  case when a.won then array_to_string(a.endpoint_ids[:${DELIVERIES_AT_ONCE}], ' ') end as endpoints,
  prior.event_id as prior_event_id, prior.digest = a.digest as same_request, prior.expires_at <= now() as prior_expired
from admitted a
left join lateral (
  select k.event_id, k.digest, k.expires_at from relay.idempotency_keys k
  where not a.won and k.tenant_id = a.tenant_id and k.key = a.key limit 1
) prior on true`;

interface PlainRow {
  ord: number;
  event_id: string;
  won: boolean;
  matches: number;
  due: boolean;
  expired: boolean;
  /** The first of an event that won; null when it has none. */
  endpoints: string | null;
}

interface KeyedRow extends PlainRow {
  admissible: boolean;
  prior_event_id: string | null;
  same_request: boolean | null;
  prior_expired: boolean | null;
}

/**
 * Commits events without idempotency keys, with their fan-out, in one statement: when it returns, everything it accepted is
 * durable. Results stand in the order of `events`. Throws what Postgres reported, or a connection error, after which the outcome
 * is unknown.
 */
export async function acceptEvents(
  client: ClientBase,
  events: readonly NewEvent[],
  options: AcceptOptions,
): Promise<Accepted[]> {
  const { rows } = await client.query<PlainRow>({
    name: 'relay_accept',
    text: PLAIN,
    values: requestArrays(events, options),
  });
  const results = new Array<Accepted>(events.length);
  for (const row of rows) results[row.ord - 1] = toAccepted(row, row.won, options);
  return results;
}

/**
 * The same for events with idempotency keys; `events` must not hold one (tenant, key) twice. A key whose holder has not committed
 * makes the statement wait, up to the connection's lock_timeout (then SQLSTATE 55P03, and nothing was committed).
 */
export async function acceptKeyedEvents(
  client: ClientBase,
  events: readonly KeyedEvent[],
  options: AcceptOptions & { retentionMs: number },
): Promise<KeyedOutcome[]> {
  const values = [
    ...requestArrays(events, options),
    events.map((event) => event.key),
    byteaArray(events.map((event) => event.digest)),
    options.retentionMs,
  ];
  const { rows } = await client.query<KeyedRow>({ name: 'relay_accept_keyed', text: KEYED, values });
  const results = new Array<KeyedOutcome>(events.length);
  for (const row of rows) results[row.ord - 1] = toKeyedOutcome(row, options);
  return results;
}

function toKeyedOutcome(row: KeyedRow, options: AcceptOptions): KeyedOutcome {
  if (row.won) return toAccepted(row, true, options);
  // Before anything is said of a request that would be refused today: when it was accepted, it was not.
  if (row.prior_event_id !== null) {
    if (row.prior_expired) return { kind: 'expired_key' };
    return row.same_request ? { kind: 'replayed', eventId: row.prior_event_id } : { kind: 'conflict' };
  }
  return row.admissible ? { kind: 'look_again' } : toAccepted(row, false, options);
}

function toAccepted(row: PlainRow, won: boolean, options: AcceptOptions): Accepted {
  if (won) {
    const endpointIds = row.endpoints ? row.endpoints.split(' ') : [];
    const deliveryIds = endpointIds.map((_, index) => deliveryId(row.event_id, index + 1));
    const announce = options.announced && row.due;
    const continuesTo = row.matches > DELIVERIES_AT_ONCE ? row.matches : null;
    return { kind: 'accepted', eventId: row.event_id, deliveryIds, continuesTo, endpointIds, announce };
  }
  if (row.matches > MAX_DELIVERIES_PER_EVENT) return { kind: 'too_many_deliveries' };
  return row.expired ? { kind: 'already_expired' } : { kind: 'no_target' };
}

function requestArrays(events: readonly NewEvent[], options: AcceptOptions): unknown[] {
  const random = randomBytes(events.length * 6).toString('hex');
  return [
    plainArray(events.map((_, place) => eventIdTail(place, random.slice(place * 12, place * 12 + 11)))),
    plainArray(events.map((event) => event.tenantId)),
    quotedArray(events.map((event) => event.type)),
    events.map((event) => event.contentType),
    byteaArray(events.map((event) => event.payload)),
    quotedArray(events.map((event) => patternCandidates(event.type).join(' '))),
    plainArray(events.map((event) => event.targetEndpointId)),
    plainArray(events.map((event) => event.deliverAt?.toISOString() ?? null)),
    plainArray(events.map((event) => event.expiresAt?.toISOString() ?? null)),
    options.announced,
    plainArray(options.bulkEndpoints ?? []),
  ];
}

const LAST_AT_ONCE = DELIVERIES_AT_ONCE.toString(16).padStart(4, '0');

// The range is one of rows, because a plain one can also be had by skipping through the index of the endpoints' deliveries.
const FIRST_ANSWERS = `
select e.id as event_id, d.id, e.continues_to
from unnest($1::uuid[]) r(id),
  lateral (
    select r.id, (select v.matched from relay.events v where v.id = r.id and v.matched > ${DELIVERIES_AT_ONCE}) as continues_to
  ) e,
  lateral (
    select (left(e.id::text, 32) || case when e.continues_to is null then 'ffff' else '${LAST_AT_ONCE}' end)::uuid as id
  ) last,
  lateral (
    select d.id from relay.deliveries d
    where (d.id, d.event_id) > (e.id, last.id) and (d.id, d.event_id) <= (last.id, last.id)
  ) d
order by d.id`;

/**
 * What the first answers told of events that were accepted, for the requests that repeat them. An event from before large fan-outs were
 * continued was accepted with all of its deliveries.
 */
export async function firstAnswersOf(
  pool: Pool,
  eventIds: readonly string[],
): Promise<Map<string, FirstAnswer>> {
  const { rows } = await pool.query<{ event_id: string; id: string; continues_to: number | null }>({
    name: 'relay_first_answers',
    text: FIRST_ANSWERS,
    values: [eventIds],
  });
  const byEvent = new Map<string, FirstAnswer>(
    eventIds.map((id) => [id, { deliveryIds: [], continuesTo: null }]),
  );
  for (const row of rows) {
    const answer = byEvent.get(row.event_id);
    answer?.deliveryIds.push(row.id);
    if (answer) answer.continuesTo = row.continues_to;
  }
  return byEvent;
}

/**
 * Removes keys whose time has passed, so that they count as absent. Keys that somebody else is removing at this moment are left to
 * them: two deletes that waited for each other's keys would deadlock.
 */
export async function deleteExpiredKeys(
  pool: Pool,
  keys: readonly { tenantId: string; key: string }[],
): Promise<void> {
  await pool.query({
    name: 'relay_delete_expired_keys',
    text: `delete from relay.idempotency_keys where ctid = any(array(
      select ctid from relay.idempotency_keys
      where tenant_id = any($1::uuid[]) and key = any($2::text[]) and expires_at <= now()
      for update skip locked))`,
    values: [keys.map((entry) => entry.tenantId), keys.map((entry) => entry.key)],
  });
}

/**
 * Takes back the announcement of rows whose ids could not be put on the stream, so that they are found at once. A row that is
 * leased or not due is left alone.
 */
export async function unannounce(db: Queryable, deliveryIds: readonly string[]): Promise<void> {
  await db.query({
    name: 'relay_unannounce',
    text: `update relay.queue q set announced_at = null, look_at = least(now(), q.expires_at)
      where q.delivery_id = any($1::uuid[]) and q.lease_expires_at is null and q.due_at <= now()`,
    values: [deliveryIds],
  });
}
