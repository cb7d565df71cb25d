import type { DeferralReason } from '../../lib/domain/vocabulary.ts';
import type { DeliveryMetrics } from '../../lib/metrics/delivery.ts';
import type { Logger } from '../../lib/runtime/log.ts';
import type { Claim } from '../../lib/store/claims.ts';
import type { Job } from './attempt.ts';
import { DeferralBudget } from './deferral-budget.ts';
import type { HealthReporter } from './health-reporter.ts';
import type { RateGate, SlotWish } from './rate-gate.ts';
import type { Settler } from './settler.ts';

/** After this a lease is given back of which something could not be learned; sooner it would most likely be the same again. */
export const UNUSABLE_DELAY_MS = 1_000;

export interface UnsentOptions {
  settler: Settler;
  health: HealthReporter;
  rate: RateGate;
  metrics: DeliveryMetrics;
  log: Logger;
  /** Nothing is on its way out any more. */
  onIdle: () => void;
}

/**
 * The ways in which a leased delivery leaves the process unsent: it ends, it is deferred to a moment of its own, parked, or released. None of
 * them spends an attempt, and each gives back the probe that the delivery may hold.
 */
export class Unsent {
  readonly #options: UnsentOptions;
  readonly #budget = new DeferralBudget();
  #asking = 0;

  constructor(options: UnsentOptions) {
    this.#options = options;
  }

  /** Deliveries that are turned away and do not know yet until when. */
  get asking(): number {
    return this.#asking;
  }

  /** Whether so many were turned away that others should come first for a moment. */
  get tooMany(): boolean {
    return this.#budget.exhausted;
  }

  end({ claim }: Job, reason: 'refused' | 'cancelled' | 'expired', loud: boolean): void {
    const { metrics, settler, log } = this.#options;
    const ids = { delivery_id: claim.deliveryId, event_id: claim.eventId, endpoint_id: claim.endpointId };
    if (loud) log.error(ids, 'the event or endpoint of a delivery is missing: it ends refused');
    metrics.dead[reason].inc();
    settler.finish({ deliveryId: claim.deliveryId, token: claim.token, status: 'dead', reason, send: null });
  }

  /** Asks for a slot and defers the delivery to it. */
  deferToSlot(job: Job, reason: DeferralReason, wish: SlotWish): void {
    this.#asking += 1;
    const asked = this.#options.rate.slot(job.endpoint, wish).then(
      (delayMs) => this.defer(job, reason, delayMs),
      (error: unknown) => {
        this.#options.log.warn({ err: error, delivery_id: job.claim.deliveryId }, 'no slot was to be had');
        this.release(job, UNUSABLE_DELAY_MS);
      },
    );
    void asked.finally(() => {
      this.#asking -= 1;
      if (this.#asking === 0) this.#options.onIdle();
    });
  }

  /** Defers the delivery by so many ms, which are its slot, or parks it. */
  defer(job: Job, reason: DeferralReason, wait: number | 'parked'): void {
    const { claim, endpoint } = job;
    const { metrics, settler } = this.#options;
    this.#giveBackProbe(job);
    this.#budget.note();
    metrics.deferred[reason].inc();
    metrics.attempts.deferred.inc();
    settler.defer({
      deliveryId: claim.deliveryId,
      token: claim.token,
      endpointId: claim.endpointId,
      slotVersion: endpoint.slotVersion,
      reason,
      repeated: claim.deferralReason === reason,
      wait,
    });
  }

  release(job: Job, delayMs: number): void {
    this.#giveBackProbe(job);
    this.releaseClaim(job.claim, delayMs);
  }

  /** Gives back a lease of which nothing more is known. */
  releaseClaim({ deliveryId, token }: Claim, delayMs: number): void {
    this.#options.metrics.released.inc();
    this.#options.settler.keep({ kind: 'release', deliveryId, token, delayMs });
  }

  #giveBackProbe(job: Job): void {
    if (!job.probe) return;
    job.probe = false;
    this.#options.health.giveBackProbe(job.claim);
  }
}
