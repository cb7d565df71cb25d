import type { Pool } from 'pg';
import type { ReplaySkip } from '../domain/vocabulary.ts';
import { plainArray } from './array-literal.ts';
import { emitOperational } from './operational-events.ts';
import type { Queryable } from './pool.ts';
import { LAST_GENERATION, reviveDeliveries } from './replay.ts';
import { type ReplaySelection, type WalkPlace, walkOn } from './replay-walk.ts';
import { type Bound, inOneTransaction } from './transaction.ts';

export interface StepLimits {
  /** Deliveries that are replayed at most. */
  take: number;
  /** Rows that are looked at at most to find them. */
  look: number;
}

/** What one step did. */
export interface ReplayStep {
  replayed: number;
  skipped: Record<ReplaySkip, number>;
  /** Whether it came forward; not so when all that is left is held by somebody. */
  moved: boolean;
  finished: boolean;
}

interface LockedJob extends ReplaySelection {
  id: string;
  dryRun: boolean;
  walked: boolean;
  after: WalkPlace;
}

/** How a job's row changes by a step. */
interface Progress {
  after: WalkPlace;
  walked: boolean;
  selected: number;
  replayed: number;
  skipped: Record<ReplaySkip, number>;
  waiting: number;
}

const NOTHING_SKIPPED: Readonly<Record<ReplaySkip, number>> = {
  endpoint_deleted: 0,
  event_missing: 0,
  changed: 0,
  locked: 0,
};
const FIRST_ID = '00000000-0000-0000-0000-000000000000';

/**
 * Takes one step of a job: its next deliveries are pending again, and its row says so, in one transaction. Null when the job is not running, or
 * somebody else takes a step of it at this moment.
 */
export function replayStep(pool: Pool, jobId: string, limits: StepLimits): Promise<ReplayStep | null> {
  return inOneTransaction(pool, async (bound) => {
    const job = await lockRunning(bound.pool, jobId);
    if (!job) return null;
    const progress = await (job.walked ? revisit(bound.pool, job, limits.take) : advance(bound, job, limits));
    const finished = await move(bound.pool, job, progress);
    const moved = !job.walked || progress.waiting !== 0;
    return { replayed: progress.replayed, skipped: progress.skipped, moved, finished };
  });
}

const LOCK = `
select id, tenant_id as "tenantId", dry_run as "dryRun", status, endpoint_id as "endpointId", event_type as "eventType", reason,
  from_at as "from", to_at as "to", ended_by::text as "endedBy", walked,
  json_build_object('at', after_at::text, 'id', after_id) as after
from relay.replay_jobs
where id = $1 and state = 'running'
for update skip locked`;

async function lockRunning(client: Queryable, id: string): Promise<LockedJob | null> {
  const { rows } = await client.query<LockedJob>({ name: 'relay_replay_lock', text: LOCK, values: [id] });
  return rows[0] ?? null;
}

/** The next deliveries of the walk. What somebody holds is written down for later. */
async function advance({ db, pool }: Bound, job: LockedJob, { take, look }: StepLimits): Promise<Progress> {
  const { after, dryRun } = job;
  const page = await walkOn(db, job, { after, look, take: dryRun ? 0 : take });
  const { replayed, skipped, held } = await replayAll(pool, job, page.ids);
  await pool.query({
    name: 'relay_replay_hold',
    text: 'insert into relay.replay_held (job_id, delivery_id) select $1, unnest($2::uuid[])',
    values: [job.id, plainArray(held)],
  });
  return {
    after: page.more ? page.next : { at: null, id: FIRST_ID },
    walked: !page.more,
    selected: dryRun ? page.matched : page.ids.length,
    replayed,
    skipped,
    waiting: held.length,
  };
}

