-- Events that match many endpoints, and events of producers that share the database.
--
-- An event that matches more than 1,000 endpoints is accepted with the deliveries of the first 1,000; the rest is a row of `fan_outs`,
-- worked off in steps. The row holds every endpoint that matched, in order: its n-th is the event's n-th delivery. So the answer can say how many there
-- will be, and an endpoint that is made, enabled or subscribed after the event was accepted cannot come in by a later step, nor one
-- that was matched fall out. 65,535 of them are 1 MB beside 100 MB of deliveries. Random ids do not compress, so nobody tries.
--
-- `events.matched` counts the endpoints that an event matched when it was accepted; it is null for events from before this column. 0 is an
-- event that nobody subscribes to, and only such events have an entry in `events_unmatched`.
--
-- `relay.enqueue` accepts an event inside the caller's own transaction. What it writes is what the API's statement writes, except that the
-- queue rows look at -infinity: the transaction may commit long after its now(), and no sweep's cursor passes -infinity. It sends no
-- NOTIFY, which would make the commits of all producers take turns.
--
-- It runs as the owner of the tables, so whoever may call it needs no right on any of them. The settings that it runs under are its own
-- too: a caller's search_path cannot change which table is meant, and a planner that knows little of a young table cannot read all of it.
-- Its limits stand in a table, because a setting of the session could be changed by whoever calls.
--
-- Errors have SQLSTATEs of their own, RL001 to RL007; docs/enqueue.md lists them.

alter table relay.events add column matched integer;

create index events_unmatched on relay.events (tenant_id, id) where matched = 0;

create table relay.fan_outs (
  event_id uuid primary key,
  tenant_id uuid not null,
  endpoint_ids uuid[] not null,
  next_tail integer not null,
  created_at timestamptz not null default now(),
  -- A row with nothing left to do would be looked at for ever.
  constraint something_is_left check (next_tail between 1 and cardinality(endpoint_ids)),
  constraint tails_have_four_digits check (cardinality(endpoint_ids) <= 65535)
) with (fillfactor = 70);

alter table relay.fan_outs alter column endpoint_ids set storage external;

create table relay.enqueue_settings (
  only_row boolean primary key default true check (only_row),
  max_payload_bytes integer not null default 262144 check (max_payload_bytes between 1 and 67108864),
  idempotency_retention interval not null default '24 hours' check (idempotency_retention > '0')
);

insert into relay.enqueue_settings default values;

-- Every pattern that could match a type, from the widest to the narrowest: `a.b` gives `* a.* a.b`. A leading dot has no prefix before it.
-- In plpgsql like everything here: the body of an SQL function is read anew for each call.
create function relay.pattern_candidates(type text) returns text[]
language plpgsql immutable strict parallel safe as $$
declare
  candidates text[] := array['*'];
begin
  for n in 2..length(type) loop
    if substr(type, n, 1) = '.' then
      candidates := candidates || (left(type, n) || '*');
    end if;
  end loop;
  return candidates || type;
end
$$;

-- A part of a request as it is hashed, behind its length.
create function relay.digest_part(part bytea) returns bytea
language plpgsql immutable strict parallel safe as $$
begin
  return int8send(length(part)) || part;
end
$$;

-- Tells whether two requests under one key are the same: the bytes that the API hashes. Moments count to the millisecond, and only when they are there.
create function relay.request_digest(
  type text, content_type text, target uuid, payload bytea, deliver_at timestamptz, expires_at timestamptz
) returns bytea
language plpgsql immutable parallel safe as $$
begin
  return sha256(
    convert_to('relay/request/v1', 'UTF8') || decode('00', 'hex')
    || relay.digest_part(convert_to(type, 'UTF8')) || relay.digest_part(convert_to(content_type, 'UTF8'))
    || coalesce(decode('01', 'hex') || relay.digest_part(convert_to(target::text, 'UTF8')), decode('00', 'hex'))
    || relay.digest_part(payload)
    || coalesce(decode('02', 'hex') || int8send(floor(extract(epoch from deliver_at) * 1000)::bigint), '')
    || coalesce(decode('03', 'hex') || int8send(floor(extract(epoch from expires_at) * 1000)::bigint), '')
  );
