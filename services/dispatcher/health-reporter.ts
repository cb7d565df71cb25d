import { LRUCache } from 'lru-cache';
import type pg from 'pg';
import { evidenceOf, isFailure } from '../../lib/domain/breaker.ts';
import type { SendResult } from '../../lib/domain/send-result.ts';
import type { DeliveryMetrics } from '../../lib/metrics/delivery.ts';
import { Batcher } from '../../lib/runtime/batcher.ts';
import type { Logger } from '../../lib/runtime/log.ts';
import { pause } from '../../lib/runtime/pause.ts';
import type { Claim } from '../../lib/store/claims.ts';
import {
  claimProbe,
  giveBackProbe,
  type HealthChange,
  type HealthEvidence,
  type HealthPolicy,
  recordEvidence,
} from '../../lib/store/endpoint-health.ts';
import type { EndpointStates, KnownState } from './endpoint-state.ts';

const MAX_BATCH = 128;
const LINGER_MS = 15;
const TRIES = 3;
const RETRY_MS = 200;
/** Failures that are no matter of the breaker's are written down only when they go on: an endpoint with a wrong path now and then is well. */
const FAILING_AFTER_MS = 60_000;
const MAX_ENDPOINTS = 10_000;

export interface HealthReporterOptions {
  pool: pg.Pool;
  states: EndpointStates;
  policy: HealthPolicy;
  /** By when a probe must have reported, ms. */
  probeMs: number;
  metrics: DeliveryMetrics;
  log: Logger;
}

/** One result as evidence about its endpoint. */
export interface Report {
  claim: Claim;
  result: SendResult;
  success: boolean;
  probe: boolean;
  retryAfterMs: number | null;
}

/**
 * Tells the endpoint's row what the answers say of the endpoint, and only what may change it: the row of a healthy endpoint is never written. Reports are
 * judged in the order in which their sends ended.
 */
export class HealthReporter {
  readonly #options: HealthReporterOptions;
  readonly #reports: Batcher<HealthEvidence>;
  /** How many failures are not written yet, by endpoint: what arrives meanwhile parts them. */
  readonly #unwrittenFailures = new Map<string, number>();
  /** Since when this process has seen nothing but failures, where the row does not say so (performance.now()). */
  readonly #failingSince = new LRUCache<string, number>({ max: MAX_ENDPOINTS });

  constructor(options: HealthReporterOptions) {
    this.#options = options;
    this.#reports = new Batcher({
      maxBatch: MAX_BATCH,
      lingerMs: LINGER_MS,
      lanes: 1,
      flush: (batch) => this.#flush(batch),
    });
  }

  /** Takes a result in; call it in the order in which sends end. */
  report({ claim, result, success, probe, retryAfterMs }: Report): void {
    const { endpointId, trips, token } = claim;
    const kind = evidenceOf(result);
    const known = this.#options.states.get(endpointId);
    const news =
      probe ||
      (retryAfterMs !== null && this.#movesPause(known, retryAfterMs)) ||
      this.#movesBreaker(known, endpointId, kind, trips) ||
      this.#movesFailing(known, endpointId, kind, success);
    if (!news) return;
    if (kind === 'failing') this.#countUnwritten(endpointId, 1);
    this.#reports.add({ endpointId, kind, success, trips, probe: probe ? token : null, retryAfterMs });
  }

  /** Asks for the one probe of the fleet. Throws when the database is away. */
  async claimProbe({ endpointId, trips, token }: Claim): Promise<boolean> {
    const { pool, probeMs, states, metrics } = this.#options;
    // Before the answer, so that the others of this process do not ask as well.
    states.learnOfProbe(endpointId, probeMs);
    let won = false;
    try {
      won = await claimProbe(pool, { endpointId, trips, token, probeMs });
    } finally {
      // Lost, it is somebody else's, or the breaker has closed; the next claim tells which.
      if (!won) states.learnOfProbe(endpointId, RETRY_MS);
    }
    if (won) metrics.probes.inc();
    return won;
  }

  /** Gives a probe back that was not sent: another delivery may find out. */
  giveBackProbe({ endpointId, token }: Claim): void {
    const { pool, log, states } = this.#options;
    states.learnOfProbe(endpointId, 0);
    giveBackProbe(pool, { endpointId, token }).catch((error: unknown) => {
      log.warn({ err: error, endpoint_id: endpointId }, 'a probe was not given back; it ends by itself');
    });
  }

  drain(): Promise<void> {
    return this.#reports.drain();
  }

  #movesPause(known: KnownState, retryAfterMs: number): boolean {
    return performance.now() + retryAfterMs > known.pausedUntil + 500;
  }

  #movesBreaker(known: KnownState, endpointId: string, kind: HealthEvidence['kind'], trips: number): boolean {
    if (!this.#options.policy.breaker.enabled) return false;
    if (kind === 'failing') return known.breaker === 'closed' || known.trips < trips;
    // Between two failures that are not written yet it is what makes them not be in a row.
    return kind === 'alive' && (known.failures > 0 || this.#unwrittenFailures.has(endpointId));
  }

  #movesFailing(
    known: KnownState,
    endpointId: string,
    kind: HealthEvidence['kind'],
    success: boolean,
  ): boolean {
    if (success) {
      this.#failingSince.delete(endpointId);
      return known.failing;
    }
    if (!isFailure({ kind, success })) return false;
    const now = performance.now();
    const since = this.#failingSince.get(endpointId) ?? now;
    this.#failingSince.set(endpointId, since);
    if (now - since < FAILING_AFTER_MS) return false;
    // A failure now and then is enough to find that it has gone on for days.
    if (known.failing) this.#failingSince.set(endpointId, now);
    return true;
  }

  async #flush(batch: HealthEvidence[]): Promise<void> {
    await this.#write(batch);
    for (const { endpointId, kind } of batch) if (kind === 'failing') this.#countUnwritten(endpointId, -1);
  }

  #countUnwritten(endpointId: string, by: 1 | -1): void {
    const count = (this.#unwrittenFailures.get(endpointId) ?? 0) + by;
    if (count > 0) this.#unwrittenFailures.set(endpointId, count);
    else this.#unwrittenFailures.delete(endpointId);
  }

  async #write(batch: HealthEvidence[]): Promise<void> {
    const { pool, policy, log } = this.#options;
    for (let tries = 1; ; tries += 1) {
      try {
        for (const change of await recordEvidence(pool, batch, policy)) this.#learn(change);
        return;
      } catch (error) {
        // Evidence is repeated by the next answers; a probe ends at its deadline.
        log.warn({ err: error, endpoints: batch.length }, 'the state of endpoints could not be written');
        if (tries === TRIES) return;
        await pause(RETRY_MS);
      }
    }
  }

  #learn(change: HealthChange): void {
    const { states, metrics, log } = this.#options;
    states.learnFromChange(change);
    const ids = { endpoint_id: change.endpointId };
    if (change.opened) {
      metrics.trips.inc();
      log.warn({ ...ids, trips: change.trips, for_ms: change.breakerForMs }, 'a breaker opened');
    }
    if (change.recovered) {
      metrics.probesRecovered.inc();
      log.info(ids, 'a breaker closed: the endpoint answers again');
    }
    if (change.paused) {
      metrics.paused.inc();
      log.info({ ...ids, for_ms: change.pausedForMs }, 'an endpoint asked for a pause');
    }
    if (change.disabled) {
      metrics.disabled.failing.inc();
      log.warn(ids, 'an endpoint has done nothing but fail for days: it is disabled');
    }
  }
}
