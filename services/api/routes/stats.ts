import { z } from 'zod';
import { STATS_WINDOWS, type StatsWindow, successRate } from '../../../lib/domain/stats-window.ts';
import { OUTCOME_CLASSES, SHOWN_STATUSES } from '../../../lib/domain/vocabulary.ts';
import { endpointExisted } from '../../../lib/store/endpoints.ts';
import { type DeliveryStats, readEndpointStats, readTenantStats } from '../../../lib/store/stats.ts';
import { idParams } from '../http/fields.ts';
import { defineRoute } from '../http/route.ts';
import { search } from '../http/search.ts';
import { absent, refOf } from './endpoint-answers.ts';

const WINDOWS = Object.keys(STATS_WINDOWS) as [StatsWindow, ...StatsWindow[]];

const query = z.strictObject({
  window: z
    .enum(WINDOWS, { error: `must be one of ${WINDOWS.join(', ')}` })
    .default('24h')
    .meta({ description: 'How far back, from now.' }),
});

const moment = () => z.string().meta({ format: 'date-time' });
const spread = (description: string) =>
  z
    .strictObject({ p50: z.int().nullable(), p95: z.int().nullable() })
    .meta({ description: `${description}, in milliseconds; null without any.` });
const countOfEach = <K extends string>(names: readonly K[]) =>
  z.strictObject(Object.fromEntries(names.map((name) => [name, z.int()])) as Record<K, z.ZodInt>);

export const StatsShape = z
  .strictObject({
    window: z.enum(WINDOWS),
    from: moment().meta({
      description: 'The beginning of the window; when `truncated`, the oldest delivery that was looked at.',
    }),
    to: moment(),
    deliveries: countOfEach(SHOWN_STATUSES).meta({
      description: 'What was accepted in the window, by how it stands now.',
    }),
    success_rate: z
      .number()
      .nullable()
      .meta({ description: 'Of the deliveries that have ended: the share that succeeded.' }),
    attempts: countOfEach(OUTCOME_CLASSES).meta({
      description: 'Of those deliveries, by what they came to. Deferred and lost ones spent no attempt.',
    }),
    duration_ms: spread('How long requests took'),
    lateness_ms: spread('How long after they were due requests were made'),
    truncated: z.boolean().meta({
      description: 'Whether there may be more than is looked at, which is the newest 50,000 deliveries.',
    }),
  })
  .meta({ id: 'Stats' });

function shownStats(window: StatsWindow, stats: DeliveryStats) {
  return {
    window,
    from: stats.from,
    to: stats.to,
    deliveries: stats.deliveries,
    success_rate: successRate(stats.deliveries),
    attempts: stats.attempts,
    duration_ms: stats.duration,
    lateness_ms: stats.lateness,
    truncated: stats.truncated,
  };
}

const answers = [{ status: 200, description: 'The statistics', schema: StatsShape }];

export const statsRoutes = [
  defineRoute(
    {
      name: 'getEndpointStats',
      method: 'get',
      path: '/v1/endpoints/{id}/stats',
      access: 'read',
      reach: 'endpoint',
      tag: 'Endpoints',
      summary: 'How deliveries to an endpoint have gone lately',
      params: idParams,
      query,
      answers,
      problems: ['endpoint_not_found', 'search_timeout'],
    },
    async (call) => {
      const { context, params } = call;
      const { window } = call.query;
      if (!(await endpointExisted(context.db, refOf(call)))) throw absent();
      const stats = await search(context, (db) => readEndpointStats(db, params.id, STATS_WINDOWS[window]));
      return { status: 200, json: shownStats(window, stats) };
    },
  ),
  defineRoute(
    {
      name: 'getStats',
      method: 'get',
      path: '/v1/stats',
      access: 'read',
      tag: 'Deliveries',
      summary: 'How deliveries of the tenant have gone lately',
      query,
      answers,
      problems: ['search_timeout'],
    },
    async ({ context, tenantId, query: { window } }) => {
      const stats = await search(context, (db) => readTenantStats(db, tenantId, STATS_WINDOWS[window]));
      return { status: 200, json: shownStats(window, stats) };
    },
  ),
];