end
$$;

-- A version 7 uuid whose last four digits are 0000. Where the API's statement has an event's place in its batch, this has the fraction of
-- the millisecond, so the ids of one session rise with the clock.
create function relay.new_event_id() returns uuid
language plpgsql volatile as $$
declare
  us constant bigint := extract(epoch from clock_timestamp()) * 1000000;
begin
  return (lpad(to_hex(us / 1000), 12, '0') || '7' || lpad(to_hex(us % 1000 * 4), 3, '0')
    || '8' || right(replace(gen_random_uuid()::text, '-', ''), 11) || '0000')::uuid;
end
$$;

-- Which endpoints an event goes to. Raises when its target cannot be had, or when they are too many to number.
create function relay.match_endpoints(tenant_id uuid, type text, target uuid, candidates text[]) returns uuid[]
language plpgsql stable as $$
#variable_conflict use_column
declare
  patterns constant text[] := coalesce(candidates, relay.pattern_candidates(type));
  matched uuid[];
  enabled boolean;
begin
  if target is null then
    matched := array(
      select s.endpoint_id from relay.subscriptions s
      where s.tenant_id = match_endpoints.tenant_id and s.pattern = any(patterns)
    );
    if cardinality(matched) > 65535 then
      raise exception 'too_many_deliveries: an event may go to 65,535 endpoints at most' using errcode = 'RL007';
    end if;
    return matched;
  end if;
  select e.enabled into enabled from relay.endpoints e
  where e.id = target and e.tenant_id = match_endpoints.tenant_id and e.deleted_at is null;
  if enabled is null then
    raise exception 'endpoint_not_found: the tenant has no endpoint %', target using errcode = 'RL003';
  elsif not enabled then
    raise exception 'endpoint_disabled: the endpoint % is disabled', target using errcode = 'RL004';
  end if;
  return array[target];
end
$$;

-- Writes an event, its deliveries, what is owed, and what is left to fan out. The transaction may have begun long ago, so the moments are the clock's.
create function relay.store_event(
  event_id uuid, tenant_id uuid, type text, content_type text, payload bytea, deliver_at timestamptz, expires_at timestamptz,
  endpoint_ids uuid[]
) returns void
language plpgsql as $$
#variable_conflict use_column
declare
  matched constant integer := cardinality(endpoint_ids);
  at_once constant integer := 1000;
  stem constant text := left(event_id::text, 32);
  moment constant timestamptz := clock_timestamp();
begin
  insert into relay.events (id, tenant_id, type, content_type, payload, deliver_at, expires_at, created_at, matched)
  values (store_event.event_id, store_event.tenant_id, store_event.type, store_event.content_type, store_event.payload,
    store_event.deliver_at, store_event.expires_at, moment, matched);
  if matched = 0 then
    return;
  end if;
  insert into relay.deliveries (id, event_id, endpoint_id, tenant_id, created_at)
  select (stem || lpad(to_hex(u.n), 4, '0'))::uuid, store_event.event_id, u.endpoint_id, store_event.tenant_id, moment
  from unnest(endpoint_ids[:at_once]) with ordinality u(endpoint_id, n);
  insert into relay.queue (delivery_id, endpoint_id, event_id, due_at, look_at, expires_at, lane)
  select (stem || lpad(to_hex(u.n), 4, '0'))::uuid, u.endpoint_id, store_event.event_id, greatest(store_event.deliver_at, moment),
    '-infinity', store_event.expires_at, 1
  from unnest(endpoint_ids[:at_once]) with ordinality u(endpoint_id, n);
  if matched > at_once then
    insert into relay.fan_outs (event_id, tenant_id, endpoint_ids, next_tail, created_at)
    values (store_event.event_id, store_event.tenant_id, store_event.endpoint_ids, at_once + 1, moment);
  end if;
