import Bottleneck from 'bottleneck';
import type { Pool } from 'pg';
import { replayPace } from '../../lib/domain/replay-pace.ts';
import type { ReconcileMetrics } from '../../lib/metrics/reconcile.ts';
import type { Logger } from '../../lib/runtime/log.ts';
import { Loop } from '../../lib/runtime/loop.ts';
import { isTransient, judgeFailure, sqlState } from '../../lib/store/failure.ts';
import { failReplayJob, listRunningReplays, type RunningReplay } from '../../lib/store/replay-jobs.ts';
import { type ReplayStep, replayStep } from '../../lib/store/replay-step.ts';

const IDLE_MS = 500;
const JOBS_A_ROUND = 100;
/** Steps of all jobs begin at least this far apart, one at a time, so that they leave the database to the traffic. */
const TURN_EVERY_MS = 10;
/** How long a turn may look for what is rare, ms. */
const TURN_MS = 200;
const MIN_LOOK = 100;
const MAX_LOOK = 5_000;
/** So many refusals of one row after the other, and a job has failed. */
const MAX_REFUSALS = 8;

export interface ReplayJobsOptions {
  /** Connections with the settings of a sweep: a step's plans are held to their indexes. */
  pool: Pool;
  leader: () => boolean;
  metrics: ReconcileMetrics;
  log: Logger;
}

/**
 * Works off replay jobs, each at its own pace. Everybody's steps queue for one turn after the other, and a job queues for its next when its last is
 * done: so jobs take turns, and neither a slow pace nor a long walk holds up another. Whoever leads next goes on from the rows; two at once do
 * no harm, because a step holds its job's row.
 */
export class ReplayJobs {
  readonly loop: Loop;
  readonly #options: ReplayJobsOptions;
  readonly #turns = new Bottleneck({ maxConcurrent: 1, minTime: TURN_EVERY_MS });
  readonly #runs = new Map<string, { pace: Bottleneck; done: Promise<void> }>();
  readonly #refusals = new Map<string, number>();
  #failures: unknown[] = [];
  #after: RunningReplay | null = null;
  #stopping = false;

  constructor(options: ReplayJobsOptions) {
    this.#options = options;
    this.loop = new Loop({ name: 'replays', log: options.log, round: () => this.#round() });
  }

  start(): this {
    this.loop.start();
    return this;
  }

  /** Returns when the step that runs is done; what waits for its turn is not begun. */
  async stop(): Promise<void> {
    this.#stopping = true;
    await this.loop.stop();
    const runs = [...this.#runs.values()];
    await Promise.all([...runs.map(({ pace }) => pace), this.#turns].map(dropWaiting));
    await Promise.all(runs.map(({ done }) => done));
  }

  /** Begins what is running by its row and not by this process. What failed since the last round fails this one, which logs it and backs off. */
  async #round(): Promise<number> {
    const [failure] = this.#failures.splice(0);
    if (failure !== undefined) throw failure;
    if (!this.#options.leader()) return IDLE_MS;
    const jobs = await listRunningReplays(this.#options.pool, { after: this.#after, limit: JOBS_A_ROUND });
    const more = jobs.length === JOBS_A_ROUND;
    this.#after = more ? jobs.at(-1)! : null;
    for (const job of jobs) if (!this.#runs.has(job.id)) this.#begin(job);
    return more ? 0 : IDLE_MS;
  }

  #begin(job: RunningReplay): void {
    const { deliveries, everyMs } = replayPace(job.ratePerSecond);
    const pace = new Bottleneck({ maxConcurrent: 1, minTime: everyMs }).chain(this.#turns);
    const done = this.#run(job, pace, deliveries).finally(() => this.#runs.delete(job.id));
    this.#runs.set(job.id, { pace, done });
  }

  async #run(job: RunningReplay, pace: Bottleneck, deliveries: number): Promise<void> {
    try {
      while (await pace.schedule(() => this.#turn(job, deliveries)));
    } catch (error) {
      if (!this.#stopping) await this.#refused(job, error).catch((next) => this.#failures.push(next));
    }
  }

  /** One turn of a job: up to so many deliveries. True when it should have another. */
  async #turn(job: RunningReplay, deliveries: number): Promise<boolean> {
    const endsAt = performance.now() + TURN_MS;
    let look = Math.max(MIN_LOOK, deliveries * 2);
    for (let left = deliveries; left > 0 && performance.now() < endsAt; look = Math.min(MAX_LOOK, look * 2)) {
      if (this.#stopping || !this.#options.leader()) return false;
      const step = await replayStep(this.#options.pool, job.id, { take: left, look });
      if (!step) return false;
      this.#count(job, step);
      if (step.finished || !step.moved) return false;
      left -= step.replayed;
    }
    return true;
  }

  #count(job: RunningReplay, { replayed, skipped, finished }: ReplayStep): void {
    const { replayDeliveries } = this.#options.metrics;
    replayDeliveries.replayed.inc(replayed);
    replayDeliveries.endpoint_deleted.inc(skipped.endpoint_deleted);
    replayDeliveries.event_missing.inc(skipped.event_missing);
    replayDeliveries.changed.inc(skipped.changed);
    this.#refusals.delete(job.id);
    if (finished) this.#options.log.info({ replay_id: job.id }, 'replay job done');
  }

  /** An outage is waited out for ever. A row that the database refuses again and again would be refused for ever too. */
  async #refused(job: RunningReplay, error: unknown): Promise<void> {
    this.#failures.push(error);
    if (judgeFailure(error) !== 'data' || isTransient(error)) return;
    const refusals = (this.#refusals.get(job.id) ?? 0) + 1;
    this.#refusals.set(job.id, refusals);
    if (refusals < MAX_REFUSALS) return;
    this.#refusals.delete(job.id);
    const reason = `the database refuses to replay one of the next deliveries (SQLSTATE ${sqlState(error)})`;
    if (await failReplayJob(this.#options.pool, job.id, reason)) {
      this.#options.log.error({ replay_id: job.id, err: error }, 'replay job failed');
    }
  }
}

async function dropWaiting(limiter: Bottleneck): Promise<void> {
  await limiter.stop({ dropWaitingJobs: true });
}
