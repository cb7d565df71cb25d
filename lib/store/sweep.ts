import type { ClientBase } from 'pg';
import { MAX_RECLAIMS, RECLAIM_GRACE_MS, STALL_MS } from '../domain/limits.ts';
import type { Lane } from '../domain/vocabulary.ts';

/**
 * The sweeps over `queue` by look_at. Each is one bounded statement with one purpose; rows locked by others are skipped and found by
 * a later round. `from` is where the walk begins: a shortcut past dead index entries, never a proof, so a full pass (null) follows
 * now and then.
 */
export interface SweepOptions {
  limit: number;
  from: Date | null;
}

export type SweepCursor = Date | null;

const GRACE = `interval '${RECLAIM_GRACE_MS} ms'`;
const IN_RANGE = 'look_at <= now() and look_at >= $2::timestamptz';
const ALIVE = 'not cancel_requested and (expires_at > now()) is not false';
const values = (options: SweepOptions) => [options.limit, options.from ?? '-infinity'];

// Rows that are leased, or whose moment was moved into the future: look again then. A leased row is nobody's but its holder's, cancelled
// and expired ones too, so its next look is the moment when it may be taken back, and a cursor that has passed cannot miss it.
const POSTPONE = `
with s as materialized (
  select delivery_id from relay.queue
  where ${IN_RANGE}
    and (lease_expires_at > now() - ${GRACE} or (lease_expires_at is null and due_at > now() and ${ALIVE}))
  order by look_at limit $1
  for update skip locked
)
update relay.queue q
set look_at = case when q.lease_expires_at is null then least(q.due_at, q.expires_at) else q.lease_expires_at + ${GRACE} end
where q.delivery_id = any(array(select delivery_id from s))`;

/** Moves the look of rows that need nothing yet. Returns how many there were. */
export async function postponeLooks(client: ClientBase, options: SweepOptions): Promise<number> {
  const { rowCount } = await client.query({
    name: 'relay_postpone',
    text: POSTPONE,
    values: values(options),
  });
  return rowCount ?? 0;
}

// The lease goes, the token stays: a late settle still counts until somebody claims. The delay parts a poison row's neighbours from
// it. Whoever held the row is named in the log.
const RECLAIM = `
with s as materialized (
  select delivery_id from relay.queue
  where ${IN_RANGE} and ${ALIVE} and lease_expires_at <= now() - ${GRACE} and reclaims < ${MAX_RECLAIMS - 1}
  order by look_at limit $1
  for update skip locked
),
reclaimed as (
  update relay.queue q
  set lease_expires_at = null, announced_at = null, reclaims = q.reclaims + 1, seq = q.seq + 1, lane = 1,
    (due_at, look_at) = (
      select d.due_at, least(d.due_at, q.expires_at)
      from (select now() + random() * least(2 ^ (q.reclaims + 1), 300) * interval '1 s' as due_at) d
    )
  where q.delivery_id = any(array(select delivery_id from s))
  returning q.delivery_id, q.seq, q.attempts, q.generation, q.claimed_by, q.due_at
)
insert into relay.delivery_attempts (delivery_id, seq, attempt, generation, class, error, claimed_by, next_attempt_at)
select delivery_id, seq, attempts, generation, 'lost', 'its holder vanished before it recorded an outcome', claimed_by, due_at
from reclaimed
returning delivery_id`;

/** Gives back rows whose lease ended over 5 s ago. Returns their ids. */
export async function reclaimExpired(client: ClientBase, options: SweepOptions): Promise<string[]> {
  const { rows } = await client.query<{ delivery_id: string }>({
    name: 'relay_reclaim',
    text: RECLAIM,
    values: values(options),
  });
  return rows.map((row) => row.delivery_id);
}

const ENDABLE = `(
    (lease_expires_at is null and not (${ALIVE}))
    or (lease_expires_at <= now() - ${GRACE} and (not (${ALIVE}) or reclaims >= ${MAX_RECLAIMS - 1}))
  )`;

const END = `
with s as materialized (
  select delivery_id from relay.queue
  where ${IN_RANGE} and ${ENDABLE} and (lease_expires_at is null or $3)
  order by look_at limit $1
  for update skip locked
),
freed as (
  delete from relay.queue q where q.delivery_id = any(array(select delivery_id from s))
  returning q.delivery_id, q.attempts, q.sends, q.generation, q.claimed_by, q.lease_expires_at is not null as lost,
    q.seq + case when q.lease_expires_at is null then 0 else 1 end as seq,
    case when q.cancel_requested then 'cancelled' when q.expires_at <= now() then 'expired' else 'abandoned' end as reason
),
finished as (
  update relay.deliveries d
  set status = 'dead', dead_reason = f.reason, finished_at = now(), seq = f.seq, sends = f.sends, attempts = f.attempts,
    generation = f.generation, last_class = case when f.lost then 'lost' else d.last_class end
  from freed f
  where d.id = f.delivery_id
  returning d.id, d.endpoint_id, d.event_id, d.tenant_id, d.dead_reason, d.last_class, d.last_http_status
),
logged as (
  insert into relay.delivery_attempts (delivery_id, seq, attempt, generation, class, error, reason, claimed_by)
  select delivery_id, seq, attempts, generation, 'lost', 'its holder vanished before it recorded an outcome', reason, claimed_by
  from freed where lost
)
insert into relay.dead_letters (delivery_id, endpoint_id, event_id, tenant_id, reason, last_class, last_http_status)
select id, endpoint_id, event_id, tenant_id, dead_reason, last_class, last_http_status from finished
on conflict (delivery_id) do update set reason = excluded.reason, died_at = excluded.died_at, last_class = excluded.last_class,
  last_http_status = excluded.last_http_status
returning reason`;