end
$$;

-- Accepts an event in the caller's transaction, without an idempotency key and without judging its parts. `candidates` null: those of its type.
create function relay.accept_event(
  tenant_id uuid, type text, content_type text, payload bytea, target uuid, deliver_at timestamptz, expires_at timestamptz,
  candidates text[]
) returns uuid
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
set jit = off
as $$
declare
  event_id constant uuid := relay.new_event_id();
begin
  perform relay.store_event(event_id, tenant_id, type, content_type, payload, deliver_at, expires_at,
    relay.match_endpoints(tenant_id, type, target, candidates));
  return event_id;
end
$$;

-- Raises for the first part of a request that breaks its rule. The rules are those of the API. (A counted repetition in a pattern costs
-- more than everything else here.)
create function relay.judge_request(
  type text, payload bytea, idempotency_key text, content_type text, deliver_at timestamptz, expires_at timestamptz, max_bytes integer
) returns void
language plpgsql as $$
declare
  rule constant text := case
    when (length(type) between 1 and 128 and type collate "C" !~ '[^A-Za-z0-9_.:-]') is not true
      then 'type: an event type is 1 to 128 characters of A-Z a-z 0-9 _ . : -'
    when payload is null
      then 'payload: must not be null'
    when length(idempotency_key) not between 1 and 255 or idempotency_key collate "C" ~ '[^!-~]'
      then 'idempotency_key: an idempotency key is 1 to 255 visible ASCII characters, without spaces'
    when length(content_type) not between 1 and 255 or content_type collate "C" ~ '[^ -~]'
      then 'content_type: must be 1 to 255 visible ASCII characters'
    when deliver_at = '-infinity' or deliver_at > clock_timestamp() + interval '366 days'
      then 'deliver_at: must be a moment at most 366 days ahead'
    when expires_at in ('infinity', '-infinity')
      then 'expires_at: must be a moment; without one, leave it out'
    when expires_at <= deliver_at
      then 'expires_at: must be later than deliver_at'
  end;
begin
  if rule is not null then
    raise exception 'invalid_request: %', rule using errcode = 'RL001';
  elsif length(payload) > max_bytes then
    raise exception 'payload_too_large: % bytes, and at most % are taken', length(payload), max_bytes using errcode = 'RL006';
  end if;
end
$$;

-- Takes an idempotency key for an event that is about to be written. Null when it is taken; else the event of the same request that has it.
-- Waits for a transaction that holds it. Raises when another request has it.
create function relay.take_key(tenant_id uuid, key text, digest bytea, event_id uuid, retention interval) returns uuid
language plpgsql as $$
#variable_conflict use_column
declare
  prior relay.idempotency_keys;
begin
  loop
    insert into relay.idempotency_keys (tenant_id, key, digest, event_id, created_at, expires_at)
    values (take_key.tenant_id, take_key.key, take_key.digest, take_key.event_id, clock_timestamp(), clock_timestamp() + retention)
    on conflict do nothing;
    if found then
      return null;
    end if;
    -- Each statement sees what the one before it waited for. A key whose time has passed counts as absent.
    delete from relay.idempotency_keys k
    where k.tenant_id = take_key.tenant_id and k.key = take_key.key and k.expires_at <= clock_timestamp();
    select k.* into prior from relay.idempotency_keys k where k.tenant_id = take_key.tenant_id and k.key = take_key.key;
    if prior.digest = take_key.digest then
      return prior.event_id;
    elsif prior.digest is not null then
      raise exception 'idempotency_conflict: this idempotency key was used for another request' using errcode = 'RL005';
    end if;
  end loop;
end
$$;

create function relay.enqueue(
  type text, payload bytea, idempotency_key text default null, tenant uuid default null, endpoint_id uuid default null,
  content_type text default null, deliver_at timestamptz default null, expires_at timestamptz default null
) returns uuid
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
set jit = off
as $$
#variable_conflict use_column
declare
  tenant_id constant uuid := coalesce(tenant, '00000000-0000-0000-0000-000000000001');
  media_type constant text := coalesce(content_type, 'application/json');
  event_id constant uuid := relay.new_event_id();
  settings relay.enqueue_settings;
  prior uuid;
