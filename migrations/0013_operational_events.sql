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

create function relay.utc_moment(moment timestamptz) returns text
language sql stable parallel safe
return to_char(moment at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"');

-- Tells of something that happened in a tenant, in the caller's transaction. `type` is told without its mark; `data` holds ids and reasons,
-- never a payload or a secret.
create function relay.emit_operational(about uuid, type text, data jsonb) returns void
language plpgsql
as $$
declare
  hearer record;
begin
  for hearer in select h.tenant_id, h.patterns from relay.operational_hearers(about, type) h loop
    begin
      perform relay.accept_event(
        hearer.tenant_id, '~' || type, 'application/json',
        convert_to(format('{"type":%s,"tenant_id":%s,"occurred_at":%s,"data":%s}',
          to_json(type), to_json(about), to_json(relay.utc_moment(now())), data), 'UTF8'),
        null, null, null, hearer.patterns);
    exception when others then
      raise warning 'the operational event % about tenant % could not be written for tenant %: % (%)',
        type, about, hearer.tenant_id, sqlerrm, sqlstate;
    end;
  end loop;
end
$$;

-- An endpoint that is disabled, enabled, or whose breaker opens or closes. `opened` is told once for each streak: a probe that fails opens it
-- for longer, which is no news. Enabling closes the breaker too, which is not told again.
create function relay.tell_endpoint_change() returns trigger
language plpgsql
as $$
declare
  -- A batch of results may hold the probe's success and the failures that open it again: one write, a new streak.
  opened constant boolean := new.breaker_state = 'open' and new.breaker_streak = 1 and new.breaker_trips > old.breaker_trips;
begin
  if new.deleted_at is not null then
    return null;
  elsif old.enabled and not new.enabled then
    perform relay.emit_operational(new.tenant_id, 'endpoint.disabled',
      jsonb_build_object('endpoint_id', new.id, 'reason', new.disabled_reason));
    return null;
  elsif new.enabled and not old.enabled then
    perform relay.emit_operational(new.tenant_id, 'endpoint.enabled', jsonb_build_object('endpoint_id', new.id));
    return null;
  end if;
  if old.breaker_state <> 'closed' and (new.breaker_state = 'closed' or opened) then
    perform relay.emit_operational(new.tenant_id, 'endpoint.recovered', jsonb_build_object(
      'endpoint_id', new.id,
      'by', case when new.breaker_state = 'closed' and new.breaker_trips > old.breaker_trips then 'operator' else 'probe' end));
  end if;
  if opened then
    perform relay.emit_operational(new.tenant_id, 'endpoint.opened', jsonb_build_object(
      'endpoint_id', new.id, 'failures', new.breaker_failures, 'until', relay.utc_moment(new.breaker_until)));
  end if;
  return null;
end
$$;

create trigger tell_endpoint_change after update on relay.endpoints
for each row
when (old.enabled <> new.enabled or old.breaker_state <> new.breaker_state or old.breaker_trips <> new.breaker_trips)
execute function relay.tell_endpoint_change();

-- Deliveries that died in one statement: one event for each tenant, which names the first 100 and counts them all, so that what dies by the
-- thousand is told in dozens. What somebody cancelled, or owed to an endpoint that was deleted, is no news to them. The type is looked up row
-- by row: joined, a young table is read as a whole.
create function relay.tell_dead() returns trigger
language plpgsql
as $$
declare
  about uuid;
  told jsonb;
begin
  for about in select distinct f.tenant_id from fresh f where f.reason <> 'cancelled' loop
    continue when not exists (
      select from relay.subscriptions s
      where s.tenant_id = about and s.pattern = any(relay.operational_patterns('~', 'delivery.dead'))
    ) and not exists (
      select from relay.subscriptions s
      where s.pattern >= '~~' and s.pattern = any(relay.operational_patterns('~~', 'delivery.dead'))
    );
    with typed as materialized (
      select f.*, (select e.type from relay.events e where e.id = f.event_id) as event_type
      from fresh f
      where f.tenant_id = about and f.reason <> 'cancelled'
    ),
    dead as materialized (
      select t.*, row_number() over (order by t.delivery_id) as place from typed t where (t.event_type like '~%') is not true
    )
    select jsonb_build_object(
      'count', count(*),
      'reasons', (select jsonb_object_agg(r.reason, r.times) from (select d.reason, count(*) as times from dead d group by d.reason) r),
      'deliveries', jsonb_agg(jsonb_build_object(
        'delivery_id', d.delivery_id, 'event_id', d.event_id, 'event_type', d.event_type, 'endpoint_id', d.endpoint_id,
        'reason', d.reason, 'last_class', d.last_class, 'last_http_status', d.last_http_status,
        'died_at', relay.utc_moment(d.died_at)) order by d.place) filter (where d.place <= 100))
    into told
    from dead d
    having count(*) > 0;
    if told is not null then
      perform relay.emit_operational(about, 'delivery.dead', told);
    end if;
  end loop;
  return null;
end
$$;

create trigger tell_dead after insert on relay.dead_letters
referencing new table as fresh
for each statement
execute function relay.tell_dead();

-- Functions may be called by everybody unless it is said otherwise.
revoke execute on function relay.operational_patterns, relay.operational_hearers, relay.utc_moment, relay.emit_operational,
  relay.tell_endpoint_change, relay.tell_dead from public;
