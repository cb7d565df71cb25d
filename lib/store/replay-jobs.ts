import { type RawBuilder, sql } from 'kysely';
import { OPEN_REPLAY_STATES, type ReplaySkip, type ReplayState } from '../domain/vocabulary.ts';
import type { Connection } from './database.ts';
import { newId } from './new-id.ts';
import type { Queryable } from './pool.ts';
import {
  type ReplayFilter,
  type ReplaySelection,
  startOfWalk,
  type WalkPlace,
  walkOn,
} from './replay-walk.ts';

/** A replay job as it stands. */
export interface ReplayJob {
  id: string;
  tenantId: string;
  state: ReplayState;
  /** It only counts: `selected` is the answer. */
  dryRun: boolean;
  filter: ReplayFilter;
  ratePerSecond: number;
  /** What passed the filter when the job was made; null when that was too much to count at once. */
  expected: number | null;
  /** Found so far; each of them is replayed, skipped or waiting. */
  selected: number;
  replayed: number;
  skipped: Record<ReplaySkip, number>;
  /** Held by somebody when their turn came; they are tried again. */
  waiting: number;
  /** Why it failed; null in every other state. */
  error: string | null;
  createdAt: Date;
  updatedAt: Date;
  finishedAt: Date | null;
}

export interface NewReplayJob {
  selection: ReplaySelection;
  ratePerSecond: number;
  dryRun: boolean;
  expected: number | null;
  /** For a count that goes on: what was found before `after`. */
  counted?: { matched: number; after: WalkPlace };
}

/** So many jobs of a tenant may be unfinished at a time: each takes its turn among everybody's. */
export const MAX_OPEN_REPLAYS = 20;

const SKIPPED = sql`json_build_object('endpoint_deleted', j.skipped_endpoint_deleted, 'event_missing', j.skipped_event_missing,
  'changed', j.skipped_changed, 'locked', j.skipped_locked)`;

const JOB = sql`
  j.id, j.tenant_id as "tenantId", j.state, j.dry_run as "dryRun", j.rate_per_second as "ratePerSecond",
  j.expected::float8 as expected, j.selected::float8 as selected, j.replayed::float8 as replayed, ${SKIPPED} as skipped,
  j.waiting::float8 as waiting, j.error, j.created_at as "createdAt", j.updated_at as "updatedAt", j.finished_at as "finishedAt",
  j.status, j.endpoint_id as "endpointId", j.event_type as "eventType", j.reason, j.from_at as "from", j.to_at as "to"`;

type Row = Omit<ReplayJob, 'filter'> & ReplayFilter;

function toJob({ status, endpointId, eventType, reason, from, to, ...job }: Row): ReplayJob {
  return { ...job, filter: { status, endpointId, eventType, reason, from, to } };
}

/** Makes a job, which the leading reconciler begins within a second; null when the tenant has too many that are unfinished. */
export async function createReplayJob(db: Connection, job: NewReplayJob): Promise<ReplayJob | null> {
  const { selection, ratePerSecond, dryRun, expected, counted } = job;
  const after = counted?.after ?? startOfWalk(selection);
  const { rows } = await sql<Row>`
    insert into relay.replay_jobs as j
      (id, tenant_id, dry_run, status, endpoint_id, event_type, reason, from_at, to_at, ended_by, rate_per_second,
        after_at, after_id, expected, selected)
    select ${newId()}, ${selection.tenantId}, ${dryRun}, ${selection.status}, ${selection.endpointId}, ${selection.eventType},
      ${selection.reason}, ${selection.from}, ${selection.to}, ${selection.endedBy}, ${ratePerSecond},
      ${after.at}::timestamptz, ${after.id}, ${expected}, ${counted?.matched ?? 0}
    where (
      select count(*) from relay.replay_jobs o where o.tenant_id = ${selection.tenantId} and ${isOpen(sql`o.state`)}
    ) < ${MAX_OPEN_REPLAYS}
    returning ${JOB}`.execute(db);
  return rows[0] ? toJob(rows[0]) : null;
}

function isOpen(state: RawBuilder<unknown>): RawBuilder<unknown> {
  return sql`${state} in (${sql.join(OPEN_REPLAY_STATES.map((one) => sql.lit(one)))})`;
}

/** Whose jobs; `endpointIds` leaves those that name one of some endpoints. */
export interface ReplayOwner {
  tenantId: string;
  endpointIds: readonly string[] | null;
}

function ownedBy({ tenantId, endpointIds }: ReplayOwner): RawBuilder<unknown> {
  return endpointIds === null
    ? sql`j.tenant_id = ${tenantId}`
    : sql`j.tenant_id = ${tenantId} and j.endpoint_id = any(${endpointIds}::uuid[])`;
}