begin
  select s.* into strict settings from relay.enqueue_settings s;
  perform relay.judge_request(type, payload, idempotency_key, media_type, deliver_at, expires_at, settings.max_payload_bytes);
  if not exists (select from relay.tenants t where t.id = tenant_id and t.deleted_at is null) then
    raise exception 'tenant_not_found: there is no tenant %', tenant_id using errcode = 'RL002';
  end if;
  if idempotency_key is not null then
    prior := relay.take_key(tenant_id, idempotency_key,
      relay.request_digest(type, media_type, endpoint_id, payload, deliver_at, expires_at), event_id, settings.idempotency_retention);
    if prior is not null then
      return prior;
    end if;
  end if;
  -- After the key: a request that is repeated after its event's end is still the request that was accepted.
  if expires_at <= clock_timestamp() then
    raise exception 'invalid_request: expires_at: must lie in the future' using errcode = 'RL001';
  end if;
  perform relay.store_event(event_id, tenant_id, type, media_type, payload, deliver_at, expires_at,
    relay.match_endpoints(tenant_id, type, endpoint_id, null));
  return event_id;
end
$$;

-- The same for a payload that is text: its bytes in UTF-8.
create function relay.enqueue(
  type text, payload text, idempotency_key text default null, tenant uuid default null, endpoint_id uuid default null,
  content_type text default null, deliver_at timestamptz default null, expires_at timestamptz default null
) returns uuid
language sql
return relay.enqueue(type, convert_to(payload, 'UTF8'), idempotency_key, tenant, endpoint_id, content_type, deliver_at, expires_at);

create function relay.enqueue(
  type text, payload json, idempotency_key text default null, tenant uuid default null, endpoint_id uuid default null,
  content_type text default null, deliver_at timestamptz default null, expires_at timestamptz default null
) returns uuid
language sql
return relay.enqueue(type, convert_to(payload::text, 'UTF8'), idempotency_key, tenant, endpoint_id, content_type, deliver_at, expires_at);

create function relay.enqueue(
  type text, payload jsonb, idempotency_key text default null, tenant uuid default null, endpoint_id uuid default null,
  content_type text default null, deliver_at timestamptz default null, expires_at timestamptz default null
) returns uuid
language sql
return relay.enqueue(type, convert_to(payload::text, 'UTF8'), idempotency_key, tenant, endpoint_id, content_type, deliver_at, expires_at);

-- Functions may be called by everybody unless it is said otherwise. Roles belong to the whole server: another database of it may have made
-- this one already.
do $$
declare
  inner_function regprocedure;
begin
  for inner_function in
    select p.oid::regprocedure from pg_proc p
    where p.pronamespace = 'relay'::regnamespace and p.proname in (
      'pattern_candidates', 'digest_part', 'request_digest', 'new_event_id', 'match_endpoints', 'store_event', 'accept_event', 'judge_request',
      'take_key', 'enqueue')
  loop
    execute format('revoke execute on function %s from public', inner_function);
  end loop;
end
$$;

do $$
begin
  create role relay_producer nologin;
exception
  when duplicate_object or unique_violation then
    null;
  when insufficient_privilege then
    raise notice 'the role relay_producer could not be made: make it, and grant it what docs/enqueue.md says';
end
$$;

do $$
declare
  callable regprocedure;
begin
  if not exists (select from pg_roles where rolname = 'relay_producer') then
    return;
  end if;
  grant usage on schema relay to relay_producer;
  for callable in
    select p.oid::regprocedure from pg_proc p where p.pronamespace = 'relay'::regnamespace and p.proname = 'enqueue'
  loop
    execute format('grant execute on function %s to relay_producer', callable);
  end loop;
end
$$;
