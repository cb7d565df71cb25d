import type { Pool, PoolClient } from 'pg';

/** What was found broken; every number must be zero. */
export interface InvariantReport {
  deliveriesChecked: number;
  /** Pending deliveries that nothing would ever send. */
  pendingWithoutQueueRow: number;
  /** Queue rows of deliveries that have ended, or do not exist. */
  queueRowWithoutPending: number;
  deadWithoutDeadLetter: number;
  deadLetterWithoutDead: number;
  /** Parked for an endpoint that is neither disabled nor paused without end, or is gone: nothing would ever wake them. */
  parkedForNobody: number;
  /** Unfinished fan-outs that would go on elsewhere than after the last delivery that was made: every step would fail, or leave some out. */
  fanOutsAstray: number;
  /** Deliveries whose event or endpoint is missing. Not repaired: an unfinished one ends `refused` when it is claimed. */
  orphans: number;
}

export interface InvariantOptions {
  /** False only counts. */
  repair: boolean;
  signal?: AbortSignal;
  /** Runs each slice when its turn comes, so that a check of a large record leaves the database to the traffic. */
  pace?: (slice: () => Promise<void>) => Promise<void>;
}

type Count = Exclude<keyof InvariantReport, 'deliveriesChecked'>;
type Repairable = Exclude<Count, 'orphans' | 'parkedForNobody' | 'fanOutsAstray'>;

const SLICE = 5_000;
const FIRST = '00000000-0000-0000-0000-000000000000';

// Read-only: what is wrong here may merely be a settle between two snapshots, so each suspect is judged again under its lock.
const SUSPECTS = `
with slice as materialized (
  select id, status, event_id, endpoint_id from relay.deliveries where id > $1 order by id limit ${SLICE}
)
select s.id, s.status = 'pending' as pending, s.status = 'dead' as dead,
  q.delivery_id is not null as queued, l.delivery_id is not null as buried,
  not exists (select from relay.events e where e.id = s.event_id)
    or not exists (select from relay.endpoints n where n.id = s.endpoint_id) as orphan,
  max(s.id::text) over () as last, count(*) over ()::integer as checked
from slice s
left join relay.queue q on q.delivery_id = s.id
left join relay.dead_letters l on l.delivery_id = s.id`;

interface Suspect {
  id: string;
  pending: boolean;
  dead: boolean;
  queued: boolean;
  buried: boolean;
}

type SliceRow = Suspect & { orphan: boolean; last: string; checked: number };

/**
 * Compares record, queue and dead letters for every delivery, in slices by id, and repairs what is broken: lock first and look second, so
 * that a delivery that is being settled at this moment is no fault. `repair` false only counts.
 */
export async function checkInvariants(pool: Pool, options: InvariantOptions): Promise<InvariantReport> {
  const report: InvariantReport = {
    deliveriesChecked: 0,
    pendingWithoutQueueRow: 0,
    queueRowWithoutPending: 0,
    deadWithoutDeadLetter: 0,
    deadLetterWithoutDead: 0,
    parkedForNobody: 0,
    fanOutsAstray: 0,
    orphans: 0,
  };
  const state: Walk = { after: FIRST, more: true };
  await walk(options, state, async () => {
    const { rows } = await pool.query<SliceRow>({
      name: 'relay_invariant_slice',
      text: SUSPECTS,
      values: [state.after],
    });
    const [first] = rows;
    state.more = first !== undefined;
    if (!first) return;
    state.after = first.last;
    report.deliveriesChecked += first.checked;
    report.orphans += rows.filter((row) => row.orphan).length;
    const suspects = rows.filter((row) => faultOf(row) !== null).map((row) => row.id);
    await judge(pool, suspects, report, options.repair);
  });
  await judgeStrays(pool, report, options);
  await judgeParked(pool, report, options);
  await judgeFanOuts(pool, report, options);
  return report;
}

interface Walk {
  after: string;
  more: boolean;
}

/** Takes slices one after the other, each when its turn comes, until one says that there is no more. */
async function walk(options: InvariantOptions, state: Walk, slice: () => Promise<void>): Promise<void> {
  const pace = options.pace ?? ((paced) => paced());
  while (state.more && !options.signal?.aborted) await pace(slice);
}

function faultOf(row: Suspect): Repairable | null {
  if (row.pending && !row.queued) return 'pendingWithoutQueueRow';
  if (!row.pending && row.queued) return 'queueRowWithoutPending';
  if (row.dead && !row.buried) return 'deadWithoutDeadLetter';
  if (!row.dead && row.buried) return 'deadLetterWithoutDead';
  return null;
}

