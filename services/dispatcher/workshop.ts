import { judgeClaim } from '../../lib/domain/claim-verdict.ts';
import { LOCAL_WAIT_MS } from '../../lib/domain/limits.ts';
import type { DeferralReason } from '../../lib/domain/vocabulary.ts';
import type { Claim } from '../../lib/store/claims.ts';
import { type AttemptContext, attempt, type Job, notSent, record } from './attempt.ts';
import { Pace } from './pace.ts';
import { ReadyQueue } from './ready-queue.ts';
import { Throughput } from './throughput.ts';

const DISABLED_RECHECK_MS = 60_000;
/** A release that comes back at once would be claimed at once by the process that could not use it. */
const RELEASE_DELAY_MS = 50;
const UNUSABLE_DELAY_MS = 1_000;
/** What an endpoint that cannot be sent to may have open; its attempts end at once. */
const UNUSABLE_CAP = 1;

export interface WorkshopOptions extends Omit<AttemptContext, 'release'> {
  maxInFlight: number;
  maxPayloadBytes: number;
  /** The process has room again. */
  onRoom: () => void;
}

/**
 * Where leased deliveries wait for their turn, are sent, or are turned away: the process's slots, each endpoint's cap and the local wait. Every way
 * out of it writes an outcome or gives the lease back.
 */
export class Workshop {
  readonly #options: WorkshopOptions;
  readonly #context: AttemptContext;
  readonly #queue: ReadyQueue<Job>;
  readonly #pace = new Pace();
  readonly #throughput = new Throughput();
  #stopping = false;
  #idle: (() => void)[] = [];

  constructor(options: WorkshopOptions) {
    this.#options = options;
    this.#queue = new ReadyQueue({ maxInFlight: options.maxInFlight });
    this.#context = { ...options, release: (job) => this.#release(job.claim, RELEASE_DELAY_MS) };
  }

  get inFlight(): number {
    return this.#queue.inFlight;
  }

  get ready(): number {
    return this.#queue.ready;
  }

  /**
   * How many more deliveries can be taken in, given how many are being claimed: what has a slot now, and what half a second's completions will
   * make room for. More would wait past the local wait and have to be given back.
   */
  wanted(claiming: number): number {
    if (this.#stopping || this.#options.settler.stuck) return 0;
    const ahead = Math.min(2 * this.#options.maxInFlight, this.#throughput.perSecond(performance.now()) / 2);
    const room = Math.floor(this.#queue.freeSlots + ahead) - this.#queue.ready - claiming;
    // Claiming one row for each row that ends costs ten times as much as claiming many.
    const worthwhile = Math.min(32, this.#options.maxInFlight / 4, ahead / 4);
    return room >= worthwhile ? Math.max(0, room) : 0;
  }

  take(jobs: readonly Job[]): void {
    for (const job of jobs) this.#takeOne(job);
  }

  /** Gives back leases of which nothing more is known. */
  giveBack(claims: readonly Claim[]): void {
    for (const claim of claims) this.#release(claim, UNUSABLE_DELAY_MS);
  }

  /** Turns away what has waited for over a second; call it several times a second. */
  expireWaits(): void {
    for (const { item, endpointFull } of this.#queue.takeOverdue(performance.now() - LOCAL_WAIT_MS)) {
      if (endpointFull) this.#defer(item, 'concurrency', this.#nextDelay(item));
      else this.#release(item.claim, RELEASE_DELAY_MS);
    }
  }

  /** Starts nothing more: gives back what waits, and resolves when what is being sent has ended or the limit has passed. */
  async stop(limitMs: number): Promise<void> {
    this.#stopping = true;
    for (const job of this.#queue.takeAll()) this.#release(job.claim, 0);
    if (this.#queue.inFlight === 0) return;
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, limitMs);
      this.#idle.push(() => {
        clearTimeout(timer);
        resolve();
      });
    });
  }

  #takeOne(job: Job): void {
    const { claim, endpoint } = job;
    const verdict = judgeClaim(
      {
        eventMissing: claim.eventMissing,
        endpointMissing: claim.endpointVersion === null,
        endpointDeleted: claim.endpointDeleted,
        expired: claim.expired,
        payloadBytes: claim.payloadBytes,
      },
      { maxPayloadBytes: this.#options.maxPayloadBytes },
    );
    if (verdict.kind === 'end') return this.#end(job, verdict.reason, verdict.loud);
    if (verdict.kind === 'oversize') {
      return record(
        this.#context,
        job,
        notSent('oversize', `the payload of ${claim.payloadBytes} bytes exceeds the limit`),
        performance.now(),
      );
    }
    if (this.#stopping) return this.#release(claim, 0);
    if ('enabled' in endpoint && !endpoint.enabled)
      return this.#defer(job, 'disabled', DISABLED_RECHECK_MS * (0.5 + Math.random()));
    this.#admit(job);
  }

  #admit(job: Job): void {
    const { claim } = job;
    const now = performance.now();
    // Those who have waited go first: a new delivery does not overtake the moments that others were given.
    if (claim.deferralReason === null && this.#pace.hasQueue(claim.endpointId, now)) {
      return this.#defer(job, 'concurrency', this.#nextDelay(job));
    }
    const admission = this.#queue.admit(claim.endpointId, capOf(job), job, now);
    if (admission === 'start') this.#start(job);
    else if (admission === 'full') this.#defer(job, 'concurrency', this.#nextDelay(job));
  }

  #start(job: Job): void {
    const startedAt = performance.now();
    void attempt(this.#context, job).then(() => {
      this.#pace.observe(job.claim.endpointId, performance.now() - startedAt);
      this.#throughput.note();
      this.#queue.finished(job.claim.endpointId);
      this.#startNext();
    });
  }

  #startNext(): void {
    if (!this.#stopping) {
      for (let job = this.#queue.next(); job; job = this.#queue.next()) this.#start(job);
      this.#options.onRoom();
    } else if (this.#queue.inFlight === 0) {
      for (const resolve of this.#idle.splice(0)) resolve();
    }
  }

  #nextDelay(job: Job): number {
    return this.#pace.nextDelay(job.claim.endpointId, capOf(job), performance.now());
  }

  #end(job: Job, reason: 'refused' | 'cancelled' | 'expired', loud: boolean): void {
    const { claim } = job;
    const { metrics, settler, log } = this.#options;
    const ids = { delivery_id: claim.deliveryId, event_id: claim.eventId, endpoint_id: claim.endpointId };
    if (loud) log.error(ids, 'the event or endpoint of a delivery is missing: it ends refused');
    metrics.dead[reason].inc();
    settler.finish({ deliveryId: claim.deliveryId, token: claim.token, status: 'dead', reason, send: null });
  }

  #defer(job: Job, reason: DeferralReason, delayMs: number): void {
    const { claim } = job;
    this.#options.metrics.deferred[reason].inc();
    this.#options.metrics.attempts.deferred.inc();
    this.#options.settler.keep({
      kind: 'deferral',
      deliveryId: claim.deliveryId,
      token: claim.token,
      delayMs,
      reason,
      repeated: claim.deferralReason === reason,
    });
  }

  #release(claim: Claim, delayMs: number): void {
    this.#options.metrics.released.inc();
    this.#options.settler.keep({
      kind: 'release',
      deliveryId: claim.deliveryId,
      token: claim.token,
      delayMs,
    });
  }
}

function capOf(job: Job): number {
  return 'maxInFlight' in job.endpoint ? job.endpoint.maxInFlight : UNUSABLE_CAP;
}
