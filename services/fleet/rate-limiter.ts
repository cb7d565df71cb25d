import { LRUCache } from 'lru-cache';
import type { RedisLink } from '../../lib/broker/link.ts';
import { askRateBuckets } from '../../lib/broker/rate-buckets.ts';
import {
  askBucket,
  type Because,
  type Bucket,
  type BucketAsk,
  type BucketReply,
  type RateAnswer,
  type RateAsk,
  type RateLimiter,
  toBucketAsk,
} from '../../lib/domain/rate-bucket.ts';
import type { RateMetrics } from '../../lib/metrics/rate.ts';

const MAX_ENDPOINTS = 10_000;
/** Redis that did not answer is left alone for this long, then asked by one call. */
const LEAVE_ALONE_MS = 1_000;

export interface SlotsOf {
  endpointId: string;
  slotVersion: number;
  slotEveryMs: number;
}

export interface FleetRateLimiterOptions {
  /** Null when no Redis is configured. */
  link: RedisLink | null;
  /** End of the slots in which an endpoint's deliveries wait, ms from now, by endpoint; none where nothing waits. */
  readHorizons: (endpoints: readonly SlotsOf[]) => Promise<Map<string, number>>;
  /** How many processes share the rates while each must keep to them alone. */
  liveDispatchers: () => number;
  metrics: RateMetrics;
  /** Told when this process begins to keep to its part of the rates by itself, and why. */
  onFallback?: (reason: string) => void;
  /** An answer of Redis that is later than this is not waited for. */
  timeoutMs?: number;
}

interface Question {
  ask: RateAsk;
  known: BucketAsk['known'];
  answer: RateAnswer | null;
}

interface Wanting {
  question: Question;
  because: Because;
}

type Answered = BucketReply & { kind: 'answered' };

/** Puts questions to buckets; null when these buckets cannot be asked. */
type Keeper = (questions: readonly Question[]) => Promise<BucketReply[] | null>;

/**
 * Keeps the endpoints' rates for the fleet in Redis, and while Redis does not answer, this process's equal part of them by itself. A bucket
 * that knows nothing of an endpoint's slots learns from the database where they end before it gives out new ones.
 */
export class FleetRateLimiter implements RateLimiter {
  readonly #options: FleetRateLimiterOptions;
  readonly #timeoutMs: number;
  /** Buckets of this process's own; an endpoint that has one was not yet asked about in Redis since. */
  readonly #own = new LRUCache<string, Bucket>({ max: MAX_ENDPOINTS });
  /** The latest moment at which a promised send begins, by endpoint, where that was ahead: it outlives the bucket that promised it. */
  readonly #promised = new LRUCache<string, number>({ max: MAX_ENDPOINTS });
  readonly #reading = new Map<string, Promise<number>>();
  #leaveAloneUntil = Number.NEGATIVE_INFINITY;
  #trying = false;
  #byProcess = false;

  constructor(options: FleetRateLimiterOptions) {
    this.#options = options;
    this.#timeoutMs = options.timeoutMs ?? 250;
  }

  /** Answers in the order of the asks. Rejects when the database must be asked and does not answer. */
  async ask(asks: readonly RateAsk[]): Promise<RateAnswer[]> {
    const questions = asks.map((ask): Question => ({ ask, known: null, answer: null }));
    await this.#askRedis(questions);
    const left = questions.filter(({ answer }) => answer === null);
    // What is learned on the way back to Redis would cost a bucket of our own its tokens.
    for (const question of left) if (question.known?.because === 'away') question.known = null;
    await this.#converse(left, 'process', async (open) => this.#askOwn(open));
    return questions.map(({ answer }) => answer!);
  }