/** The next of those that were held when their turn came, round and round until none is left. */
async function revisit(client: Queryable, job: LockedJob, take: number): Promise<Progress> {
  const { rows } = await client.query<{ id: string }>({
    name: 'relay_replay_held',
    text: `select delivery_id as id from relay.replay_held where job_id = $1 and delivery_id > $2 order by delivery_id limit $3`,
    values: [job.id, job.after.id, take],
  });
  const ids = rows.map((row) => row.id);
  const { replayed, skipped, held } = await replayAll(client, job, ids);
  await client.query({
    name: 'relay_replay_unhold',
    text: `delete from relay.replay_held where job_id = $1 and delivery_id = any($2::uuid[]) and delivery_id <> all($3::uuid[])`,
    values: [job.id, plainArray(ids), plainArray(held)],
  });
  return {
    after: { at: null, id: ids.length < take ? FIRST_ID : ids.at(-1)! },
    walked: true,
    selected: 0,
    replayed,
    skipped,
    waiting: held.length - ids.length,
  };
}

const WHY_NOT = `
select d.id,
  case
    when d.status <> $2 or d.finished_at > $3::timestamptz or d.generation >= ${LAST_GENERATION} then 'changed'
    when n.id is null then 'endpoint_deleted'
    when e.id is null then 'event_missing'
    else 'locked'
  end as why
from relay.deliveries d
left join relay.endpoints n on n.id = d.endpoint_id and n.deleted_at is null
left join relay.events e on e.id = d.event_id
where d.id = any($1::uuid[])`;

interface Replayed {
  replayed: number;
  skipped: Record<ReplaySkip, number>;
  /** Could not be locked. */
  held: string[];
}

async function replayAll(client: Queryable, job: LockedJob, ids: readonly string[]): Promise<Replayed> {
  if (ids.length === 0) return { replayed: 0, skipped: NOTHING_SKIPPED, held: [] };
  const revived = new Set(await reviveDeliveries(client, ids, { from: [job.status], endedBy: job.endedBy }));
  const rest = ids.filter((id) => !revived.has(id));
  const skipped = { ...NOTHING_SKIPPED };
  const held: string[] = [];
  if (rest.length > 0) {
    const { rows } = await client.query<{ id: string; why: ReplaySkip }>({
      name: 'relay_replay_why_not',
      text: WHY_NOT,
      values: [plainArray(rest), job.status, job.endedBy],
    });
    // One that is not in the record any more has changed indeed.
    skipped.changed = rest.length - rows.length;
    for (const { id, why } of rows) {
      if (why === 'locked') held.push(id);
      else skipped[why] += 1;
    }
  }
  return { replayed: revived.size, skipped, held };
}

const MOVE = `
update relay.replay_jobs j
set after_at = $2::timestamptz, after_id = $3, walked = $4, selected = j.selected + $5, replayed = j.replayed + $6,
  skipped_endpoint_deleted = j.skipped_endpoint_deleted + $7, skipped_event_missing = j.skipped_event_missing + $8,
  skipped_changed = j.skipped_changed + $9, waiting = j.waiting + $10, updated_at = now(),
  state = case when $4 and j.waiting + $10 = 0 then 'finished' else j.state end,
  finished_at = case when $4 and j.waiting + $10 = 0 then now() end
where j.id = $1
returning j.state = 'finished' as finished, j.selected::float8 as selected, j.replayed::float8 as replayed,
  json_build_object('endpoint_deleted', j.skipped_endpoint_deleted, 'event_missing', j.skipped_event_missing,
    'changed', j.skipped_changed, 'locked', j.skipped_locked) as skipped`;

interface Moved {
  finished: boolean;
  selected: number;
  replayed: number;
  skipped: Record<ReplaySkip, number>;
}

/** Writes a step into the job's row; true when it was the last. */
async function move(client: Queryable, job: LockedJob, progress: Progress): Promise<boolean> {
  const { after, walked, selected, replayed, skipped, waiting } = progress;
  const { rows } = await client.query<Moved>({
    name: 'relay_replay_move',
    text: MOVE,
    values: [
      ...[job.id, after.at, after.id, walked, selected, replayed],
      ...[skipped.endpoint_deleted, skipped.event_missing, skipped.changed, waiting],
    ],
  });
  const { finished, ...sum } = rows[0]!;
  if (finished) {
    const { id: replay_id, dryRun: dry_run, status, endpointId: endpoint_id } = job;
    const data = { replay_id, dry_run, status, endpoint_id, ...sum };
    await emitOperational(client, job.tenantId, 'replay.finished', data);
  }
  return finished;
}
