-- What is still owed: one narrow row per unfinished delivery.
--
-- The row is inserted by the statement that inserts the delivery and deleted by the statement that finishes it, so
-- "unfinished if and only if there is a queue row" holds by construction. A claim touches no indexed column, and fillfactor 45
-- keeps its new version on the same page.
--
-- `look_at` is the moment at which a sweep must look at the row: never later than `due_at` of a row that nobody was told of,
-- 30 s after an announcement, 5 s after a lease ends. It is indexed alone, so that rows of one commit share an index entry.
-- `expires_at` repeats the event's, so that the sweep judges a row without reading its event.
--
-- A queue is nearly empty when vacuum or analyze looks, and the planner then prices one key lookup as hundreds of pages. Two
-- things follow. No statement joins this table to a list: always `delivery_id = any($ids)`. And vacuum runs by a count of dead
-- rows, not by a share of a table that has none.

create table relay.queue (
  delivery_id uuid primary key,
  endpoint_id uuid not null,
  event_id uuid not null,
  due_at timestamptz not null,
  look_at timestamptz not null,
  announced_at timestamptz,
  lease_expires_at timestamptz,
  expires_at timestamptz,
  claim_token uuid,
  claimed_by integer,
  seq integer not null default 0,
  sends integer not null default 0,
  deferrals integer not null default 0,
  slot_version integer,
  attempts smallint not null default 0,
  generation smallint not null default 1,
  reclaims smallint not null default 0,
  lane smallint not null default 0,
  waiting text collate "C" check (waiting in ('slot', 'parked')),
  deferral_reason text collate "C" check (deferral_reason in (
    'rate_limit', 'concurrency', 'breaker_open', 'probe', 'paused', 'disabled')),
  cancel_requested boolean not null default false
) with (
  fillfactor = 45,
  autovacuum_vacuum_scale_factor = 0,
  autovacuum_vacuum_threshold = 20000,
  autovacuum_vacuum_insert_threshold = -1,
  autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_scale_factor = 0,
  autovacuum_analyze_threshold = 100000,
  vacuum_truncate = off
);

create index queue_look on relay.queue (look_at);
create index queue_waiting on relay.queue (endpoint_id, slot_version, due_at) where waiting is not null;

-- What people are shown: `inflight` is a pending delivery whose queue row has a running lease.
create function relay.shown_status(status text, lease_expires_at timestamptz) returns text
language sql stable parallel safe
return case when status = 'pending' and lease_expires_at > now() then 'inflight' else status end;

create view relay.delivery_view as
select
  d.id, d.event_id, d.endpoint_id, d.tenant_id, d.created_at, d.finished_at, d.dead_reason,
  d.last_class, d.last_http_status, d.last_duration_ms,
  relay.shown_status(d.status, q.lease_expires_at) as status,
  coalesce(q.attempts, d.attempts) as attempts,
  coalesce(q.sends, d.sends) as sends,
  coalesce(q.seq, d.seq) as seq,
  coalesce(q.generation, d.generation) as generation,
  q.deferrals, q.deferral_reason, q.reclaims, q.cancel_requested,
  case when q.due_at < 'infinity' then q.due_at end as next_attempt_at,
  q.lease_expires_at, q.claimed_by
from relay.deliveries d
left join relay.queue q on q.delivery_id = d.id;
