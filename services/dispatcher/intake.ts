import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import type { Share } from '../../lib/domain/cap-share.ts';
import type { Lane } from '../../lib/domain/vocabulary.ts';
import type { DeliveryMetrics } from '../../lib/metrics/delivery.ts';
import type { Logger } from '../../lib/runtime/log.ts';
import { pause } from '../../lib/runtime/pause.ts';
import {
  type Claim,
  type ClaimOptions,
  claimByIds,
  claimDue,
  type PollCursor,
} from '../../lib/store/claims.ts';
import type { Job } from './attempt.ts';
import type { EndpointCache, Unusable } from './endpoint-cache.ts';
import type { Announced } from './stream-source.ts';

const RETRY_MS = 250;
const FULL_PASS_EVERY_MS = 60_000;
/** Of each claim, while both lanes have ids: what can wait its turn must have one. */
const BULK_SHARE = 0.25;
/** What can wait its turn waits for company: few large claims of a flood cost its neighbours less than many small ones. */
const BULK_EVERY_MS = 50;

export interface IntakeOptions {
  pool: pg.Pool;
  endpoints: EndpointCache;
  processNumber: () => number;
  /** Which part of what wakes in its slot this process polls for. */
  part: () => Share;
  leaseMs: number;
  maxBatch: number;
  lingerMs: number;
  lanes: number;
  /** How many more deliveries the process can take in now. */
  wanted: () => number;
  /** Whether any of them may come from the bulk lane. */
  takesBulk: () => boolean;
  /** Whether the process will soon have nothing to send: then waiting for company costs more than it saves. */
  starving: () => boolean;
  onJobs: (jobs: Job[]) => void;
  /** Leased, but nothing can be begun with them: give the leases back. */
  onUnusable: (claims: readonly Claim[]) => void;
  /** Ids that need no more memory than their rows have. */
  onDecided: (ids: readonly Announced[]) => void;
  metrics: DeliveryMetrics;
  log: Logger;
}

/** Turns ids into leases: gathers announced ids for a few milliseconds and claims them together, as many as can start. */
export class Intake {
  readonly #options: IntakeOptions;
  readonly #ids: Record<Lane, Announced[]> = { express: [], bulk: [] };
  #claiming = 0;
  #claims = 0;
  #timer: NodeJS.Timeout | null = null;
  #bulkTimer: NodeJS.Timeout | null = null;
  #lastClaimAt = 0;
  #lastBulkAt = 0;
  #cursor: PollCursor = null;
  #fullPassAt = 0;
  #stopped = false;
  #running = new Set<Promise<void>>();

  constructor(options: IntakeOptions) {
    this.#options = options;
  }

  /** Ids read and not yet claimed. */
  get readAhead(): number {
    return this.#ids.express.length + this.#ids.bulk.length;
  }

  readAheadOf(lane: Lane): number {
    return this.#ids[lane].length;
  }

  /** Rows that are being claimed now. */
  get claiming(): number {
    return this.#claiming;
  }

  add(ids: readonly Announced[]): void {
    for (const id of ids) this.#ids[id.lane].push(id);
    this.pump();
  }

  /** Claims what can start; called whenever something may have changed. */
  pump(): void {
    const { lanes, maxBatch, lingerMs, wanted, starving } = this.#options;
    while (!this.#stopped && this.#claims < lanes && this.readAhead > 0) {
      const room = wanted();
      if (room <= 0) return;
      const { express, bulk, size, rest } = this.#portion(Math.min(maxBatch, room));
      if (size === 0) return this.#lingerForBulk();
      const leftMs = this.#lastClaimAt + lingerMs - performance.now();
      const small = size < maxBatch && rest === 0;
      if (small && leftMs > 0 && !starving()) return this.#linger(leftMs);
      if (bulk > 0) this.#lastBulkAt = performance.now();
      this.#track(this.#claim([...this.#ids.express.splice(0, express), ...this.#ids.bulk.splice(0, bulk)]));
    }
  }

