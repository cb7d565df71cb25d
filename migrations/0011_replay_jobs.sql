-- Sending many deliveries again, at a pace, whatever becomes of the process that does it.
--
-- All that a job needs to know stands in its row: what it selects, how far it has come (`after_at`, `after_id`: the keyset place in the index
-- that it walks), and what became of what it selected. Each step locks the row, takes the next deliveries, makes them pending and moves the row,
-- in one transaction: so a step happened or it did not, and whoever leads next goes on after the last one.
--
-- `ended_by` is the moment that bounds the job. What ends later, such as a delivery of this very job that dies again, is not selected, so
-- no job sends a delivery twice and every job has an end.
--
-- A delivery that somebody holds at the moment of its step is not waited for, because a replay locks in the order opposite to a settle's. It is
-- written down in `replay_held` and tried again after the walk, as often as it takes: nothing that was selected is forgotten.
--
-- A step changes no indexed column, so it stays on its page.

create table relay.replay_jobs (
  id uuid primary key,
  tenant_id uuid not null,
  state text collate "C" not null default 'running' check (state in ('running', 'paused', 'failed', 'cancelled', 'finished')),
  -- Only counts.
  dry_run boolean not null default false,
  status text collate "C" not null check (status in ('succeeded', 'dead')),
  endpoint_id uuid,
  event_type text collate "C",
  reason text collate "C" check (reason in (
    'permanent_failure', 'attempts_exhausted', 'refused', 'gone', 'abandoned', 'cancelled', 'expired')),
  from_at timestamptz,
  to_at timestamptz,
  ended_by timestamptz not null,
  rate_per_second double precision not null check (rate_per_second > 0 and rate_per_second <= 10000),
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  finished_at timestamptz,
  after_at timestamptz,
  after_id uuid not null,
  walked boolean not null default false,
  -- What passed the filter when the job was made; null when that was too much to count at once.
  expected bigint,
  selected bigint not null default 0,
  replayed bigint not null default 0,
  skipped_endpoint_deleted bigint not null default 0,
  skipped_event_missing bigint not null default 0,
  skipped_changed bigint not null default 0,
  skipped_locked bigint not null default 0,
  -- Rows in `replay_held`.
  waiting bigint not null default 0,
  error text,
  constraint only_the_dead_have_a_reason check (reason is null or status = 'dead'),
  constraint over_says_when check ((state in ('cancelled', 'finished')) = (finished_at is not null)),
  constraint failed_says_why check ((state = 'failed') = (error is not null)),
  -- A delivery that was selected and of which nothing is said would be one that was lost.
  constraint counts_add_up check (
    dry_run or selected =
      replayed + skipped_endpoint_deleted + skipped_event_missing + skipped_changed + skipped_locked + waiting),
  constraint finished_means_all check (state <> 'finished' or (walked and waiting = 0))
) with (fillfactor = 50);

create index replay_jobs_tenant on relay.replay_jobs (tenant_id, id);
create index replay_jobs_open on relay.replay_jobs (tenant_id, id) where state in ('running', 'paused', 'failed');

create table relay.replay_held (
  job_id uuid not null,
  delivery_id uuid not null,
  primary key (job_id, delivery_id)
);
