-- The record: what was accepted, and what became of it.
--
-- Ids are version 7 uuids minted by the accept statement on the database's clock. The last four hex digits of an event's id
-- are 0000, and its n-th delivery carries n there, so an event's deliveries are a range of the primary key, and no index on event_id is
-- needed: it would cost every delivery an insertion.
--
-- `deliveries` is inserted once and updated once, when the delivery ends (or is replayed). No index contains a column that
-- ending it changes, and fillfactor 45 keeps room for the one new version on the same page, so that update is heap-only: three
-- index insertions fewer per delivery. While a delivery is unfinished its counters live in `queue`.
--
-- There are no foreign keys from these tables to endpoints or tenants: the check would lock the one hot row of each endpoint
-- for every delivery. The invariant check counts orphans instead.
--
-- The payload is kept as the bytes that were posted. lz4 costs half of pglz at 4 KiB; a server built without it keeps pglz.

create table relay.events (
  id uuid primary key,
  tenant_id uuid not null,
  type text collate "C" not null,
  content_type text not null,
  payload bytea not null,
  deliver_at timestamptz,
  expires_at timestamptz,
  created_at timestamptz not null default now()
) with (autovacuum_vacuum_insert_scale_factor = 0.1);

do $$
begin
  alter table relay.events alter column payload set compression lz4;
exception when feature_not_supported then
  raise notice 'this server has no lz4: payloads are compressed by pglz';
end
$$;

create table relay.deliveries (
  id uuid primary key,
  event_id uuid not null,
  endpoint_id uuid not null,
  tenant_id uuid not null,
  created_at timestamptz not null default now(),
  finished_at timestamptz,
  seq integer not null default 0,
  sends integer not null default 0,
  last_duration_ms integer,
  attempts smallint not null default 0,
  generation smallint not null default 1,
  last_http_status smallint,
  status text collate "C" not null default 'pending' check (status in ('pending', 'succeeded', 'dead')),
  last_class text collate "C" check (last_class in ('success', 'deferred', 'retryable', 'permanent', 'lost')),
  dead_reason text collate "C" check (dead_reason in (
    'permanent_failure', 'attempts_exhausted', 'refused', 'gone', 'abandoned', 'cancelled', 'expired')),
  -- A dead delivery without a reason, or a reason on a living one, would make the dead-letter page lie.
  constraint dead_says_why check ((status = 'dead') = (dead_reason is not null)),
  constraint finished_says_when check ((status = 'pending') = (finished_at is null))
) with (fillfactor = 45, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);

create index deliveries_endpoint on relay.deliveries (endpoint_id, id);

create table relay.dead_letters (
  delivery_id uuid primary key,
  endpoint_id uuid not null,
  event_id uuid not null,
  tenant_id uuid not null,
  reason text collate "C" not null check (reason in (
    'permanent_failure', 'attempts_exhausted', 'refused', 'gone', 'abandoned', 'cancelled', 'expired')),
  died_at timestamptz not null default now(),
  last_class text collate "C",
  last_http_status smallint,
  last_error text
);

create index dead_letters_tenant on relay.dead_letters (tenant_id, died_at, delivery_id);
create index dead_letters_endpoint on relay.dead_letters (endpoint_id, died_at, delivery_id);

create table relay.idempotency_keys (
  tenant_id uuid not null,
  key text collate "C" not null,
  digest bytea not null,
  event_id uuid not null,
  created_at timestamptz not null default now(),
  expires_at timestamptz not null,
  primary key (tenant_id, key)
);
