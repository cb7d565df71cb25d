import { defineRoute } from '../http/route.ts';
import { ReadinessShape } from './shapes.ts';

const tag = 'Health';

export const healthRoutes = [
  defineRoute(
    {
      name: 'getHealth',
      method: 'get',
      path: '/healthz',
      access: 'open',
      tag,
      summary: 'Tell whether this process runs',
      description: 'Asks nothing of the database: a process must not be restarted because another is away.',
      answers: [{ status: 200, description: 'ok', mediaType: 'text/plain' }],
    },
    async () => ({ status: 200, text: 'ok', headers: { 'content-type': 'text/plain; charset=utf-8' } }),
  ),
  defineRoute(
    {
      name: 'getReadiness',
      method: 'get',
      path: '/readyz',
      access: 'open',
      tag,
      summary: 'Tell whether this process should be given requests',
      answers: [
        { status: 200, description: 'Ready', schema: ReadinessShape },
        { status: 503, description: 'Not ready, and why', schema: ReadinessShape },
      ],
    },
    async ({ context }) => {
      const report = await context.readiness.report();
      return { status: report.ready ? 200 : 503, json: report };
    },
  ),
  defineRoute(
    {
      name: 'getMetrics',
      method: 'get',
      path: '/metrics',
      access: 'open',
      tag,
      summary: 'Metrics in the text format of Prometheus',
      answers: [{ status: 200, description: 'Metrics', mediaType: 'text/plain' }],
    },
    async ({ context }) => {
      const { registry } = context.metrics;
      return {
        status: 200,
        text: await registry.metrics(),
        headers: { 'content-type': registry.contentType },
      };
    },
  ),
];