  /** Express first, and always a share for bulk. */
  #portion(size: number): { express: number; bulk: number; size: number; rest: number } {
    const bulkReady = this.#takesBulk(size) ? this.#ids.bulk.length : 0;
    const expressReady = this.#ids.express.length;
    const bulkShare = Math.min(bulkReady, Math.ceil(size * BULK_SHARE));
    const express = Math.min(expressReady, size - bulkShare);
    const bulk = Math.min(bulkReady, size - express);
    return { express, bulk, size: express + bulk, rest: expressReady + bulkReady - express - bulk };
  }

  #takesBulk(size: number): boolean {
    const whole = this.#ids.bulk.length >= size;
    return (whole || performance.now() - this.#lastBulkAt >= BULK_EVERY_MS) && this.#options.takesBulk();
  }

  /** Claims due rows straight from the queue. Returns how many it got; `limit` of them means that there may be more. */
  async poll(limit: number): Promise<number> {
    const now = performance.now();
    const full = now - this.#fullPassAt > FULL_PASS_EVERY_MS;
    if (full) this.#fullPassAt = now;
    this.#claiming += limit;
    try {
      const { claims, cursor } = await claimDue(this.#options.pool, limit, full ? null : this.#cursor, {
        ...this.#claimOptions(),
        part: this.#options.part(),
      });
      this.#cursor = cursor;
      await this.#hand(claims, now);
      return claims.length;
    } finally {
      this.#claiming -= limit;
    }
  }

  /** Claims nothing more; returns the ids that were read and not claimed. */
  async stop(): Promise<Announced[]> {
    this.#stopped = true;
    if (this.#timer) clearTimeout(this.#timer);
    if (this.#bulkTimer) clearTimeout(this.#bulkTimer);
    await Promise.all(this.#running);
    return [...this.#ids.express.splice(0), ...this.#ids.bulk.splice(0)];
  }

  // A timer of its own, or what is fresh would wait for the bulk lane's.
  #lingerForBulk(): void {
    this.#bulkTimer ??= setTimeout(() => {
      this.#bulkTimer = null;
      this.pump();
    }, BULK_EVERY_MS);
  }

  #linger(ms: number): void {
    this.#timer ??= setTimeout(
      () => {
        this.#timer = null;
        this.pump();
      },
      Math.max(1, ms),
    );
  }

  async #claim(ids: Announced[]): Promise<void> {
    const { pool, metrics, onDecided, log } = this.#options;
    const leasedAt = performance.now();
    this.#lastClaimAt = leasedAt;
    this.#claims += 1;
    this.#claiming += ids.length;
    const deliveryIds = ids.map((id) => id.deliveryId);
    try {
      const claims = await claimByIds(pool, deliveryIds, this.#claimOptions()).catch((error: unknown) => {
        log.warn({ err: error, ids: ids.length }, 'a claim failed; trying again');
        return null;
      });
      if (claims) {
        onDecided(ids);
        metrics.stale.inc(ids.length - claims.length);
        await this.#hand(claims, leasedAt);
      } else {
        // Whether it committed or not, its rows come back: unclaimed through these ids, claimed through the end of their lease.
        for (const id of ids.reverse()) this.#ids[id.lane].unshift(id);
        await pause(RETRY_MS);
      }
    } finally {
      this.#claims -= 1;
      this.#claiming -= ids.length;
    }
    this.pump();
  }

  #claimOptions(): ClaimOptions {
    return {
      token: randomUUID(),
      leaseMs: this.#options.leaseMs,
      processNumber: this.#options.processNumber(),
    };
  }

  async #hand(claims: readonly Claim[], leasedAt: number): Promise<void> {
    if (claims.length === 0) return;
    const { endpoints, metrics, onJobs, onUnusable, log } = this.#options;
    metrics.claimed.inc(claims.length);
    metrics.claimBatch.observe(claims.length);
    const claimedAt = performance.now();
    try {
      await this.#loadMissing(claims);
    } catch (error) {
      log.warn(
        { err: error, claims: claims.length },
        'endpoints could not be read; their deliveries are given back',
      );
      return onUnusable(claims);
    }
    const jobs = claims.map((claim): Job => {
      const version = claim.endpointVersion ?? 0;
      const endpoint = endpoints.get(claim.endpointId, version) ?? unread(claim.endpointId, version);
      return { claim, endpoint, leasedAt, claimedAt, probe: false };
    });
    onJobs(jobs);
  }

  async #loadMissing(claims: readonly Claim[]): Promise<void> {
    const missing = new Set<string>();
    for (const { endpointId, endpointVersion } of claims) {
      if (endpointVersion !== null && !this.#options.endpoints.get(endpointId, endpointVersion))
        missing.add(endpointId);
    }
    if (missing.size > 0) await this.#options.endpoints.load([...missing]);
  }

  #track(work: Promise<void>): void {
    this.#running.add(work);
    void work.finally(() => this.#running.delete(work));
  }
}

function unread(id: string, version: number): Unusable {
  const rated = { slotVersion: 0, slotEveryMs: 1_000, ratePerSecond: 1, burst: 1 };
  return { id, version, ...rated, unusable: 'its configuration could not be read' };
}