  /** Puts the questions, and once more those about whose slots the buckets ask back. */
  async #converse(
    questions: readonly Question[],
    by: keyof RateMetrics['asks'],
    keeper: Keeper,
  ): Promise<void> {
    let open = questions;
    while (open.length > 0) {
      const sentAt = performance.now();
      const replies = await keeper(open);
      if (!replies) return;
      const again: Wanting[] = [];
      for (const [place, question] of open.entries()) {
        const reply = replies[place]!;
        if (reply.kind === 'needs_horizon') again.push({ question, because: reply.because });
        else {
          this.#note(question, reply, sentAt);
          this.#options.metrics.asks[by].inc();
        }
      }
      await this.#learn(again);
      open = again.map(({ question }) => question);
    }
  }

  // Counted from before the question was sent, a promise seems to lie a little nearer than it does, never farther.
  #note(question: Question, { goUs, slotsUs, horizonUs }: Answered, sentAt: number): void {
    const last = goUs.at(-1) ?? 0;
    if (last > 0) this.#promised.set(question.ask.endpointId, sentAt + toMs(last));
    question.answer = { go: goUs.map(toMs), slots: slotsUs.map(toMs), horizonMs: toMs(horizonUs) };
  }

  async #askRedis(questions: readonly Question[]): Promise<void> {
    const { link } = this.#options;
    if (!link) return;
    if (!link.up) return this.#fallBack('Redis is away');
    if (performance.now() < this.#leaveAloneUntil || (this.#byProcess && this.#trying)) return;
    this.#trying = true;
    try {
      const away = questions.filter(({ ask }) => this.#own.has(ask.endpointId));
      await this.#learn(away.map((question) => ({ question, because: 'away' })));
      await this.#converse(questions, 'redis', (open) => this.#askLink(link, open));
    } finally {
      this.#trying = false;
    }
  }

  async #askLink(link: RedisLink, questions: readonly Question[]): Promise<BucketReply[] | null> {
    const asks = questions.map(({ ask, known }) => ({
      endpointId: ask.endpointId,
      ask: toBucketAsk(ask, { owedUs: this.#owedUs(ask), known }),
    }));
    const call = askRateBuckets(link, asks);
    // An error counts however late it comes; an answer that is merely late is left to the link, which has a patience of its own.
    call.catch((error: unknown) => link.reportFailure(error));
    try {
      const replies = await within(call, this.#timeoutMs);
      this.#byProcess = false;
      for (const { ask, known } of questions) if (known?.because === 'away') this.#own.delete(ask.endpointId);
      return replies;
    } catch (error) {
      this.#leaveAloneUntil = performance.now() + LEAVE_ALONE_MS;
      this.#fallBack(error instanceof Error ? error.message : String(error));
      return null;
    }
  }

  #fallBack(reason: string): void {
    if (!this.#byProcess) this.#options.onFallback?.(reason);
    this.#byProcess = true;
  }

  #askOwn(questions: readonly Question[]): BucketReply[] {
    const live = Math.max(1, this.#options.liveDispatchers());
    return questions.map(({ ask, known }) => {
      const part = toBucketAsk(partOf(ask, live), { owedUs: this.#owedUs(ask), known });
      const { bucket, reply } = askBucket(this.#own.get(ask.endpointId) ?? null, part, nowUs());
      if (bucket) this.#own.set(ask.endpointId, bucket);
      return reply;
    });
  }

  #owedUs({ endpointId }: RateAsk): number {
    const until = this.#promised.get(endpointId);
    return until === undefined ? 0 : Math.max(0, Math.round((until - performance.now()) * 1_000));
  }

  /** Looks up in the database where the slots end, for all these in one query. */
  async #learn(wanting: readonly Wanting[]): Promise<void> {
    if (wanting.length === 0) return;
    this.#read(wanting.map(({ question }) => question.ask));
    await Promise.all(
      wanting.map(async ({ question, because }) => {
        const horizonMs = (await this.#reading.get(readingKey(question.ask))) ?? 0;
        // Slots that this process gave a moment ago may not be written yet.
        const ownUs = because === 'away' ? this.#ownHorizonUs(question.ask) : 0;
        question.known = { because, horizonUs: Math.max(0, Math.round(horizonMs * 1_000), ownUs) };
      }),
    );
  }

  /** Begins to read what nobody reads at the moment. */
  #read(asks: readonly RateAsk[]): void {
    const unread = new Map<string, RateAsk>();
    for (const ask of asks) {
      if (this.#reading.has(readingKey(ask))) continue;
      if (ask.slotVersion >= (unread.get(ask.endpointId)?.slotVersion ?? 0)) unread.set(ask.endpointId, ask);
    }
    if (unread.size === 0) return;
    this.#options.metrics.horizonsRead.inc(unread.size);
    const read = this.#options.readHorizons(
      [...unread.values()].map(({ endpointId, slotVersion, slotEveryMs }) => ({
        endpointId,
        slotVersion,
        slotEveryMs,
      })),
    );
    for (const ask of unread.values()) {
      const key = readingKey(ask);
      const horizon = read.then((horizons) => horizons.get(ask.endpointId) ?? 0);
      this.#reading.set(key, horizon);
      const done = () => this.#reading.delete(key);
      horizon.then(done, done);
    }
  }

  #ownHorizonUs({ endpointId, slotVersion }: RateAsk): number {
    const own = this.#own.peek(endpointId);
    return own?.slotVersion === slotVersion ? own.horizon - nowUs() : 0;
  }
}

/** An equal part of an endpoint's rate: together the parts keep to it, and their slots mesh. */
function partOf(ask: RateAsk, live: number): RateAsk {
  return {
    ...ask,
    ratePerSecond: ask.ratePerSecond / live,
    burst: Math.max(1, ask.burst / live),
    slotEveryMs: ask.slotEveryMs * live,
  };
}

function readingKey({ endpointId, slotVersion }: RateAsk): string {
  return `${endpointId} ${slotVersion}`;
}

function nowUs(): number {
  return Math.round(performance.now() * 1_000);
}

function toMs(us: number): number {
  return us / 1_000;
}

/** Rejects when the answer takes longer. */
function within<T>(call: Promise<T>, timeoutMs: number): Promise<T> {
  return new Promise((resolve, reject) => {
    const giveUp = () => reject(new Error(`no answer within ${timeoutMs} ms`));
    // After a pause of this process the timer is the first to run, while the answer lies in the socket: it is read before an immediate.
    const timer = setTimeout(() => setImmediate(giveUp), timeoutMs);
    call.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}
