/** One question to the limiter of an endpoint's rate: for many deliveries at once. */
export interface RateAsk {
  endpointId: string;
  /** Version of the endpoint's slots that the asker knows. */
  slotVersion: number;
  ratePerSecond: number;
  burst: number;
  /** How many that have waited in a slot want to go now; they go first. */
  waited: number;
  /** How many that have not waited want to go now. */
  fresh: number;
  /** How many want only a slot. */
  slots: number;
  /** Spacing of the slots, ms. */
  slotEveryMs: number;
  /** Slots begin after this, ms: the rest of a cooldown or a pause; 0 without one. */
  slotsAfterMs: number;
  /** The longest wait for a token that is waited in the process, 0 to 1000 ms. */
  maxWaitMs: number;
}

export interface RateAnswer {
  /** Delays, ms, of the first `go.length` of waited and fresh, in that order: a token is taken for each. */
  go: number[];
  /** Distinct moments, ms from now, for the rest of waited and fresh, then for `slots`. */
  slots: number[];
  /** End of the slots given out, ms from now; 0 when none lies ahead. */
  horizonMs: number;
}

/** Keeps the rates of endpoints. Rejects only when it cannot learn which slots are given out. */
export interface RateLimiter {
  /** Answers in the order of the asks; several may be about one endpoint. */
  ask(asks: readonly RateAsk[]): Promise<RateAnswer[]>;
}

/**
 * The rate of one endpoint: a token bucket for what goes, and the end of the slots that were given to what waits. Moments are µs of one
 * clock, durations µs. `lib/broker/rate-buckets.ts` has the same rules as a script for Redis; a test drives both with the same questions.
 */
export interface Bucket {
  /** Below 0 while sends are promised that lie ahead. */
  tokens: number;
  /** The moment of `tokens`. */
  at: number;
  ratePerSecond: number;
  burst: number;
  slotVersion: number;
  /** The last slot given; in the past when nothing waits. */
  horizon: number;
  /** When something that had waited was last heard of: while slots lie ahead, somebody comes for each of them. */
  heardAt: number;
}

export type Because =
  /** The bucket is missing, or of an older slot version. */
  | 'unknown'
  /** The asker was served elsewhere for a while: what the bucket holds is not the whole truth. */
  | 'away'
  /** Slots lie ahead for which nobody comes: they may have ended otherwise. */
  | 'suspect';

/** A RateAsk in the bucket's units, and what the asker knows besides. */
export interface BucketAsk {
  slotVersion: number;
  ratePerSecond: number;
  burst: number;
  waited: number;
  fresh: number;
  slots: number;
  everyUs: number;
  afterUs: number;
  maxWaitUs: number;
  /** How far ahead the latest send lies that the asker was promised: a bucket that was lost does not promise that time again. */
  owedUs: number;
  /** End of the slots that the database knows, and why it was asked. */
  known: { because: Because; horizonUs: number } | null;
}

export type BucketReply =
  | { kind: 'answered'; goUs: number[]; slotsUs: number[]; horizonUs: number }
  /** Nothing was taken or given; ask again with what the database knows. */
  | { kind: 'needs_horizon'; because: 'unknown' | 'suspect' };

/** Without a cooldown, slots begin where waiting in the process ends. */
export const SLOTS_BEGIN_AFTER_US = 1_000_000;
/** A horizon nearer than this is not worth a question to the database. */
export const SUSPECT_AHEAD_US = 5_000_000;
/** Nobody came for a slot for at least this long, and for three slots. */
export const SUSPECT_SILENCE_US = 2_000_000;
/** Two messages take times that differ by less than this: below it, what the asker was promised says nothing against a bucket. */
export const OWED_SLACK_US = 50_000;

const MAX_EVERY_US = 3_600e6;
const MAX_AFTER_US = 366 * 86_400e6;

/**
 * Slots are whole µs apart, at least one. They are an hour apart at most, and begin within a year: a slot is only the moment to ask again,
 * and what is later than that may as well ask in between.
 */
export function toBucketAsk(ask: RateAsk, { owedUs, known }: Pick<BucketAsk, 'owedUs' | 'known'>): BucketAsk {
  const { slotVersion, ratePerSecond, burst, waited, fresh, slots } = ask;
  return {
    slotVersion,
    ratePerSecond,
    burst,
    waited,
    fresh,
    slots,
    everyUs: Math.min(Math.max(Math.round(ask.slotEveryMs * 1_000), 1), MAX_EVERY_US),
    afterUs: Math.min(Math.ceil(ask.slotsAfterMs * 1_000), MAX_AFTER_US),
    maxWaitUs: Math.floor(ask.maxWaitMs * 1_000),
    owedUs,
    known,
  };
}

