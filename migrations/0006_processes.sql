-- Which processes are alive, and how they learn of work.
--
-- A row per process, never one row for a fleet: a shared row hides a dead replica behind a living one. `number` names a process
-- in `queue.claimed_by` in four bytes. `wake` says how the process learns of work; one live `poll` puts the whole fleet into poll
-- mode, because what one process cannot announce every process must look for.

create table relay.process_heartbeats (
  number integer generated always as identity primary key,
  id uuid not null unique,
  role text collate "C" not null check (role in ('api', 'dispatcher', 'reconciler')),
  wake text collate "C" not null check (wake in ('stream', 'poll')),
  started_at timestamptz not null default now(),
  beat_at timestamptz not null default now()
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
