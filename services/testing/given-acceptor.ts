import type pg from 'pg';
import { pino } from 'pino';
import type { RedisLink } from '../../lib/broker/link.ts';
import { DEFAULT_TENANT_ID } from '../../lib/domain/limits.ts';
import { ingestMetrics } from '../../lib/metrics/ingest.ts';
import { Metrics } from '../../lib/metrics/registry.ts';
import { createPool, type PoolPurpose } from '../../lib/store/pool.ts';
import {
  type Acceptor,
  type AcceptorOptions,
  type AcceptResult,
  createAcceptor,
  type EventRequest,
} from '../api/ingest/acceptor.ts';

export interface GivenAcceptor {
  acceptor: Acceptor;
  /** Accepts one request with these differences from the usual. */
  accept(request?: Partial<EventRequest>): Promise<AcceptResult>;
  /** Value of a counter, or of the count of a histogram. */
  metric(name: string): Promise<number>;
  lines: { level: number; msg: string }[];
  close(): Promise<void>;
}

/** An acceptor as an API has it, on pools of its own; batches gather for 20 ms, so that what is sent together is written together. */
export function givenAcceptor(
  url: string,
  options: Partial<AcceptorOptions> & { link?: RedisLink | null } = {},
): GivenAcceptor {
  const pools: pg.Pool[] = [];
  const pool = (purpose: PoolPurpose, max: number) => {
    const made = createPool({ url, purpose, max, applicationName: 'test-acceptor' });
    pools.push(made);
    return made;
  };
  const metrics = new Metrics({ processMetrics: false });
  const lines: GivenAcceptor['lines'] = [];
  const acceptor: Acceptor = createAcceptor({
    plainPool: pool('ingest', 2),
    keyedPool: pool('ingest', 2),
    alonePool: pool('ingest_alone', 4),
    generalPool: pool('general', 4),
    link: null,
    pollMode: () => false,
    liveApis: () => 1,
    metrics: ingestMetrics(metrics, { queued: () => acceptor.queued }),
    log: pino({}, { write: (line: string) => void lines.push(JSON.parse(line)) }),
    lanes: 2,
    maxBatch: 256,
    lingerMs: 20,
    maxQueued: 10_000,
    retentionMs: 86_400_000,
    ...options,
  });
  return {
    acceptor,
    lines,
    accept: (request) => acceptor.accept(newRequest(request)),
    async metric(name) {
      const { values } = await metrics.registry.getSingleMetric(name)!.get();
      const named = values as { value: number; metricName?: string }[];
      return (
        (named.find(({ metricName }) => metricName === `${name}_count`) ?? named[0])?.value ?? Number.NaN
      );
    },
    async close() {
      await acceptor.close();
      await Promise.all(pools.map((made) => made.end()));
    },
  };
}

export function newRequest(request: Partial<EventRequest> = {}): EventRequest {
  return {
    tenantId: DEFAULT_TENANT_ID,
    type: 'order.paid',
    contentType: 'application/json',
    payload: Buffer.from('{"a":1}'),
    idempotencyKey: null,
    targetEndpointId: null,
    deliverAt: null,
    expiresAt: null,
    ...request,
  };
}
