import { z } from 'zod';
import { REPLAY_RATE } from '../../../lib/domain/replay-pace.ts';
import { FINISHED_STATUSES } from '../../../lib/domain/vocabulary.ts';
import { endpointExisted } from '../../../lib/store/endpoints.ts';
import {
  countSelection,
  createReplayJob,
  findReplayJob,
  listReplayJobs,
  MAX_OPEN_REPLAYS,
  type NewReplayJob,
  type ReplayJob,
  type ReplayOwner,
  type ReplaySwitch,
  replayBound,
  switchReplayJob,
} from '../../../lib/store/replay-jobs.ts';
import type { ReplaySelection } from '../../../lib/store/replay-walk.ts';
import type { ApiContext } from '../context.ts';
import type { Principal } from '../http/authentication.ts';
import { idParams, moment, number, pageLimit, uuid } from '../http/fields.ts';
import { reasonFilter, typeFilter } from '../http/filters.ts';
import { listCursor, openIdPlace, sealPlace } from '../http/list-cursor.ts';
import { Problem } from '../http/problem.ts';
import { type Call, defineRoute, type Reply } from '../http/route.ts';
import { search } from '../http/search.ts';
import { ReplayCountShape, ReplayJobShape } from './replay-shapes.ts';
import { pageOf } from './shapes.ts';

const tag = 'Replays';

/** How long an answer may wait for a count, ms. */
const DRY_RUN_MS = 1_000;
const EXPECTED_MS = 300;

const STATUS_RULE = `must be one of ${FINISHED_STATUSES.join(', ')}`;

const Filter = z
  .strictObject({
    status: z
      .enum(FINISHED_STATUSES, { error: STATUS_RULE })
      .default('dead')
      .meta({ description: 'How they ended.' }),
    endpoint_id: uuid().optional(),
    event_type: typeFilter(),
    reason: reasonFilter().meta({ description: 'Dead for this reason; only with the status `dead`.' }),
    from: moment()
      .optional()
      .meta({ description: 'Died, or for `succeeded` accepted, at this moment or later.' }),
    to: moment().optional().meta({ description: 'Died, or for `succeeded` accepted, before this moment.' }),
  })
  .refine(({ status, reason }) => reason === undefined || status === 'dead', {
    path: ['reason'],
    error: 'goes with the status dead only',
  })
  .refine(({ from, to }) => from === undefined || to === undefined || from < to, {
    path: ['to'],
    error: 'must be later than from',
  });

const NewReplay = z.strictObject({
  filter: Filter,
  dry_run: z
    .boolean({ error: 'must be true or false' })
    .default(false)
    .meta({ description: 'Count what would be replayed, and replay nothing.' }),
  rate_per_second: number({ min: REPLAY_RATE.min, max: REPLAY_RATE.max })
    .default(REPLAY_RATE.default)
    .meta({ description: 'How many become pending again a second, at most.' }),
});

type CreateCall = Call<Record<string, never>, Record<string, never>, z.output<typeof NewReplay>>;

function shown(job: ReplayJob) {
  const { filter } = job;
  return {
    id: job.id,
    state: job.state,
    dry_run: job.dryRun,
    filter: {
      status: filter.status,
      endpoint_id: filter.endpointId,
      event_type: filter.eventType,
      reason: filter.reason,
      from: filter.from,
      to: filter.to,
    },
    rate_per_second: job.ratePerSecond,
    expected: job.expected,
    selected: job.selected,
    replayed: job.replayed,
    skipped: job.skipped,
    waiting: job.waiting,
    error: job.error,
    created_at: job.createdAt,
    updated_at: job.updatedAt,
    finished_at: job.finishedAt,
  };
}

const absent = () => new Problem('replay_not_found', 'there is no replay job of this id');

/** A portal token that is for some endpoints sees the jobs that name one of them. */
function ownerOf({ principal, tenantId }: { principal: Principal; tenantId: string }): ReplayOwner {
  return { tenantId, endpointIds: principal.endpointIds && [...principal.endpointIds] };
}

async function create(call: CreateCall): Promise<Reply> {
  const { context, body } = call;
  await requireEndpoint(call);
  const selection = await selectionOf(call);
  const { rate_per_second: ratePerSecond, dry_run: dryRun } = body;
  if (!dryRun)
    return start(context, { selection, ratePerSecond, dryRun, expected: await expected(context, selection) });
  const counted = await search(context, (db) => countSelection(db, selection, { forMs: DRY_RUN_MS }));
  return counted.more
    ? start(context, { selection, ratePerSecond, dryRun, expected: null, counted })
    : { status: 200, json: { dry_run: true, count: counted.matched } };
}

async function requireEndpoint({ context, principal, tenantId, body }: CreateCall): Promise<void> {
  const { endpoint_id: id } = body.filter;
  const { endpointIds } = principal;
  if (endpointIds !== null && id === undefined) {
    throw new Problem(
      'forbidden',
      'the portal token is for some endpoints: name one of them as filter.endpoint_id',
    );
  }
  if (id === undefined) return;
  if (endpointIds?.has(id) === false || !(await endpointExisted(context.db, { tenantId, id }))) {
    throw new Problem('endpoint_not_found', 'there is no endpoint of this id');
  }
}

