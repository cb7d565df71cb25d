import type pg from 'pg';
import { announce } from '../../../lib/broker/announcer.ts';
import type { RedisLink } from '../../../lib/broker/link.ts';
import { MAX_BATCH } from '../../../lib/domain/limits.ts';
import { LANES, type Lane } from '../../../lib/domain/vocabulary.ts';
import type { IngestMetrics } from '../../../lib/metrics/ingest.ts';
import type { Logger } from '../../../lib/runtime/log.ts';
import { unannounce } from '../../../lib/store/ingest.ts';
import { notifyQueue } from '../../../lib/store/wake.ts';

const NOTIFY_EVERY_MS = 10;
/**
 * Commits that follow each other closely are announced together: an entry costs the stream, the reader and the claim about the same
 * whether it holds ten ids or a hundred. One that comes alone is announced at once. What is on the bulk lane can wait its turn, and a flood in
 * few entries costs its neighbours less.
 */
const ANNOUNCE_EVERY_MS: Record<Lane, number> = { express: 4, bulk: 50 };

interface Gathering {
  ids: string[];
  timer: NodeJS.Timeout | null;
  announcedAt: number;
}

export interface AnnouncementOptions {
  pool: pg.Pool;
  link: RedisLink | null;
  metrics: IngestMetrics;
  log: Logger;
}

/**
 * Tells the dispatchers of what was committed, after the commit and without anybody waiting for it. What cannot be announced is made due to
 * be found in the database; if that fails too, the sweep finds it 30 s later.
 */
export class Announcements {
  readonly #options: AnnouncementOptions;
  readonly #open = new Set<Promise<void>>();
  #notifyTimer: NodeJS.Timeout | null = null;
  readonly #gathering: Record<Lane, Gathering> = { express: gathering(), bulk: gathering() };

  constructor(options: AnnouncementOptions) {
    this.#options = options;
  }

  /** Puts ids on a lane's stream, a few milliseconds late at most. */
  announce(deliveryIds: readonly string[], lane: Lane): void {
    if (deliveryIds.length === 0) return;
    const gathered = this.#gathering[lane];
    for (const id of deliveryIds) gathered.ids.push(id);
    const waitMs = gathered.announcedAt + ANNOUNCE_EVERY_MS[lane] - performance.now();
    if (waitMs <= 0 || gathered.ids.length >= MAX_BATCH) this.#flush(lane);
    else gathered.timer ??= setTimeout(() => this.#flush(lane), waitMs);
  }

  /** Wakes those who poll, at most once in 10 ms. */
  wakePollers(): void {
    this.#notifyTimer ??= setTimeout(() => this.#notify(), NOTIFY_EVERY_MS);
  }

  /** Resolves when everything begun is done, what is put off included. */
  async drain(): Promise<void> {
    for (const lane of LANES) this.#flush(lane);
    while (this.#open.size > 0) await Promise.all(this.#open);
    if (!this.#notifyTimer) return;
    clearTimeout(this.#notifyTimer);
    this.#notify();
    while (this.#open.size > 0) await Promise.all(this.#open);
  }

  #flush(lane: Lane): void {
    const gathered = this.#gathering[lane];
    if (gathered.timer) clearTimeout(gathered.timer);
    gathered.timer = null;
    const ids = gathered.ids.splice(0);
    if (ids.length === 0) return;
    gathered.announcedAt = performance.now();
    this.#track(this.#announce(ids, lane));
  }

  #notify(): void {
    this.#notifyTimer = null;
    this.#track(notifyQueue(this.#options.pool));
  }

  async #announce(deliveryIds: readonly string[], lane: Lane): Promise<void> {
    const { link, metrics, pool } = this.#options;
    const failed = link ? await announce(link, deliveryIds, lane) : [...deliveryIds];
    metrics.announced.inc(deliveryIds.length - failed.length);
    if (failed.length === 0) return;
    metrics.announceFailed.inc(failed.length);
    await unannounce(pool, failed);
    this.wakePollers();
  }

  #track(work: Promise<void>): void {
    const tracked = work
      .catch((error: unknown) =>
        this.#options.log.warn({ err: error }, 'an announcement failed; the sweep will find its rows'),
      )
      .finally(() => this.#open.delete(tracked));
    this.#open.add(tracked);
  }
}

function gathering(): Gathering {
  return { ids: [], timer: null, announcedAt: Number.NEGATIVE_INFINITY };
}
