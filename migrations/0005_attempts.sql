-- The log: one row for everything that happened to a delivery.
--
-- It is the only table that grows with attempts rather than with deliveries, so it is partitioned by UTC day and retention drops
-- a partition instead of deleting rows. Its one index follows a delivery. `seq` orders a delivery's history and is never reset, not
-- even by replay. Rows are never changed: a trigger refuses it, unless the transaction says `set local relay.moving_rows = on`,
-- which the maintainer does while it moves rows out of the default partition.
--
-- The default partition exists because an insert whose day has no partition would fail, and that insert is part of the statement
-- that records an outcome: the delivery would be sent again. It is meant to stay empty; its row count is a metric to alert on.

create table relay.delivery_attempts (
  delivery_id uuid not null,
  at timestamptz not null default now(),
  seq integer not null,
  send integer,
  lateness_ms integer,
  duration_ms integer,
  claimed_by integer,
  attempt smallint not null,
  generation smallint not null,
  http_status smallint,
  class text collate "C" not null check (class in ('success', 'deferred', 'retryable', 'permanent', 'lost')),
  reason text collate "C",
  error text,
  response_snippet text,
  next_attempt_at timestamptz
) partition by range (at);

create index delivery_attempts_delivery on relay.delivery_attempts (delivery_id, seq);

create table relay.delivery_attempts_default partition of relay.delivery_attempts default;

create function relay.refuse_attempt_change() returns trigger
language plpgsql as $$
begin
  if current_setting('relay.moving_rows', true) = 'on' then
    return case tg_op when 'DELETE' then old else new end;
  end if;
  raise exception 'delivery_attempts is append-only: % refused', lower(tg_op);
end
$$;

create trigger delivery_attempts_append_only
before update or delete on relay.delivery_attempts
for each row execute function relay.refuse_attempt_change();

-- Makes the daily partitions from yesterday to `days_ahead` days from now; bounds are UTC whatever the session's zone.
-- Returns how many were made. A day whose rows already lie in the default partition is left to the maintainer.
--
-- A partition is made beside the log and attached. `create table ... partition of` would lock the whole log, and every settle would
-- queue behind it while it waits for whatever long read is open. Attaching still wants the default partition for itself: when it is
-- not to be had within 200 ms, that is an error (55P03) and nothing was made.
create function relay.ensure_attempt_partitions(days_ahead integer) returns integer
language plpgsql set lock_timeout = '200ms' as $$
declare
  today date := (now() at time zone 'utc')::date;
  day date;
  made integer := 0;
  partition text;
begin
  for i in -1 .. days_ahead loop
    day := today + i;
    partition := 'delivery_attempts_' || to_char(day, 'YYYYMMDD');
    continue when to_regclass('relay.' || partition) is not null;
    begin
      execute format('create table relay.%I (like relay.delivery_attempts including all)', partition);
      execute format(
        'alter table relay.delivery_attempts attach partition relay.%I for values from (%L) to (%L)',
        partition, to_char(day, 'YYYY-MM-DD') || ' 00:00:00+00', to_char(day + 1, 'YYYY-MM-DD') || ' 00:00:00+00');
      made := made + 1;
    exception
      when check_violation then
        raise warning 'rows of % lie in the default partition', day;
      when duplicate_table or unique_violation then
        null; -- somebody else made it at the same moment
    end;
  end loop;
  return made;
end
$$;

select relay.ensure_attempt_partitions(14);