async function selectionOf({ context, tenantId, body }: CreateCall): Promise<ReplaySelection> {
  const { status, endpoint_id, event_type, reason, from, to } = body.filter;
  return {
    tenantId,
    status,
    endpointId: endpoint_id ?? null,
    eventType: event_type ?? null,
    reason: reason ?? null,
    from: from ?? null,
    to: to ?? null,
    endedBy: await replayBound(context.searchDb),
  };
}

/** Null when it takes too long: the job is made all the same. */
async function expected(context: ApiContext, selection: ReplaySelection): Promise<number | null> {
  try {
    const { matched, more } = await search(context, (db) =>
      countSelection(db, selection, { forMs: EXPECTED_MS }),
    );
    return more ? null : matched;
  } catch (error) {
    if (error instanceof Problem && error.code === 'search_timeout') return null;
    throw error;
  }
}

async function start({ db }: ApiContext, job: NewReplayJob): Promise<Reply> {
  const made = await createReplayJob(db, job);
  if (!made) {
    const detail = `${MAX_OPEN_REPLAYS} replay jobs of the tenant are not over: wait for one, or cancel one`;
    throw new Problem('too_many_replays', detail);
  }
  return { status: 202, json: shown(made) };
}

function switchRoute(how: ReplaySwitch, texts: { summary: string; description: string }) {
  return defineRoute(
    {
      name: `${how}Replay`,
      method: 'post',
      path: `/v1/replays/{id}/${how}`,
      access: 'replay',
      reach: 'own',
      tag,
      ...texts,
      params: idParams,
      answers: [{ status: 200, description: 'The job', schema: ReplayJobShape }],
      problems: ['replay_not_found', 'replay_over'],
    },
    async (call) => {
      const switched = await switchReplayJob(call.context.db, ownerOf(call), { id: call.params.id, how });
      if (!switched) throw absent();
      if (switched.over) throw new Problem('replay_over', `the replay job is ${switched.job.state}`);
      return { status: 200, json: shown(switched.job) };
    },
  );
}

export const replayRoutes = [
  defineRoute(
    {
      name: 'createReplay',
      method: 'post',
      path: '/v1/replays',
      access: 'replay',
      reach: 'own',
      tag,
      summary: 'Send many deliveries again, at a pace',
      description:
        'Makes a job that replays everything which passes the filter and had ended when it was made, oldest first: the same ids, one generation on. With `dry_run` the answer is the exact count; when that takes over a second, it is a job that goes on counting.',
      body: NewReplay,
      answers: [
        { status: 200, description: 'The count of a dry run', schema: ReplayCountShape },
        { status: 202, description: 'The job', schema: ReplayJobShape },
      ],
      problems: ['endpoint_not_found', 'too_many_replays', 'search_timeout'],
    },
    create,
  ),
  defineRoute(
    {
      name: 'listReplays',
      method: 'get',
      path: '/v1/replays',
      access: 'read',
      reach: 'own',
      tag,
      summary: 'List replay jobs, newest first',
      query: z.strictObject({ limit: pageLimit(), cursor: listCursor() }),
      answers: [{ status: 200, description: 'A page of replay jobs', schema: pageOf(ReplayJobShape) }],
    },
    async (call) => {
      const { context, tenantId, query } = call;
      const name = { list: 'replays', tenantId };
      const page = { before: openIdPlace(query.cursor, name), limit: query.limit + 1 };
      const found = await listReplayJobs(context.db, ownerOf(call), page);
      const items = found.slice(0, query.limit);
      const next = found.length > query.limit ? items.at(-1)!.id : null;
      const json = { count: items.length, items: items.map(shown), next_cursor: sealPlace(next, name) };
      return { status: 200, json };
    },
  ),
  defineRoute(
    {
      name: 'getReplay',
      method: 'get',
      path: '/v1/replays/{id}',
      access: 'read',
      reach: 'own',
      tag,
      summary: 'Get a replay job, with how far it has come',
      params: idParams,
      answers: [{ status: 200, description: 'The job', schema: ReplayJobShape }],
      problems: ['replay_not_found'],
    },
    async (call) => {
      const job = await findReplayJob(call.context.db, ownerOf(call), call.params.id);
      if (!job) throw absent();
      return { status: 200, json: shown(job) };
    },
  ),
  switchRoute('pause', {
    summary: 'Pause a replay job',
    description: 'When it is answered, the job replays nothing more until it is resumed.',
  }),
  switchRoute('resume', {
    summary: 'Resume a replay job',
    description: 'It goes on where it was paused, or where it failed.',
  }),
  switchRoute('cancel', {
    summary: 'Cancel a replay job',
    description: 'When it is answered, the job replays nothing more. What it has replayed stays replayed.',
  }),
];