/**
 * Ends what is cancelled, expired or was abandoned too often, once nobody holds it. `mayReclaim` false leaves rows alone whose lease
 * has ended: their settle may be on its way. Returns the dead reasons, one for each delivery.
 */
export async function endOwed(
  client: ClientBase,
  options: SweepOptions & { mayReclaim: boolean },
): Promise<('cancelled' | 'expired' | 'abandoned')[]> {
  const { rows } = await client.query<{ reason: 'cancelled' | 'expired' | 'abandoned' }>({
    name: 'relay_end',
    text: END,
    values: [...values(options), options.mayReclaim],
  });
  return rows.map((row) => row.reason);
}

// Announced and still neither leased nor done: perhaps lost, perhaps merely unread. Only what was announced before its lane's drained mark
// can have been lost; the rest is not locked and does not count against the limit. It stays in its lane; what is due and was not announced
// since then has waited already and goes to bulk.
const ANNOUNCE = `
with s as materialized (
  select delivery_id, look_at, announced_at >= due_at as stalled from relay.queue
  where ${IN_RANGE} and ${ALIVE} and lease_expires_at is null and due_at <= now()
    and (announced_at is null or announced_at < due_at
      or announced_at <= case lane when 0 then $3::timestamptz else $4::timestamptz end)
  order by look_at limit $1
  for update skip locked
),
marked as (
  update relay.queue q
  set announced_at = now(), look_at = least(now() + interval '${STALL_MS} ms', q.expires_at),
    lane = case when q.announced_at >= q.due_at then q.lane else 1 end
  where q.delivery_id = any(array(select delivery_id from s))
  returning q.delivery_id, q.lane
)
select array(select delivery_id from marked where lane = 0) as express,
  array(select delivery_id from marked where lane <> 0) as bulk, (select count(*)::integer from s where stalled) as stalled,
  (select max(look_at) from s where look_at > '-infinity') as last_look, now() as read_at`;

/** For each lane the moment up to which its stream is known to be read; null when it is not known. */
export type DrainedUntil = Record<Lane, Date | null>;

export interface Announcement {
  /** To be put on the stream of their lane. */
  ids: Record<Lane, string[]>;
  /** How many of them had been announced before. */
  stalled: number;
  /** How far this walk came. Transactions commit out of order, so the next must begin a little before it. */
  cursor: SweepCursor;
}

/**
 * Marks due rows as announced, with the lane on which they are, and returns their ids, to be put on the streams after this commit.
 */
export async function announceDue(
  client: ClientBase,
  options: SweepOptions & { drainedUntil: DrainedUntil },
): Promise<Announcement> {
  const { rows } = await client.query<{
    express: string[];
    bulk: string[];
    stalled: number;
    last_look: Date | null;
    read_at: Date;
  }>({
    name: 'relay_announce',
    text: ANNOUNCE,
    values: [
      ...values(options),
      options.drainedUntil.express ?? '-infinity',
      options.drainedUntil.bulk ?? '-infinity',
    ],
  });
  const [row] = rows;
  if (!row) return { ids: { express: [], bulk: [] }, stalled: 0, cursor: options.from };
  const { express, bulk } = row;
  const full = express.length + bulk.length >= options.limit;
  return {
    ids: { express, bulk },
    stalled: row.stalled,
    cursor: full ? (row.last_look ?? options.from) : row.read_at,
  };
}

const SURFACE = `
with s as materialized (
  select delivery_id from relay.queue where look_at = '-infinity' limit $1 for update skip locked
)
update relay.queue q
set due_at = greatest(now(), q.due_at), look_at = least(greatest(now(), q.due_at), q.expires_at)
where q.delivery_id = any(array(select delivery_id from s))`;

/**
 * Gives rows that were enqueued inside a producer's own transaction a look of now: their commit may lie far behind the moment the
 * transaction began, so they carry -infinity, which no cursor passes. They come due now too: how long their producer kept them is no
 * lateness of ours. Returns how many there were.
 */
export async function surfaceEnqueued(client: ClientBase, limit: number): Promise<number> {
  const { rowCount } = await client.query({ name: 'relay_surface', text: SURFACE, values: [limit] });
  return rowCount ?? 0;
}

/** Milliseconds until the next row wants to be looked at; null when none does. Also the database's clock. */
export async function nextLook(client: ClientBase): Promise<{ inMs: number | null; now: Date }> {
  const { rows } = await client.query<{ in_ms: number | null; now: Date }>({
    name: 'relay_next_look',
    text: `select now(), (select (extract(epoch from q.look_at - now()) * 1000)::float8 from relay.queue q
      where q.look_at > now() and q.look_at < 'infinity' order by q.look_at limit 1) as in_ms`,
  });
  return { inMs: rows[0]?.in_ms ?? null, now: rows[0]?.now ?? new Date(0) };
}
