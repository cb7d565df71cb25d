import type pg from 'pg';
import { announce } from '../../lib/broker/announcer.ts';
import type { RedisLink } from '../../lib/broker/link.ts';
import { readStreamState } from '../../lib/broker/stream-state.ts';
import { RECLAIM_GRACE_MS } from '../../lib/domain/limits.ts';
import { LANES, type Lane } from '../../lib/domain/vocabulary.ts';
import type { ReconcileMetrics } from '../../lib/metrics/reconcile.ts';
import type { Logger } from '../../lib/runtime/log.ts';
import { unannounce } from '../../lib/store/ingest.ts';
import { reannounceLost } from '../../lib/store/reannounce.ts';
import {
  announceDue,
  type DrainedUntil,
  endOwed,
  nextLook,
  postponeLooks,
  reclaimExpired,
  type SweepOptions,
  surfaceEnqueued,
} from '../../lib/store/sweep.ts';
import { LaneWatch } from './lane-watch.ts';

const OVERLAP_MS = 3_000;
/** Rounds are this far apart unless there is more at once: where many slots wake one by one, a round for each cost more than the sends. */
const ROUND_GAP_MS = 40;
/** Whoever enqueues by SQL tells nobody. While they do, and for a while after, rounds are this far apart at most. */
const ENQUEUED_GAP_MS = 60;
const ENQUEUED_FOR_MS = 5_000;
const FULL_PASS_EVERY_MS = 60_000;

export interface SweeperOptions {
  client: pg.Client;
  link: RedisLink | null;
  pollMode: () => boolean;
  batch: number;
  idleMs: number;
  metrics: ReconcileMetrics;
  log: Logger;
}

/**
 * One leader's sweep over the queue: what is due is announced, what stalled is announced again once its lane is read up to it, leases that ended are
 * given back, what is cancelled or expired is ended. Every round is a handful of bounded statements.
 */
export class Sweeper {
  readonly #options: SweeperOptions;
  readonly #lanes = { express: new LaneWatch('express'), bulk: new LaneWatch('bulk') };
  #cursor: Date | null = null;
  /** Where a full pass has come to; `undefined` when none is under way. It begins at null. */
  #fullPass: Date | null | undefined = null;
  #fullPassAt = performance.now();
  #lastRoundAt = Number.NEGATIVE_INFINITY;
  #steadySince = Number.POSITIVE_INFINITY;
  #enqueuedAt = Number.NEGATIVE_INFINITY;
  #couldReclaim = false;
  #wasPolling = false;

  constructor(options: SweeperOptions) {
    this.#options = options;
  }

  /** One round; returns how long to wait before the next, ms. */
  async round(): Promise<number> {
    const { client, batch } = this.#options;
    this.#noteGap();
    const mayReclaim = performance.now() - this.#steadySince >= RECLAIM_GRACE_MS;
    this.#noteReleased(mayReclaim, this.#polling);
    const sweep: SweepOptions = {
      limit: batch,
      from: this.#fullPass === undefined ? this.#cursor : this.#fullPass,
    };
    const surfaced = await surfaceEnqueued(client, batch);
    if (surfaced > 0) this.#enqueuedAt = performance.now();
    const postponed = await postponeLooks(client, sweep);
    const reclaimed = mayReclaim ? await this.#reclaim(sweep) : 0;
    const ended = await this.#end(sweep, mayReclaim);
    const announced = await this.#announce(sweep);
    const { inMs, now } = await nextLook(client);
    this.#noteGood();
    // Whoever took a full batch may have left more of its kind where it began, whatever the others saw after that.
    const unfinished = [surfaced, postponed, reclaimed, ended].some((count) => count >= batch);
    const full = unfinished || announced.count >= batch;
    this.#advance(full, unfinished ? sweep.from : announced.cursor, now);
    return full ? 0 : this.#restMs(inMs);
  }

  /** Until the next look, within what a rest may last, ms. */
  #restMs(inMs: number | null): number {
    const enqueued = performance.now() - this.#enqueuedAt < ENQUEUED_FOR_MS;
    const most = enqueued ? Math.min(this.#options.idleMs, ENQUEUED_GAP_MS) : this.#options.idleMs;
    return Math.max(Math.min(ROUND_GAP_MS, most), Math.min(most, inMs ?? most));
  }

