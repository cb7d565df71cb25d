-- Who may use Relay, continued: scopes for replay, keys that take another's place, tokens for customers, and a log of who changed what.
--
-- `replay` lets in to sending again and to nothing else; `manage` includes it, so no key that exists loses anything.
--
-- A rotated key goes on working until the end of the overlap, which is its `expires_at`; `replaced_by` says that it has an heir, and keeps
-- a second rotation of the same key from making a second heir that nobody knows of. `requests_per_second` overrides the API's own limit.
--
-- A portal token is handed to a customer's browser or backend: one tenant, a day at most, never more than reading and replaying, and
-- confined to some endpoints where it names them. It is not an API key, because whatever is asked of keys (an admin key, a scope
-- that changes things, a key without an end) must not be possible for it by a slip: the schema does not hold it.
--
-- The audit log is written in the transaction of the change that it tells of. `tenant_id` is null for what belongs to no tenant, such as an
-- admin key. It refers to nothing by foreign key: it outlives what it names. Rows are never changed: a trigger refuses it.

alter table relay.api_keys
  drop constraint api_keys_scopes_check,
  add constraint api_keys_scopes_check
    check (scopes <@ array['events:write', 'read', 'manage', 'replay'] and cardinality(scopes) > 0),
  add column requests_per_second double precision check (requests_per_second > 0 and requests_per_second <= 1000000),
  add column replaced_by uuid;

create table relay.portal_tokens (
  id uuid primary key,
  tenant_id uuid not null references relay.tenants (id),
  name text not null default '' check (length(name) <= 200),
  prefix text not null,
  token_hash bytea not null unique check (length(token_hash) = 32),
  scopes text[] not null check (scopes <@ array['read', 'replay'] and cardinality(scopes) > 0),
  endpoint_ids uuid[] check (cardinality(endpoint_ids) between 1 and 100),
  made_by uuid,
  created_at timestamptz not null default now(),
  expires_at timestamptz not null,
  revoked_at timestamptz,
  -- A token that leaked into a browser's history or a log is worth nothing the day after.
  constraint portal_token_is_short_lived check (expires_at <= created_at + interval '24 hours')
);

create index portal_tokens_tenant on relay.portal_tokens (tenant_id, id);

create table relay.audit_log (
  id uuid primary key,
  tenant_id uuid,
  at timestamptz not null default now(),
  actor text collate "C" not null check (actor in ('key', 'portal', 'admin')),
  actor_id uuid,
  action text collate "C" not null,
  resource text collate "C" not null,
  resource_id uuid,
  changes jsonb not null,
  request_id text not null,
  constraint audit_actor_has_a_name check ((actor = 'admin') = (actor_id is null))
);

create index audit_log_tenant on relay.audit_log (tenant_id, at, id);
create index audit_log_resource on relay.audit_log (resource_id, at, id);
create index audit_log_at on relay.audit_log (at, id);

create function relay.refuse_audit_change() returns trigger
language plpgsql as $$
begin
  raise exception 'audit_log is append-only: % refused', lower(tg_op);
end
$$;

create trigger audit_log_append_only
before update or delete or truncate on relay.audit_log
for each statement execute function relay.refuse_audit_change();