const LOCK = 'select id from relay.deliveries where id = any($1::uuid[]) order by id for update skip locked';
const LOOK = `
select d.id, d.status = 'pending' as pending, d.status = 'dead' as dead,
  q.delivery_id is not null as queued, l.delivery_id is not null as buried
from relay.deliveries d
left join relay.queue q on q.delivery_id = d.id
left join relay.dead_letters l on l.delivery_id = d.id
where d.id = any($1::uuid[])`;

async function judge(pool: Pool, ids: string[], report: InvariantReport, repair: boolean): Promise<void> {
  if (ids.length === 0) return;
  await inTransaction(pool, async (client) => {
    const locked = await client.query<{ id: string }>(LOCK, [ids]);
    const { rows } = await client.query<Suspect>(LOOK, [locked.rows.map((row) => row.id)]);
    for (const row of rows) {
      const fault = faultOf(row);
      if (!fault) continue;
      report[fault] += 1;
      if (repair) await client.query(REPAIRS[fault], [row.id]);
    }
  });
}

const REPAIRS: Record<Repairable, string> = {
  pendingWithoutQueueRow: `
    insert into relay.queue (delivery_id, endpoint_id, event_id, due_at, look_at, seq, sends, attempts, generation, expires_at, lane)
    select d.id, d.endpoint_id, d.event_id, now(), now(), d.seq, d.sends, d.attempts, d.generation, e.expires_at, 1
    from relay.deliveries d left join relay.events e on e.id = d.event_id where d.id = $1
    on conflict do nothing`,
  // The record is locked before the queue here, against the order of a settle: what a settle holds is left to the next check.
  queueRowWithoutPending: `
    delete from relay.queue where delivery_id = any(array(
      select delivery_id from relay.queue where delivery_id = $1 for update skip locked))`,
  deadWithoutDeadLetter: `
    insert into relay.dead_letters (delivery_id, endpoint_id, event_id, tenant_id, reason, died_at, last_class, last_http_status)
    select id, endpoint_id, event_id, tenant_id, dead_reason, finished_at, last_class, last_http_status
    from relay.deliveries where id = $1
    on conflict do nothing`,
  deadLetterWithoutDead: 'delete from relay.dead_letters where delivery_id = $1',
};

// Rows whose delivery does not exist at all lie outside every slice. An accept inserts both in one statement, so a queue row without a
// record is never one that is still on its way.
const STRAYS: readonly { fault: Repairable; table: string }[] = [
  { fault: 'queueRowWithoutPending', table: 'relay.queue' },
  { fault: 'deadLetterWithoutDead', table: 'relay.dead_letters' },
];

async function judgeStrays(pool: Pool, report: InvariantReport, options: InvariantOptions): Promise<void> {
  for (const { fault, table } of STRAYS) {
    const state: Walk = { after: FIRST, more: true };
    await walk(options, state, async () => {
      const { rows } = await pool.query<{ last: string | null; strays: string[] }>(
        `with slice as materialized (select delivery_id from ${table} where delivery_id > $1 order by delivery_id limit ${SLICE})
         select max(s.delivery_id::text) as last,
           coalesce(array_agg(s.delivery_id) filter (where d.id is null), '{}') as strays
         from slice s left join relay.deliveries d on d.id = s.delivery_id`,
        [state.after],
      );
      const [row] = rows;
      state.more = row?.last !== null && row !== undefined;
      if (!row?.last) return;
      state.after = row.last;
      report[fault] += row.strays.length;
      if (options.repair && row.strays.length > 0) {
        await pool.query(`delete from ${table} where delivery_id = any($1::uuid[])`, [row.strays]);
      }
    });
  }
}

// Whatever lets an endpoint's deliveries go asks, in the same transaction, for the job that times them anew or cancels them, and that job ends
// only when none is left. So while it is there nothing is wrong yet.
const PARKED_FOR_NOBODY = `q.due_at = 'infinity' and not q.cancel_requested
  and (n.enabled and n.deleted_at is null and n.paused_until is distinct from 'infinity' or n.id is null or n.deleted_at is not null)
  and not exists (select from relay.endpoint_jobs j where j.endpoint_id = q.endpoint_id)`;

