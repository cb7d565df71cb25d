import { capShare, type Share } from '../../lib/domain/cap-share.ts';
import { judgeClaim } from '../../lib/domain/claim-verdict.ts';
import { LOCAL_WAIT_MS } from '../../lib/domain/limits.ts';
import { pause } from '../../lib/runtime/pause.ts';
import type { Claim } from '../../lib/store/claims.ts';
import { type AttemptContext, attempt, type Job, notSent, record } from './attempt.ts';
import type { EndpointStates, Hold } from './endpoint-state.ts';
import { Latencies } from './latencies.ts';
import { ReadyQueue } from './ready-queue.ts';
import { Throughput } from './throughput.ts';
import { UNUSABLE_DELAY_MS, Unsent } from './unsent.ts';

/** A release that comes back at once would be claimed at once by the process that could not use it. */
const RELEASE_DELAY_MS = 50;
/** What an endpoint that cannot be sent to may have open; its attempts end at once. */
const UNUSABLE_CAP = 1;
/** What is assumed of an endpoint that has not answered yet: what exceeds its cap must not share a wake-up. */
const UNKNOWN_LATENCY_MS = 100;
/** A send that has been open for this long makes its endpoint slow, whatever it was before. */
const SLOW_SEND_MS = 1_000;

export interface WorkshopOptions extends Omit<AttemptContext, 'release'> {
  states: EndpointStates;
  maxInFlight: number;
  maxPayloadBytes: number;
  /** This process's part of what endpoints allow the whole fleet. */
  share: () => Share;
  /** The process has room again. */
  onRoom: () => void;
}

/**
 * Where leased deliveries pass the gates and are sent, or are turned away: the breaker, the pause, the endpoint's cap and the process's slots, the rate, in
 * that order, so that nothing that is blocked further on has spent a token. Every way out of it writes an outcome or gives the lease back.
 */
export class Workshop {
  readonly #options: WorkshopOptions;
  readonly #context: AttemptContext;
  readonly #queue: ReadyQueue<Job>;
  readonly #latencies = new Latencies();
  readonly #throughput = new Throughput();
  readonly #unsent: Unsent;
  /** Since when each open request has been open (performance.now()). */
  readonly #sending = new Map<Job, number>();
  /** Deliveries that have a slot and wait for a token. */
  #waitingForToken = 0;
  #starting = false;
  #stopping = false;
  #idle: (() => void)[] = [];