/** Answers one question at `now`, µs. The bucket that is returned is the one to keep; it is the same when the reply asks back. */
export function askBucket(
  bucket: Bucket | null,
  ask: BucketAsk,
  now: number,
): { bucket: Bucket | null; reply: BucketReply } {
  if (ask.known === null) {
    const because =
      bucket === null || bucket.slotVersion < ask.slotVersion
        ? 'unknown'
        : suspect(bucket, ask, now)
          ? 'suspect'
          : null;
    if (because) return { bucket, reply: { kind: 'needs_horizon', because } };
  }
  const kept = refilled(bucket, ask, now);
  correct(kept, ask, { now, begun: bucket === null });
  if (ask.waited > 0) kept.heardAt = now;
  const goUs = takeTokens(kept, ask, now);
  const slotsUs = giveSlots(kept, ask, { now, count: ask.waited + ask.fresh + ask.slots - goUs.length });
  return {
    bucket: kept,
    reply: { kind: 'answered', goUs, slotsUs, horizonUs: Math.max(0, kept.horizon - now) },
  };
}

// Who asks with an older version has older limits too, and the database would be asked about rows that are no longer timed by it.
function suspect(bucket: Bucket, ask: BucketAsk, now: number): boolean {
  return (
    ask.waited === 0 &&
    ask.fresh + ask.slots > 0 &&
    ask.slotVersion >= bucket.slotVersion &&
    bucket.horizon - now > SUSPECT_AHEAD_US &&
    now - bucket.heardAt > Math.max(SUSPECT_SILENCE_US, 3 * ask.everyUs)
  );
}

/**
 * The bucket at `now`, with the limits of the newest version. One that was lost begins with a single token: a full one might be the second
 * burst within a second.
 */
function refilled(bucket: Bucket | null, ask: BucketAsk, now: number): Bucket {
  const { ratePerSecond, burst, slotVersion } = ask;
  if (bucket === null)
    return { tokens: 1, at: now, ratePerSecond, burst, slotVersion, horizon: 0, heardAt: now };
  const elapsed = Math.max(0, now - bucket.at);
  const tokens = Math.min(bucket.burst, bucket.tokens + (elapsed * bucket.ratePerSecond) / 1e6);
  const heardAt = Math.min(bucket.heardAt, now);
  if (slotVersion < bucket.slotVersion) return { ...bucket, tokens, at: now, heardAt };
  const newer = slotVersion > bucket.slotVersion;
  return {
    tokens: Math.min(burst, rescaled(tokens, bucket.ratePerSecond, ratePerSecond)),
    at: now,
    ratePerSecond,
    burst,
    slotVersion,
    horizon: newer ? 0 : bucket.horizon,
    heardAt: newer ? now : heardAt,
  };
}

// What is promised keeps its moments: a second's debt stays a second's, at whatever rate.
function rescaled(tokens: number, from: number, to: number): number {
  return tokens < 0 && from !== to ? (tokens * to) / from : tokens;
}

/** Takes what the asker knows into account. */
function correct(
  bucket: Bucket,
  { known, owedUs, slotVersion }: BucketAsk,
  { now, begun }: { now: number; begun: boolean },
): void {
  if (known?.because === 'away') bucket.tokens = Math.min(bucket.tokens, 1);
  const owed = begun ? owedUs : owedUs - OWED_SLACK_US;
  if (owed > 0) bucket.tokens = Math.min(bucket.tokens, -(owed * bucket.ratePerSecond) / 1e6);
  if (known === null || slotVersion < bucket.slotVersion) return;
  // Slots given a moment ago are not written yet, so the database always knows a little less. Much less is another matter.
  const stale = known.because === 'suspect' && known.horizonUs * 2 < bucket.horizon - now;
  bucket.horizon = stale ? now + known.horizonUs : Math.max(bucket.horizon, now + known.horizonUs);
  if (known.because === 'suspect') bucket.heardAt = now;
}

/** Those that have waited go first; while slots lie ahead, one that has not waited must not go before them. */
function takeTokens(bucket: Bucket, { waited, fresh, maxWaitUs }: BucketAsk, now: number): number[] {
  const wanted = bucket.horizon - now > maxWaitUs ? waited : waited + fresh;
  const go: number[] = [];
  while (go.length < wanted) {
    const delay = Math.ceil(Math.max(0, ((1 - bucket.tokens) * 1e6) / bucket.ratePerSecond));
    if (delay > maxWaitUs) break;
    bucket.tokens -= 1;
    go.push(delay);
  }
  return go;
}

function giveSlots(
  bucket: Bucket,
  { everyUs, afterUs }: BucketAsk,
  { now, count }: { now: number; count: number },
): number[] {
  if (count === 0) return [];
  if (bucket.horizon <= now) bucket.heardAt = now;
  const base = Math.max(bucket.horizon, now + (afterUs > 0 ? afterUs : SLOTS_BEGIN_AFTER_US));
  bucket.horizon = base + count * everyUs;
  return Array.from({ length: count }, (_, place) => base + (place + 1) * everyUs - now);
}
