-- What Relay tells about itself: an endpoint was disabled, a delivery died.
--
-- An operational event is an event like any other: accepted, fanned out, signed, retried and kept in the same tables. What sets it apart is
-- a `~` before its type, which no type and no pattern of a producer can hold: nobody can post one, and no `*` of an ordinary subscription
-- matches one. Subscriptions to them stand beside the others, their patterns marked `~`, or `~~` when they hear of every tenant. There are few
-- of the latter, and the partial index finds them for a tenant that is not theirs.
--
-- They are written by triggers, in the transaction that makes them true, so that neither can be committed without the other and no process has to
-- remember to tell. A healthy endpoint's row is never written and most settles bury nothing, so the delivery path pays for a trigger
-- that returns at once. Without a subscriber the rest costs two probes of an index.
--
-- Telling must never stop what it tells of: an operational event that cannot be written leaves a warning in the server's log, and the
-- change is made without it. Nothing is told about the deliveries of operational events, or each that died would make the next.

alter table relay.endpoints
  add column operational_types text[] not null default '{}',
  add column operational_scope text not null default 'tenant' check (operational_scope in ('tenant', 'all_tenants'));

create index subscriptions_all_tenants on relay.subscriptions (pattern) where pattern >= '~~';

-- The patterns that match a type, which has one dot.
create function relay.operational_patterns(mark text, type text) returns text[]
language sql immutable parallel safe
return array[mark || '*', mark || split_part(type, '.', 1) || '.*', mark || type];

-- Who hears of an event of this type in this tenant, with the patterns by which they do: the tenant itself, and tenants with endpoints that
-- hear of all.
create function relay.operational_hearers(about uuid, type text) returns table (tenant_id uuid, patterns text[])
language sql stable
begin atomic
  select h.tenant_id, array_agg(distinct h.pattern)
  from (
    select s.tenant_id, s.pattern from relay.subscriptions s
    where s.tenant_id = about and s.pattern = any(relay.operational_patterns('~', type))
    union all
    select s.tenant_id, s.pattern from relay.subscriptions s
    where s.pattern >= '~~' and s.pattern = any(relay.operational_patterns('~~', type))
  ) h
  group by h.tenant_id;
end;

-- Tells of something that happened in a tenant, in the caller's transaction. `type` is told without its mark; `data` holds ids and reasons,
-- never a payload or a secret.
create function relay.emit_operational(about uuid, type text, data jsonb) returns void
language plpgsql
as $$
declare
  hearer record;
begin
  for hearer in select h.tenant_id, h.patterns from relay.operational_hearers(about, type) h loop
    perform relay.accept_event(
      hearer.tenant_id, '~' || type, 'application/json',
      convert_to(json_build_object(
        'type', type,
        'tenant_id', about,
        'occurred_at', to_char(now() at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
        'data', data
      )::text, 'UTF8'),
      null, null, null, hearer.patterns);
  end loop;
exception when others then
  raise warning 'the operational event % of tenant % could not be written: % (%)', type, about, sqlerrm, sqlstate;
end
$$;
