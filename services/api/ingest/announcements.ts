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
 * whether it holds ten ids or a hundred. One that comes alone is announced at once.
 */
const ANNOUNCE_EVERY_MS = 4;

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
  readonly #pending: Record<Lane, string[]> = { express: [], bulk: [] };
  #announceTimer: NodeJS.Timeout | null = null;
  #announcedAt = Number.NEGATIVE_INFINITY;

  constructor(options: AnnouncementOptions) {
    this.#options = options;
  }

  /** Puts ids on a lane's stream, a few milliseconds late at most. */
  announce(deliveryIds: readonly string[], lane: Lane): void {
    if (deliveryIds.length === 0) return;
    const pending = this.#pending[lane];
    for (const id of deliveryIds) pending.push(id);
    const waitMs = this.#announcedAt + ANNOUNCE_EVERY_MS - performance.now();
    if (waitMs <= 0 || pending.length >= MAX_BATCH) this.#flush();
    else this.#announceTimer ??= setTimeout(() => this.#flush(), waitMs);
  }

  /** Wakes those who poll, at most once in 10 ms. */
  wakePollers(): void {
    this.#notifyTimer ??= setTimeout(() => this.#notify(), NOTIFY_EVERY_MS);
  }

  /** Resolves when everything begun is done, what is put off included. */
  async drain(): Promise<void> {
    this.#flush();
    while (this.#open.size > 0) await Promise.all(this.#open);
    if (!this.#notifyTimer) return;
    clearTimeout(this.#notifyTimer);
    this.#notify();
    while (this.#open.size > 0) await Promise.all(this.#open);
  }

  #flush(): void {
    if (this.#announceTimer) clearTimeout(this.#announceTimer);
    this.#announceTimer = null;
    for (const lane of LANES) {
      const ids = this.#pending[lane].splice(0);
      if (ids.length === 0) continue;
      this.#announcedAt = performance.now();
      this.#track(this.#announce(ids, lane));
    }
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
