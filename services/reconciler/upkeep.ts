import Bottleneck from 'bottleneck';
import type pg from 'pg';
import type { RedisLink } from '../../lib/broker/link.ts';
import {
  meanIdsPerEntry,
  readStreamState,
  removeDeadConsumers,
  unreadEntries,
} from '../../lib/broker/stream-state.ts';
import type { Lane } from '../../lib/domain/vocabulary.ts';
import {
  EMPTY_GAUGES,
  type LaneLag,
  NO_LAG,
  type QueueGauges,
  type ReconcileMetrics,
} from '../../lib/metrics/reconcile.ts';
import type { Logger } from '../../lib/runtime/log.ts';
import { Loop } from '../../lib/runtime/loop.ts';
import { forgetDeadProcesses } from '../../lib/store/heartbeats.ts';
import { checkInvariants, violations } from '../../lib/store/invariants.ts';
import { ensureAttemptPartitions, readQueueFigures } from '../../lib/store/queue-gauges.ts';

const GAUGES_EVERY_MS = 15_000;
const HOURLY_MS = 3_600_000;
const STANDBY_CHECK_MS = 500;
/** Slices of the daily check begin at least this far apart, so that it never takes more of the database than traffic leaves. */
const CHECK_SLICE_EVERY_MS = 50;

export interface UpkeepOptions {
  pool: pg.Pool;
  link: RedisLink | null;
  leader: () => boolean;
  deadConsumerIdleMs: number;
  partitionDaysAhead: number;
  invariantIntervalMs: number;
  metrics: ReconcileMetrics;
  log: Logger;
}

/** The leader's slower duties, on connections of their own: gauges, partitions ahead, dead consumers, the invariant check. Two leaders at once would do no harm. */
export class Upkeep {
  readonly loops: readonly Loop[];
  readonly #options: UpkeepOptions;
  readonly #checkPace = new Bottleneck({ maxConcurrent: 1, minTime: CHECK_SLICE_EVERY_MS });
  #gauges: QueueGauges = EMPTY_GAUGES;

  constructor(options: UpkeepOptions) {
    this.#options = options;
    this.loops = [
      this.#duty('gauges', GAUGES_EVERY_MS, () => this.#readGauges()),
      this.#duty('consumers', options.deadConsumerIdleMs / 2, () => this.#removeDeadConsumers()),
      this.#duty('partitions', HOURLY_MS, () => this.#preparePartitions()),
      this.#duty('invariants', options.invariantIntervalMs, (signal) => this.#checkInvariants(signal)),
    ];
  }

  get gauges(): QueueGauges {
    return this.#options.leader() ? this.#gauges : EMPTY_GAUGES;
  }

  start(): this {
    for (const loop of this.loops) loop.start();
    return this;
  }

  async stop(): Promise<void> {
    await Promise.all(this.loops.map((loop) => loop.stop()));
  }

  /** Runs at new leadership and then every so often; a standby only looks whether it leads by now. */
  #duty(name: string, everyMs: number, work: (signal: AbortSignal) => Promise<void>): Loop {
    let doneAt = Number.NEGATIVE_INFINITY;
    return new Loop({
      name,
      log: this.#options.log,
      maxBackoffMs: 60_000,
      round: async (signal) => {
        if (!this.#options.leader()) doneAt = Number.NEGATIVE_INFINITY;
        else if (performance.now() - doneAt >= everyMs) {
          await work(signal);
          doneAt = performance.now();
        }
        return STANDBY_CHECK_MS;
      },
    });
  }

  async #readGauges(): Promise<void> {
    const figures = await readQueueFigures(this.#options.pool);
    const [express, bulk] = await Promise.all([this.#readLag('express'), this.#readLag('bulk')]);
    this.#gauges = {
      ...figures,
      oldestPendingAge: figures.oldestPendingAge ?? Number.NaN,
      lag: { express, bulk },
    };
  }

  async #readLag(lane: Lane): Promise<LaneLag> {
    const { link } = this.#options;
    if (!link?.up) return NO_LAG;
    const stream = await readStreamState(link, lane);
    const unread = unreadEntries(stream);
    return {
      unreadEntries: unread,
      unackedEntries: stream.pending,
      unreadDeliveries: unread > 0 ? Math.round(unread * (await meanIdsPerEntry(link, lane))) : 0,
    };
  }

  async #removeDeadConsumers(): Promise<void> {
    const { link, metrics, pool, deadConsumerIdleMs } = this.#options;
    if (link?.up) metrics.consumersRemoved.inc(await removeDeadConsumers(link, deadConsumerIdleMs));
    await forgetDeadProcesses(pool);
  }

  async #preparePartitions(): Promise<void> {
    const made = await ensureAttemptPartitions(this.#options.pool, this.#options.partitionDaysAhead);
    if (made > 0) this.#options.log.info({ made }, 'daily partitions made');
  }

  async #checkInvariants(signal: AbortSignal): Promise<void> {
    const { pool, metrics, log } = this.#options;
    const report = await checkInvariants(pool, {
      repair: true,
      signal,
      pace: (slice) => this.#checkPace.schedule(slice),
    });
    const found = violations(report);
    metrics.violations.inc(found);
    if (found > 0)
      log.error({ ...report }, 'the invariant check found faults and repaired what can be repaired');
    else log.info({ deliveries: report.deliveriesChecked }, 'the invariant check found no fault');
  }
}