  get #polling(): boolean {
    return this.#options.link === null || this.#options.pollMode();
  }

  // What could not be given back, or was left to those who poll, lies behind the cursor when its turn comes.
  #noteReleased(mayReclaim: boolean, polling: boolean): void {
    if ((mayReclaim && !this.#couldReclaim) || (!polling && this.#wasPolling)) this.#fullPass = null;
    this.#couldReclaim = mayReclaim;
    this.#wasPolling = polling;
  }

  async #reclaim(sweep: SweepOptions): Promise<number> {
    const ids = await reclaimExpired(this.#options.client, sweep);
    this.#options.metrics.reclaimed.inc(ids.length);
    if (ids.length > 0)
      this.#options.log.warn({ deliveries: ids.length }, 'leases ended unsettled and were given back');
    return ids.length;
  }

  async #end(sweep: SweepOptions, mayReclaim: boolean): Promise<number> {
    const reasons = await endOwed(this.#options.client, { ...sweep, mayReclaim });
    for (const reason of reasons) this.#options.metrics.ended[reason].inc();
    return reasons.length;
  }

  async #announce(sweep: SweepOptions): Promise<{ count: number; cursor: Date | null }> {
    const { client, link, metrics, log } = this.#options;
    // In poll mode every dispatcher looks for itself, and due rows are not written to.
    if (!link || this.#polling) return { count: 0, cursor: null };
    const drainedUntil = await this.#drainedUntil(link);
    let most = 0;
    for (const lane of LANES) most = Math.max(most, await this.#announceLost(link, lane, sweep.limit));
    const { ids, stalled, cursor } = await announceDue(client, { ...sweep, drainedUntil });
    for (const lane of LANES) await this.#putOnStream(link, lane, ids[lane]);
    const count = ids.express.length + ids.bulk.length;
    metrics.announced.due.inc(count - stalled);
    metrics.announced.stalled.inc(stalled);
    if (stalled > 0)
      log.warn({ deliveries: stalled }, 'announced deliveries were not picked up; announced again');
    return { count: Math.max(count, most), cursor };
  }

  /** After a flush nobody needs to wait until the lost announcements look stalled: they are known to be lost. */
  async #announceLost(link: RedisLink, lane: Lane, limit: number): Promise<number> {
    const { client, metrics, log } = this.#options;
    const watch = this.#lanes[lane];
    if (!watch.lostUntil) return 0;
    const ids = await reannounceLost(client, { lane, limit, until: watch.lostUntil });
    await this.#putOnStream(link, lane, ids);
    if (ids.length < limit) watch.lostUntil = null;
    metrics.announced.stalled.inc(ids.length);
    if (ids.length > 0)
      log.warn({ lane, deliveries: ids.length }, 'announcements lost with a flushed stream were made again');
    return ids.length;
  }

  async #putOnStream(link: RedisLink, lane: Lane, ids: readonly string[]): Promise<void> {
    const failed = await announce(link, ids, lane);
    if (failed.length > 0) await unannounce(this.#options.client, failed);
  }

  async #drainedUntil(link: RedisLink): Promise<DrainedUntil> {
    const { now } = await nextLook(this.#options.client);
    const [express, bulk] = await Promise.all([
      this.#lookAtStream(link, this.#lanes.express, now),
      this.#lookAtStream(link, this.#lanes.bulk, now),
    ]);
    return { express, bulk };
  }

  async #lookAtStream(link: RedisLink, watch: LaneWatch, now: Date): Promise<Date | null> {
    const { lane } = watch;
    const askedAt = performance.now();
    const state = await readStreamState(link, lane);
    // Half of the way there and back is the moment at which Redis read its clock.
    const databaseNow = now.getTime() + (performance.now() - askedAt) / 2;
    const seen = watch.note(state, { databaseNow: now, databaseAheadMs: databaseNow - state.redisNowMs });
    if (seen.caughtUp) this.#fullPass ??= null;
    if (seen.flushed)
      this.#options.log.warn({ lane }, 'a stream was flushed: what was announced on it is announced again');
    return seen.drainedUntil;
  }

  #noteGap(): void {
    if (performance.now() - this.#lastRoundAt > RECLAIM_GRACE_MS)
      this.#steadySince = Number.POSITIVE_INFINITY;
  }

  #noteGood(): void {
    this.#lastRoundAt = performance.now();
    if (this.#steadySince === Number.POSITIVE_INFINITY) this.#steadySince = this.#lastRoundAt;
  }

  #advance(full: boolean, reached: Date | null, now: Date): void {
    const next = full ? reached && back(reached) : back(now);
    if (this.#fullPass !== undefined) {
      this.#fullPass = full ? later(this.#fullPass, next) : undefined;
      if (!full) this.#fullPassAt = performance.now();
    } else if (performance.now() - this.#fullPassAt > FULL_PASS_EVERY_MS) {
      this.#fullPass = null;
    }
    this.#cursor = later(this.#cursor, next);
  }
}

/** Transactions commit out of order, so a walk begins a little before where the last one ended. */
function back(moment: Date): Date {
  return new Date(moment.getTime() - OVERLAP_MS);
}

function later(a: Date | null, b: Date | null): Date | null {
  if (!a || !b) return a ?? b;
  return a > b ? a : b;
}
