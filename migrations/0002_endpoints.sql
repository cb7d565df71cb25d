-- Where deliveries go.
--
-- A healthy endpoint's row is never written by the delivery path: a hot row per endpoint would serialise everything that is
-- sent to it. `version` rises with each change of configuration and is returned by the claim, so that a dispatcher's cache
-- is checked for free. `slot_version` rises only by what re-times waiting deliveries.
--
-- Secrets are stored encrypted (AES-256-GCM, keyed by RELAY_SECRET_KEYS); the previous secret signs beside the current one
-- until it expires, and expiry is judged by the query that reads it, not by something that sweeps.
--
-- `subscriptions` is what fan-out reads: one row per pattern of an *enabled* endpoint. Patterns are normalised at write (one
-- that another covers is dropped), so an event type meets at most one row per endpoint and fan-out needs no distinct.

create table relay.endpoints (
  id uuid primary key default gen_random_uuid(),
  tenant_id uuid not null references relay.tenants (id),
  url text not null check (length(url) between 1 and 2048),
  transport text not null default 'http' check (transport in ('http')),
  event_types text[] not null default '{}',
  description text not null default '' check (length(description) <= 1000),
  enabled boolean not null default true,
  disabled_reason text check (disabled_reason in ('operator', 'gone')),
  disabled_at timestamptz,
  signing_scheme text not null default 'relay' check (signing_scheme in ('relay', 'standard')),
  secret bytea not null,
  previous_secret bytea,
  previous_secret_expires_at timestamptz,
  rate_per_second double precision not null default 10 check (rate_per_second > 0 and rate_per_second <= 1e9),
  burst double precision not null default 20 check (burst >= 1 and burst <= 1e9),
  max_in_flight integer not null default 8 check (max_in_flight between 1 and 10000),
  retry_policy jsonb,
  timeouts jsonb,
  paused_until timestamptz,
  version integer not null default 1,
  slot_version integer not null default 1,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  deleted_at timestamptz,
  -- A rotation has both halves or none: an old secret without an end would sign for ever.
  constraint rotation_complete check ((previous_secret is null) = (previous_secret_expires_at is null)),
  constraint disabled_says_why check (enabled = (disabled_reason is null))
);

create index endpoints_tenant on relay.endpoints (tenant_id, id) where deleted_at is null;

create table relay.subscriptions (
  tenant_id uuid not null,
  pattern text collate "C" not null,
  endpoint_id uuid not null references relay.endpoints (id) on delete cascade,
  primary key (tenant_id, pattern, endpoint_id)
);

create index subscriptions_endpoint on relay.subscriptions (endpoint_id);