  constructor(options: WorkshopOptions) {
    this.#options = options;
    this.#queue = new ReadyQueue({
      maxInFlight: options.maxInFlight,
      isSlow: (endpointId) => this.#latencies.isSlow(endpointId),
    });
    this.#unsent = new Unsent({ ...options, onIdle: () => this.#noteIdle() });
    this.#context = { ...options, release: (job) => this.#unsent.release(job, RELEASE_DELAY_MS) };
  }

  get inFlight(): number {
    return this.#queue.inFlight;
  }

  /** See `ReadyQueue.quickInFlight`. */
  get quickInFlight(): number {
    return this.#queue.quickInFlight;
  }

  get ready(): number {
    return this.#queue.ready;
  }

  /** Whether more may be taken in that can wait its turn: what is turned away must cost its neighbours nothing. */
  get takesBulk(): boolean {
    return !this.#unsent.tooMany;
  }

  /**
   * How many more deliveries can be taken in, given how many are being claimed: what has a slot now, and what half a second's completions will
   * make room for. More would wait past the local wait and have to be given back.
   */
  wanted(claiming: number): number {
    if (this.#stopping || this.#options.settler.stuck) return 0;
    const ahead = Math.min(2 * this.#options.maxInFlight, this.#throughput.perSecond(performance.now()) / 2);
    const taken = this.#queue.startable + this.#unsent.asking + claiming;
    const room = Math.floor(this.#queue.freeSlots + ahead) - taken;
    // Claiming one row for each row that ends costs ten times as much as claiming many.
    const worthwhile = Math.min(32, this.#options.maxInFlight / 4, ahead / 4);
    return room >= worthwhile ? Math.max(0, room) : 0;
  }

  take(jobs: readonly Job[]): void {
    for (const job of jobs) this.#takeOne(job);
  }

  /** Gives back leases of which nothing more is known. */
  giveBack(claims: readonly Claim[]): void {
    for (const claim of claims) this.#unsent.releaseClaim(claim, UNUSABLE_DELAY_MS);
  }

  /** Turns away what has waited for over a second; call it several times a second. */
  expireWaits(): void {
    const now = performance.now();
    for (const [job, since] of this.#sending) {
      if (now - since > SLOW_SEND_MS) this.#queue.setSlow(job.claim.endpointId, true);
    }
    for (const { item, endpointFull } of this.#queue.takeOverdue(now - LOCAL_WAIT_MS)) {
      if (endpointFull) this.#overflow(item, 'concurrency');
      else this.#unsent.release(item, RELEASE_DELAY_MS);
    }
  }

  /** Starts nothing more: gives back what waits, and resolves when what is being sent has ended or the limit has passed. */
  async stop(limitMs: number): Promise<void> {
    this.#stopping = true;
    for (const job of this.#queue.takeAll()) this.#unsent.release(job, 0);
    if (this.#isIdle) return;
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
    if (verdict.kind === 'end') return this.#unsent.end(job, verdict.reason, verdict.loud);
    if (verdict.kind === 'oversize') {
      const result = notSent('oversize', `the payload of ${claim.payloadBytes} bytes exceeds the limit`);
      return void record(this.#context, job, result, performance.now());
    }
    if (this.#stopping) return this.#unsent.release(job, 0);
    if ('enabled' in endpoint && !endpoint.enabled) return this.#unsent.defer(job, 'disabled', 'parked');
    this.#options.states.learnFromClaim(claim, job.leasedAt);
    const hold = this.#options.states.hold(claim.endpointId);
    if (hold && hold.reason !== 'probe_wanted') this.#turnAway(job, hold);
    else this.#admit(job);
  }

  /** What its endpoint's breaker or pause holds back waits until that ends, or without a moment. */
  #turnAway(job: Job, hold: Exclude<Hold, { reason: 'probe_wanted' }>): void {
    if (hold.forMs === Number.POSITIVE_INFINITY) this.#unsent.defer(job, 'paused', 'parked');
    else
      this.#unsent.deferToSlot(job, hold.reason, { everyMs: job.endpoint.slotEveryMs, afterMs: hold.forMs });
  }

  #admit(job: Job): void {
    const { claim, endpoint } = job;
    // Those who have waited go first: a new delivery does not overtake the moments that others were given.
    if (!claim.waited && this.#options.rate.hasQueue(endpoint)) return this.#overflow(job, 'rate_limit');
    const admission = this.#queue.admit(claim.endpointId, this.#capOf(job), job, performance.now());
    if (admission === 'start') this.#begin(job);
    else if (admission === 'full') this.#overflow(job, 'concurrency');
  }

  /** Takes a delivery that has a slot of the process through the gates that are left. Written with as few turns as it can be: every delivery passes here. */
  #begin(job: Job): void {
    // Much may have been learned of the endpoint while it waited for its turn.
    const hold = this.#options.states.hold(job.claim.endpointId);
    if (!hold) return this.#takeToken(job);
    if (hold.reason === 'probe_wanted') return void this.#probe(job);
    this.#turnAway(job, hold);
    this.#leave(job);
  }

  async #probe(job: Job): Promise<void> {
    try {
      job.probe = await this.#options.health.claimProbe(job.claim);
    } catch (error) {
      return this.#unanswered(job, error);
    }
    if (job.probe) return this.#takeToken(job);
    this.#unsent.deferToSlot(job, 'probe', { everyMs: job.endpoint.slotEveryMs, afterMs: 0 });
    this.#leave(job);
  }

  #takeToken(job: Job): void {
    const { rate, maxInFlight } = this.#options;
    // Whoever waits for a token holds a slot of the process: not too many may.
    const maxWaitMs = this.#waitingForToken < maxInFlight / 4 ? LOCAL_WAIT_MS : 0;
    rate.take(job.endpoint, { waited: job.claim.waited, maxWaitMs }, (verdict) => {
      if (verdict.kind === 'unanswered') return this.#unanswered(job, verdict.error);
      if (verdict.kind === 'go')
        return verdict.delayMs > 0 ? void this.#await(job, verdict.delayMs) : void this.#send(job);
      this.#unsent.defer(job, 'rate_limit', verdict.delayMs);
      this.#leave(job);
    });
  }

  async #await(job: Job, delayMs: number): Promise<void> {
    this.#waitingForToken += 1;
    await pause(delayMs);
    this.#waitingForToken -= 1;
    void this.#send(job);
  }

  async #send(job: Job): Promise<void> {
    if (this.#stopping) {
      this.#unsent.release(job, 0);
      return this.#leave(job);
    }
    const startedAt = performance.now();
    this.#sending.set(job, startedAt);
    await attempt(this.#context, job);
    this.#sending.delete(job);
    this.#noteLatency(job.claim.endpointId, performance.now() - startedAt);
    this.#throughput.note();
    this.#leave(job);
  }

  #unanswered(job: Job, error: unknown): void {
    this.#options.log.warn({ err: error, delivery_id: job.claim.deliveryId }, 'a gate did not answer');
    this.#unsent.release(job, UNUSABLE_DELAY_MS);
    this.#leave(job);
  }

  /** Gives the slot back. */
  #leave(job: Job): void {
    this.#queue.finished(job.claim.endpointId);
    this.#startNext();
  }

  #noteLatency(endpointId: string, latencyMs: number): void {
    this.#latencies.observe(endpointId, latencyMs);
    this.#queue.setSlow(endpointId, this.#latencies.isSlow(endpointId) === true);
  }

  #startNext(): void {
    if (this.#stopping) return this.#noteIdle();
    // A delivery that is turned away gives its slot back while the next ones are being begun.
    if (this.#starting) return;
    this.#starting = true;
    for (let job = this.#queue.next(); job; job = this.#queue.next()) this.#begin(job);
    this.#starting = false;
    this.#options.onRoom();
  }

  get #isIdle(): boolean {
    return this.#queue.inFlight === 0 && this.#unsent.asking === 0;
  }

  #noteIdle(): void {
    if (this.#stopping && this.#isIdle) for (const resolve of this.#idle.splice(0)) resolve();
  }

  /** What exceeds what its endpoint can take gets a moment of its own, as far apart as the endpoint has lately been able to take them. */
  #overflow(job: Job, reason: 'concurrency' | 'rate_limit'): void {
    const { slotEveryMs } = job.endpoint;
    const latencyMs = this.#latencies.of(job.claim.endpointId) ?? UNKNOWN_LATENCY_MS;
    const capEveryMs = latencyMs / maxInFlightOf(job);
    const everyMs = Math.max(slotEveryMs, capEveryMs);
    this.#unsent.deferToSlot(job, capEveryMs > slotEveryMs ? 'concurrency' : reason, { everyMs, afterMs: 0 });
  }

  #capOf(job: Job): number {
    return capShare(maxInFlightOf(job), this.#options.share(), job.claim.endpointId);
  }
}

function maxInFlightOf({ endpoint }: Job): number {
  return 'maxInFlight' in endpoint ? endpoint.maxInFlight : UNUSABLE_CAP;
}