const PARKED_SUSPECTS = `
with q as materialized (
  select delivery_id, endpoint_id, due_at, cancel_requested from relay.queue where delivery_id > $1 order by delivery_id limit ${SLICE}
)
select max(q.delivery_id::text) as last, coalesce(array_agg(q.delivery_id) filter (where ${PARKED_FOR_NOBODY}), '{}') as suspects
from q left join relay.endpoints n on n.id = q.endpoint_id`;

const LOCK_ENDPOINTS = `
select id from relay.endpoints
where id = any(array(select endpoint_id from relay.queue where delivery_id = any($1::uuid[])))
order by id
for share`;

const LOOK_AT_PARKED = `
select q.delivery_id as id
from relay.queue q left join relay.endpoints n on n.id = q.endpoint_id
where q.delivery_id = any($1::uuid[]) and ${PARKED_FOR_NOBODY}
order by q.delivery_id
for update of q skip locked`;

const UNPARK = `
update relay.queue
set due_at = now(), look_at = now(), waiting = null, slot_version = null, announced_at = null
where delivery_id = any($1::uuid[])`;

async function judgeParked(pool: Pool, report: InvariantReport, options: InvariantOptions): Promise<void> {
  const state: Walk = { after: FIRST, more: true };
  await walk(options, state, async () => {
    const { rows } = await pool.query<{ last: string | null; suspects: string[] }>({
      name: 'relay_parked_slice',
      text: PARKED_SUSPECTS,
      values: [state.after],
    });
    const last = rows[0]?.last ?? null;
    state.more = last !== null;
    state.after = last ?? state.after;
    const suspects = rows[0]?.suspects ?? [];
    if (suspects.length > 0) await unpark(pool, suspects, report, options.repair);
  });
}

async function unpark(
  pool: Pool,
  suspects: string[],
  report: InvariantReport,
  repair: boolean,
): Promise<void> {
  await inTransaction(pool, async (client) => {
    await client.query(LOCK_ENDPOINTS, [suspects]);
    const { rows } = await client.query<{ id: string }>(LOOK_AT_PARKED, [suspects]);
    report.parkedForNobody += rows.length;
    if (repair) await client.query(UNPARK, [rows.map((row) => row.id)]);
  });
}

// The row is locked first: a step that runs holds it until its deliveries are there.
const LOCK_FAN_OUT = `
select event_id from relay.fan_outs where event_id > $1 order by event_id limit 1 for update`;

const LOOK_AT_FAN_OUT = `
select f.next_tail <> made.last + 1 as astray, made.last, made.last >= cardinality(f.endpoint_ids) as over
from relay.fan_outs f, lateral (
  select coalesce(max(('x' || right(d.id::text, 4))::bit(16)::integer), 0) as last
  from (
    select id from relay.deliveries
    where id > f.event_id and id <= (left(f.event_id::text, 32) || 'ffff')::uuid
    order by id desc
    limit 1
  ) d
) made
where f.event_id = $1`;

async function judgeFanOuts(pool: Pool, report: InvariantReport, options: InvariantOptions): Promise<void> {
  const state: Walk = { after: FIRST, more: true };
  await walk(options, state, () =>
    inTransaction(pool, async (client) => {
      const { rows: locked } = await client.query<{ event_id: string }>(LOCK_FAN_OUT, [state.after]);
      const eventId = locked[0]?.event_id ?? null;
      state.more = eventId !== null;
      if (eventId === null) return;
      state.after = eventId;
      const { rows } = await client.query<{ astray: boolean; last: number; over: boolean }>(LOOK_AT_FAN_OUT, [
        eventId,
      ]);
      const [found] = rows;
      if (!found?.astray) return;
      report.fanOutsAstray += 1;
      if (!options.repair) return;
      if (found.over) await client.query('delete from relay.fan_outs where event_id = $1', [eventId]);
      else await client.query(MOVE_FAN_OUT, [eventId, found.last + 1]);
    }),
  );
}

const MOVE_FAN_OUT = 'update relay.fan_outs set next_tail = $2 where event_id = $1';

async function inTransaction(pool: Pool, work: (client: PoolClient) => Promise<void>): Promise<void> {
  const client = await pool.connect();
  try {
    await client.query('begin');
    await work(client);
    await client.query('commit');
    client.release();
  } catch (error) {
    client.release(true);
    throw error;
  }
}

/** The sum that must be zero. */
export function violations(report: InvariantReport): number {
  const { deliveriesChecked: _, ...faults } = report;
  return Object.values(faults).reduce((sum, count) => sum + count, 0);
}
