import { DELIVERIES_AT_ONCE } from '../../lib/domain/limits.ts';
import type { ReconcileMetrics } from '../../lib/metrics/reconcile.ts';
import type { Logger } from '../../lib/runtime/log.ts';
import { Loop } from '../../lib/runtime/loop.ts';
import { fanOutStep, nextFanOut } from '../../lib/store/fan-outs.ts';
import type { Queryable } from '../../lib/store/pool.ts';

const IDLE_MS = 250;
/** A step is followed by a rest as long as itself, so that an event to 65,535 endpoints leaves half of the database to the traffic. */
const MAX_REST_MS = 100;

export interface FanOutsOptions {
  /** Connections with the settings of a sweep. */
  pool: Queryable;
  leader: () => boolean;
  metrics: ReconcileMetrics;
  log: Logger;
}

/**
 * Writes the deliveries that events with many endpoints were accepted without, step by step, one event after the other in turns. All that it needs to
 * know stands in their rows: whoever leads next goes on where this one was, and two at once do no harm.
 */
export class FanOuts {
  readonly loop: Loop;
  readonly #options: FanOutsOptions;
  #after: string | null = null;

  constructor(options: FanOutsOptions) {
    this.#options = options;
    this.loop = new Loop({ name: 'fan-outs', log: options.log, round: () => this.round() });
  }

  start(): this {
    this.loop.start();
    return this;
  }

  stop(): Promise<void> {
    return this.loop.stop();
  }

  /** One step; returns how long to wait before the next, ms. */
  async round(): Promise<number> {
    const { leader, pool, metrics, log } = this.#options;
    if (!leader()) return IDLE_MS;
    const startedAt = performance.now();
    const fromFirst = this.#after === null;
    const eventId = await nextFanOut(pool, this.#after);
    // Before the step: one that fails every time must not keep the others from theirs.
    this.#after = eventId;
    if (eventId === null) return fromFirst ? IDLE_MS : 0;
    const step = await fanOutStep(pool, eventId, DELIVERIES_AT_ONCE);
    if (!step) return MAX_REST_MS;
    metrics.fannedOut.inc(step.written);
    if (step.ended) log.info({ event_id: eventId }, 'fan-out done');
    return Math.min(MAX_REST_MS, performance.now() - startedAt);
  }
}
