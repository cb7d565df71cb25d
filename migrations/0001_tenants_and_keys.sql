-- Who may use Relay, and on whose behalf.
--
-- A tenant owns endpoints, events and deliveries; every read and write of the API is scoped by it. One tenant, `default`,
-- exists from the start so that a single-tenant installation never has to name one.
--
-- A key is shown once. What is stored is its SHA-256: a key is 32 random bytes, so a slow hash would buy nothing, and the
-- lookup must be one index probe. `tenant_id is null` marks an admin key, which may act for every tenant.

create table relay.tenants (
  id uuid primary key default gen_random_uuid(),
  name text not null check (length(name) between 1 and 200),
  created_at timestamptz not null default now(),
  deleted_at timestamptz
);

insert into relay.tenants (id, name) values ('00000000-0000-0000-0000-000000000001', 'default');

create table relay.api_keys (
  id uuid primary key default gen_random_uuid(),
  tenant_id uuid references relay.tenants (id),
  name text not null default '' check (length(name) <= 200),
  prefix text not null,
  key_hash bytea not null unique check (length(key_hash) = 32),
  scopes text[] not null check (scopes <@ array['events:write', 'read', 'manage'] and cardinality(scopes) > 0),
  created_at timestamptz not null default now(),
  expires_at timestamptz,
  revoked_at timestamptz,
  last_used_at timestamptz
);

create index api_keys_tenant on relay.api_keys (tenant_id, id);