export async function findReplayJob(
  db: Connection,
  owner: ReplayOwner,
  id: string,
): Promise<ReplayJob | null> {
  const { rows } = await sql<Row>`
    select ${JOB} from relay.replay_jobs j where j.id = ${id} and ${ownedBy(owner)}`.execute(db);
  return rows[0] ? toJob(rows[0]) : null;
}

/** Newest first, before an id. */
export async function listReplayJobs(
  db: Connection,
  owner: ReplayOwner,
  page: { before: string | null; limit: number },
): Promise<ReplayJob[]> {
  const { rows } = await sql<Row>`
    select ${JOB} from relay.replay_jobs j
    where ${ownedBy(owner)} and j.id < coalesce(${page.before}::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
    order by j.tenant_id desc, j.id desc
    limit ${page.limit}`.execute(db);
  return rows.map(toJob);
}

export type ReplaySwitch = 'pause' | 'resume' | 'cancel';

const SWITCHES: Record<ReplaySwitch, { from: readonly ReplayState[]; to: ReplayState }> = {
  pause: { from: ['running'], to: 'paused' },
  resume: { from: ['paused', 'failed'], to: 'running' },
  cancel: { from: OPEN_REPLAY_STATES, to: 'cancelled' },
};

/**
 * Pauses, resumes or cancels a job, after the step that runs at this moment, if any: when it returns, no further delivery is replayed by a job that
 * is paused or cancelled. A job that is so already stays as it is. Null when there is no such job; `over` with the job when its state
 * does not allow it.
 */
export async function switchReplayJob(
  db: Connection,
  owner: ReplayOwner,
  { id, how }: { id: string; how: ReplaySwitch },
): Promise<{ job: ReplayJob; over: boolean } | null> {
  const { from, to } = SWITCHES[how];
  await sql`
    with switched as (
      update relay.replay_jobs j
      set state = ${to}, error = null, updated_at = now(), ${how === 'cancel' ? GIVEN_UP : sql`finished_at = null`}
      where j.id = ${id} and ${ownedBy(owner)} and j.state = any(${from}::text[])
      returning j.id
    )
    delete from relay.replay_held h
    where h.job_id = any(array(select id from switched)) and ${how === 'cancel'}`.execute(db);
  const job = await findReplayJob(db, owner, id);
  return job && { job, over: job.state !== to };
}

const GIVEN_UP = sql`finished_at = now(), skipped_locked = j.skipped_locked + j.waiting, waiting = 0`;

/** Ends a job that cannot go on; resuming it lets it try again. False when it is not running any more. */
export async function failReplayJob(db: Queryable, id: string, error: string): Promise<boolean> {
  const { rowCount } = await db.query({
    name: 'relay_fail_replay',
    text: `update relay.replay_jobs set state = 'failed', error = $2, updated_at = now() where id = $1 and state = 'running'`,
    values: [id, error.slice(0, 500)],
  });
  return rowCount === 1;
}

export interface RunningReplay {
  id: string;
  tenantId: string;
  ratePerSecond: number;
}

const FIRST_ID = '00000000-0000-0000-0000-000000000000';

/** Running jobs that come after one of them, in an order that is always the same; from the first when `after` is null. */
export async function listRunningReplays(
  db: Queryable,
  { after, limit }: { after: RunningReplay | null; limit: number },
): Promise<RunningReplay[]> {
  const { rows } = await db.query<RunningReplay>({
    name: 'relay_running_replays',
    text: `select id, tenant_id as "tenantId", rate_per_second as "ratePerSecond"
      from relay.replay_jobs
      where state = 'running' and (tenant_id, id) > ($1::uuid, $2::uuid)
      order by tenant_id, id
      limit $3`,
    values: [after?.tenantId ?? FIRST_ID, after?.id ?? FIRST_ID, limit],
  });
  return rows;
}

/** How many rows one look of a count reads. */
const COUNT_LOOK = 10_000;

/**
 * Counts what a selection holds, in bounded statements, for as long as it may. `more` says that it was not done by then, and `after` where it
 * stopped. Runs best on connections whose planner is held to its indexes.
 */
export async function countSelection(
  db: Connection,
  selection: ReplaySelection,
  { forMs, look = COUNT_LOOK }: { forMs: number; look?: number },
): Promise<{ matched: number; after: WalkPlace; more: boolean }> {
  const startedAt = performance.now();
  const counted = { matched: 0, after: startOfWalk(selection), more: true };
  do {
    const page = await walkOn(db, selection, { after: counted.after, look, take: 0 });
    counted.matched += page.matched;
    counted.after = page.next;
    counted.more = page.more;
  } while (counted.more && performance.now() - startedAt < forMs);
  return counted;
}

/** The moment, as the database prints it, that bounds a job which is made now. */
export async function replayBound(db: Connection): Promise<string> {
  const { rows } = await sql<{ now: string }>`select now()::text as now`.execute(db);
  return rows[0]!.now;
}
