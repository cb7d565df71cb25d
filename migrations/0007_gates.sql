-- What stands between a claim and a send.
--
-- The breaker lives on the endpoint's row, so that the whole fleet shares it and it survives every process. A healthy endpoint's row is
-- never written: evidence that changes nothing stays in the process. What does change is written under the row's lock, changes no index of
-- a healthy endpoint, and bumps neither `version` nor `slot_version`: the claim returns these columns anew each time.
--
-- `breaker_trips` is the era: it rises with every opening and reset and never falls, and evidence that was claimed under another era is
-- ignored. `breaker_streak` counts the openings since the last recovery and sets the cooldown. `breaker_until` is the end of the cooldown
-- while open, and while half-open the moment by which the one probe must have reported: past it another may probe, so a probe whose
-- process vanished holds nothing up for longer.
--
-- `failing_since` is the first failure after the last success; it is what an endpoint is disabled by after days of nothing but failure.
--
-- Re-timing what waits for an endpoint, and cancelling what is owed to a deleted one, can be a million rows: they are jobs, written by
-- the transaction that needs them and worked off in bounded steps. `round` rises when a job is asked for again while it runs, so that
-- a step that finds nothing left does not finish the newer request. `after_delivery` is how far a cancel job has walked.

alter table relay.endpoints
  add column breaker_state text not null default 'closed' check (breaker_state in ('closed', 'open', 'half_open')),
  add column breaker_failures integer not null default 0 check (breaker_failures >= 0),
  add column breaker_trips integer not null default 0 check (breaker_trips >= 0),
  add column breaker_streak integer not null default 0 check (breaker_streak >= 0),
  add column breaker_until timestamptz,
  add column breaker_probe uuid,
  add column failing_since timestamptz,
  add column paused_reason text check (paused_reason in ('operator', 'retry_after')),
  -- Without an end it would never be probed again.
  add constraint breaker_says_until check ((breaker_state = 'closed') = (breaker_until is null)),
  add constraint probe_has_a_name check ((breaker_state = 'half_open') = (breaker_probe is not null)),
  drop constraint endpoints_disabled_reason_check,
  add constraint endpoints_disabled_reason_check check (disabled_reason in ('operator', 'gone', 'failing')),
  set (fillfactor = 70);

update relay.endpoints set paused_reason = 'operator' where paused_until is not null;
alter table relay.endpoints add constraint pause_says_why check ((paused_until is null) = (paused_reason is null));

create index endpoints_unwell on relay.endpoints (id) where breaker_state <> 'closed';

create table relay.endpoint_jobs (
  endpoint_id uuid not null,
  kind text not null check (kind in ('retime', 'cancel')),
  round integer not null default 1,
  after_delivery uuid,
  requested_at timestamptz not null default now(),
  primary key (endpoint_id, kind)
);
