import type pg from 'pg';
import type { DeliveryMetrics } from '../../lib/metrics/delivery.ts';
import { Batcher } from '../../lib/runtime/batcher.ts';
import type { Logger } from '../../lib/runtime/log.ts';
import { pause } from '../../lib/runtime/pause.ts';
import { type Deferral, defer } from '../../lib/store/defer.ts';
import { isTransient, judgeFailure } from '../../lib/store/failure.ts';
import { type Finish, finish, type Keep, keep, type SettleOptions } from '../../lib/store/settle.ts';

/** A dispatcher that could not write an outcome for this long takes no more work. */
const STUCK_MS = 2_000;
const MAX_BACKOFF_MS = 1_000;

export interface SettlerOptions {
  pool: pg.Pool;
  processNumber: () => number;
  metrics: DeliveryMetrics;
  log: Logger;
  lanes: number;
  maxBatch: number;
  lingerMs: number;
}

type Outcome = Finish | Keep | Deferral;
type Write<T> = (pool: pg.Pool, batch: readonly T[], options: SettleOptions) => Promise<Set<string>>;

/**
 * Writes outcomes, many in one statement, again and again until each is written or its token no longer matches. The token and not the clock is
 * the fence: a late outcome still counts until somebody else has claimed the delivery.
 */
export class Settler {
  readonly #options: SettlerOptions;
  readonly #finishes: Batcher<Finish>;
  readonly #keeps: Batcher<Keep>;
  readonly #deferrals: Batcher<Deferral>;
  /** In order of arrival, so that the first is the oldest. */
  readonly #unsettled = new Map<Outcome, number>();
  readonly #giveUp = new AbortController();

  constructor(options: SettlerOptions) {
    this.#options = options;
    const { maxBatch, lingerMs, lanes } = options;
    this.#finishes = new Batcher({ maxBatch, lingerMs, lanes, flush: (batch) => this.#flush(batch, finish) });
    this.#keeps = new Batcher({ maxBatch, lingerMs, lanes: 1, flush: (batch) => this.#flush(batch, keep) });
    this.#deferrals = new Batcher({
      maxBatch,
      lingerMs,
      lanes: 1,
      flush: (batch) => this.#flush(batch, defer),
    });
  }

  finish(outcome: Finish): void {
    this.#unsettled.set(outcome, performance.now());
    this.#finishes.add(outcome);
  }

  keep(outcome: Keep): void {
    this.#unsettled.set(outcome, performance.now());
    this.#keeps.add(outcome);
  }

  defer(outcome: Deferral): void {
    this.#unsettled.set(outcome, performance.now());
    this.#deferrals.add(outcome);
  }

  get oldestUnsettledMs(): number {
    const [oldest] = this.#unsettled.values();
    return oldest === undefined ? 0 : performance.now() - oldest;
  }

  get stuck(): boolean {
    return this.oldestUnsettledMs > STUCK_MS;
  }

  /** Resolves when everything is written, or when `limitMs` have passed; returns how many outcomes were given up. */
  async drain(limitMs: number): Promise<number> {
    const written = Promise.all([this.#finishes.drain(), this.#keeps.drain(), this.#deferrals.drain()]);
    await Promise.race([written, pause(limitMs)]);
    const left = this.#unsettled.size;
    this.#giveUp.abort();
    return left;
  }

  async #flush<T extends Outcome>(batch: readonly T[], write: Write<T>): Promise<void> {
    const { now, later } = firstOfEach(batch);
    await this.#writeUntilDone(now, write);
    // A delivery that was lost, claimed again and sent again before its first outcome could be written.
    if (later.length > 0) await this.#flush(later, write);
  }

  async #writeUntilDone<T extends Outcome>(batch: readonly T[], write: Write<T>): Promise<void> {
    let backoffMs = 20;
    while (!this.#giveUp.signal.aborted) {
      const error = await this.#tryWrite(batch, write);
      if (error === null) return;
      this.#options.metrics.settleRetries.inc();
      if (judgeFailure(error) === 'data' && !isTransient(error)) return this.#writeApart(batch, write, error);
      this.#options.log.warn(
        { err: error, outcomes: batch.length },
        'outcomes could not be written; trying again',
      );
      await pause(backoffMs, this.#giveUp.signal);
      backoffMs = Math.min(backoffMs * 2, MAX_BACKOFF_MS);
    }
  }

  /** Null when the batch is written. */
  async #tryWrite<T extends Outcome>(batch: readonly T[], write: Write<T>): Promise<unknown> {
    try {
      const written = await write(this.#options.pool, batch, {
        processNumber: this.#options.processNumber(),
      });
      this.#options.metrics.settleBatch.observe(batch.length);
      this.#conclude(batch, written);
      return null;
    } catch (error) {
      return error ?? new Error('unknown');
    }
  }

  #conclude(batch: readonly Outcome[], written: ReadonlySet<string>): void {
    for (const outcome of batch) {
      this.#unsettled.delete(outcome);
      if (written.has(outcome.deliveryId)) continue;
      this.#options.metrics.leasesLost.inc();
      this.#options.log.warn(
        { delivery_id: outcome.deliveryId },
        'lease lost: the outcome of this attempt changes nothing',
      );
    }
  }

  // One row that the database cannot take must cost neither its neighbours nor itself: it is written without its texts.
  async #writeApart<T extends Outcome>(batch: readonly T[], write: Write<T>, error: unknown): Promise<void> {
    const [only] = batch;
    if (batch.length > 1 || !only) {
      for (const outcome of batch) await this.#writeUntilDone([outcome], write);
      return;
    }
    this.#options.log.error(
      { err: error, delivery_id: only.deliveryId },
      'an outcome is written without its response text',
    );
    if (!stripTexts(only)) await pause(MAX_BACKOFF_MS, this.#giveUp.signal);
    await this.#writeUntilDone(batch, write);
  }
}

/** Removes the texts of an outcome; false when it had none. */
function stripTexts(outcome: Outcome): boolean {
  const send = 'send' in outcome ? outcome.send : null;
  if (!send || (send.error === null && send.snippet === null)) return false;
  send.error = null;
  send.snippet = null;
  return true;
}

function firstOfEach<T extends Outcome>(batch: readonly T[]): { now: T[]; later: T[] } {
  const seen = new Set<string>();
  const now: T[] = [];
  const later: T[] = [];
  for (const outcome of batch) {
    (seen.has(outcome.deliveryId) ? later : now).push(outcome);
    seen.add(outcome.deliveryId);
  }
  return { now, later };
}
