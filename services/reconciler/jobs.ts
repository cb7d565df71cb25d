import assert from 'node:assert/strict';
import type { RateLimiter } from '../../lib/domain/rate-bucket.ts';
import type { ReconcileMetrics } from '../../lib/metrics/reconcile.ts';
import type { Logger } from '../../lib/runtime/log.ts';
import { Loop } from '../../lib/runtime/loop.ts';
import {
  cancelStep,
  type EndpointJob,
  finishJob,
  listJobs,
  pickRetimable,
  type Retimable,
  retime,
} from '../../lib/store/endpoint-jobs.ts';
import type { Queryable } from '../../lib/store/pool.ts';

const IDLE_MS = 500;
/** What cannot be done now, because somebody holds the rows, is tried again after this. */
const BLOCKED_MS = 250;
const JOBS_A_ROUND = 16;
const RETIME_STEP = 500;
const CANCEL_STEP = 5_000;
/** A round's rest is as long as its work, so that a job over a million rows leaves half of the database to the traffic. */
const MAX_REST_MS = 100;

export interface EndpointJobsOptions {
  /** Connections with the settings of a sweep: the statements are as hot as the sweep's. */
  pool: Queryable;
  limiter: RateLimiter;
  leader: () => boolean;
  metrics: ReconcileMetrics;
  log: Logger;
}

/**
 * Works off what a change of an endpoint left to do: times anew what waits for it, cancels what is owed to a deleted one. Each round takes one
 * bounded step of each of some jobs and goes on with the next ones, so a long job holds up no other. All that a job needs to know stands in
 * its row and in the rows it works on: whoever leads next goes on where this one was, and two at once do no harm.
 */
export class EndpointJobs {
  readonly loop: Loop;
  readonly #options: EndpointJobsOptions;
  #after: EndpointJob | null = null;

  constructor(options: EndpointJobsOptions) {
    this.#options = options;
    this.loop = new Loop({
      name: 'endpoint-jobs',
      log: options.log,
      round: (signal) => this.round(signal),
    });
  }

  start(): this {
    this.loop.start();
    return this;
  }

  stop(): Promise<void> {
    return this.loop.stop();
  }

  /** One round; returns how long to wait before the next, ms. */
  async round(signal?: AbortSignal): Promise<number> {
    if (!this.#options.leader()) return IDLE_MS;
    const startedAt = performance.now();
    const fromFirst = this.#after === null;
    const jobs = await listJobs(this.#options.pool, { after: this.#after, limit: JOBS_A_ROUND });
    let moved = false;
    for (const job of jobs) {
      if (signal?.aborted) return 0;
      // Before the step: one that fails every time must not keep the others from theirs.
      this.#after = job;
      moved = (await this.#step(job)) || moved;
    }
    if (jobs.length < JOBS_A_ROUND) this.#after = null;
    if (jobs.length === 0) return fromFirst ? IDLE_MS : 0;
    return moved ? Math.min(MAX_REST_MS, performance.now() - startedAt) : BLOCKED_MS;
  }

  /** Whether the job came forward. */
  #step(job: EndpointJob): Promise<boolean> {
    return job.kind === 'retime' ? this.#retime(job) : this.#cancel(job);
  }

  async #retime(job: EndpointJob): Promise<boolean> {
    const { pool, metrics } = this.#options;
    const picked = await pickRetimable(pool, job.endpointId, RETIME_STEP);
    if (!picked || picked.ids.length === 0) return this.#finish(job);
    const delaysMs = await this.#slots(job.endpointId, picked);
    const { slotVersion, ids } = picked;
    const written = await retime(pool, job.endpointId, { slotVersion, ids, delaysMs });
    metrics.jobDeliveries.retime.inc(written);
    return written > 0;
  }

  /** Slots that begin now, or where a pause or a cooldown ends. No transaction is open meanwhile. */
  async #slots(endpointId: string, picked: Retimable): Promise<number[]> {
    const { slotVersion, ratePerSecond, burst, restMs, ids } = picked;
    const [answer] = await this.#options.limiter.ask([
      {
        endpointId,
        slotVersion,
        ratePerSecond,
        burst,
        waited: 0,
        fresh: 0,
        slots: ids.length,
        slotEveryMs: 1_000 / ratePerSecond,
        slotsAfterMs: Math.max(1, restMs),
        maxWaitMs: 0,
      },
    ]);
    assert(
      answer?.slots.length === ids.length,
      'the limiter gave another number of slots than was asked for',
    );
    return answer.slots;
  }

  async #cancel(job: EndpointJob): Promise<boolean> {
    const { pool, metrics } = this.#options;
    const { walked, cancelled } = await cancelStep(pool, job, CANCEL_STEP);
    metrics.jobDeliveries.cancel.inc(cancelled);
    return walked < CANCEL_STEP ? this.#finish(job) : true;
  }

  async #finish(job: EndpointJob): Promise<boolean> {
    if (await finishJob(this.#options.pool, job)) {
      this.#options.log.info({ endpoint_id: job.endpointId, job: job.kind }, 'job done');
    }
    return true;
  }
}
