import type { Redis } from 'ioredis';
import {
  type Because,
  type BucketAsk,
  type BucketReply,
  OWED_SLACK_US,
  SLOTS_BEGIN_AFTER_US,
  SUSPECT_AHEAD_US,
  SUSPECT_SILENCE_US,
} from '../domain/rate-bucket.ts';
import type { RedisLink } from './link.ts';

export interface EndpointAsk {
  endpointId: string;
  ask: BucketAsk;
}

// A bucket that was not asked for as long as this, or past its last slot for as long, holds nothing that a new one would not.
const KEEP_MS = 3_600_000;
const KEEP_AT_MOST_MS = 400 * 86_400_000;

const REDIS_CLOCK = `
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]`;

/**
 * `askBucket` of lib/domain/rate-bucket.ts, function by function, for one key after the other; the two must change together. It expects the
 * time in `now`. Buckets and questions are packed doubles: as text, which must have 17 digits to give back the same number, they cost twice
 * as much.
 */
export const BUCKET_SCRIPT = `
local BUCKET = '<ddddddd'
local QUESTION = '<dddddddddddd'
local UNKNOWN, AWAY, SUSPECT = 1, 2, 3

local function load(key)
  local packed = redis.call('GET', key)
  if not packed or #packed ~= 56 then return nil end
  local tokens, at, rate, burst, version, horizon, heard = struct.unpack(BUCKET, packed)
  return { tokens = tokens, at = at, rate = rate, burst = burst, version = version, horizon = horizon, heard = heard }
end

local function save(key, bucket)
  local full = (bucket.burst - bucket.tokens) / bucket.rate * 1000
  local wanted = math.max(${KEEP_MS}, full, (bucket.horizon - now) / 1000 + ${KEEP_MS})
  local packed = struct.pack(BUCKET, bucket.tokens, bucket.at, bucket.rate, bucket.burst, bucket.version, bucket.horizon,
    bucket.heard)
  redis.call('SET', key, packed, 'PX', string.format('%d', math.min(math.ceil(wanted), ${KEEP_AT_MOST_MS})))
end

local function parse(at)
  local version, rate, burst, waited, fresh, slots, every, after, max_wait, owed, because, known =
    struct.unpack(QUESTION, ARGV[1], at)
  return { version = version, rate = rate, burst = burst, waited = waited, fresh = fresh, slots = slots, every = every,
    after = after, max_wait = max_wait, owed = owed, because = because, known = known }
end

local function suspect(bucket, ask)
  return ask.waited == 0 and ask.fresh + ask.slots > 0 and ask.version >= bucket.version
    and bucket.horizon - now > ${SUSPECT_AHEAD_US}
    and now - bucket.heard > math.max(${SUSPECT_SILENCE_US}, 3 * ask.every)
end

local function rescaled(tokens, from, to)
  if tokens < 0 and from ~= to then return tokens * to / from end
  return tokens
end

local function refilled(bucket, ask)
  if not bucket then
    return { tokens = 1, at = now, rate = ask.rate, burst = ask.burst, version = ask.version, horizon = 0, heard = now }
  end
  local elapsed = math.max(0, now - bucket.at)
  bucket.tokens = math.min(bucket.burst, bucket.tokens + elapsed * bucket.rate / 1000000)
  bucket.at = now
  bucket.heard = math.min(bucket.heard, now)
  if ask.version < bucket.version then return bucket end
  if ask.version > bucket.version then
    bucket.horizon = 0
    bucket.heard = now
  end
  bucket.tokens = math.min(ask.burst, rescaled(bucket.tokens, bucket.rate, ask.rate))
  bucket.rate, bucket.burst, bucket.version = ask.rate, ask.burst, ask.version
  return bucket
end

local function correct(bucket, ask, begun)
  if ask.because == AWAY then bucket.tokens = math.min(bucket.tokens, 1) end
  local owed = ask.owed
  if not begun then owed = owed - ${OWED_SLACK_US} end
  if owed > 0 then bucket.tokens = math.min(bucket.tokens, -(owed * bucket.rate) / 1000000) end
  if ask.because == 0 or ask.version < bucket.version then return end
  if ask.because == SUSPECT and ask.known * 2 < bucket.horizon - now then
    bucket.horizon = now + ask.known
  else
    bucket.horizon = math.max(bucket.horizon, now + ask.known)
  end
  if ask.because == SUSPECT then bucket.heard = now end
end

local function take_tokens(bucket, ask, reply)
  local wanted = ask.waited + ask.fresh
  if bucket.horizon - now > ask.max_wait then wanted = ask.waited end
  local taken = 0
  while taken < wanted do
    local delay = math.ceil(math.max(0, (1 - bucket.tokens) * 1000000 / bucket.rate))
    if delay > ask.max_wait then break end
    bucket.tokens = bucket.tokens - 1
    taken = taken + 1
    reply[#reply + 1] = delay
  end
  return taken
end

local function give_slots(bucket, ask, count, reply)
  if count == 0 then return end
  if bucket.horizon <= now then bucket.heard = now end
  local after = ask.after > 0 and ask.after or ${SLOTS_BEGIN_AFTER_US}
  local base = math.max(bucket.horizon, now + after)
  bucket.horizon = base + count * ask.every
  for place = 1, count do reply[#reply + 1] = base + place * ask.every - now end
end

local function answer(key, ask)
  local bucket = load(key)
  if ask.because == 0 then
    if not bucket or bucket.version < ask.version then return { -UNKNOWN } end
    if suspect(bucket, ask) then return { -SUSPECT } end
  end
  local kept = refilled(bucket, ask)
  correct(kept, ask, not bucket)
  if ask.waited > 0 then kept.heard = now end
  local reply = { 0, 0 }
  local taken = take_tokens(kept, ask, reply)
  give_slots(kept, ask, ask.waited + ask.fresh + ask.slots - taken, reply)
  save(key, kept)
  reply[1] = taken
  reply[2] = math.max(0, kept.horizon - now)
  return reply
end

local replies = {}
for place, key in ipairs(KEYS) do replies[place] = answer(key, parse((place - 1) * 96 + 1)) end
return replies`;

/** How many go, the horizon, and the delays of those that go and then of the slots; or a single number below 0: why it asks back. */
type RawReply = number[];

const BECAUSE = { unknown: 1, away: 2, suspect: 3 } satisfies Record<Because, number>;

interface RateClient {
  relayRateBuckets(keys: number, ...rest: (string | Buffer)[]): Promise<RawReply[]>;
}

/**
 * Puts questions to the buckets that the fleet shares, all in one round trip. Several may be about one endpoint: they are answered in
 * order. Throws when Redis is away, and also when it is full: what cannot be remembered is not promised.
 */
export async function askRateBuckets(link: RedisLink, asks: readonly EndpointAsk[]): Promise<BucketReply[]> {
  const keys = asks.map(({ endpointId }) => rateKey(link, endpointId));
  const replies = await rateClient(link.client).relayRateBuckets(keys.length, ...keys, encodeAsks(asks));
  return replies.map(decodeReply);
}

export function rateKey(link: RedisLink, endpointId: string): string {
  return `${link.options.keyPrefix}relay:rate:${endpointId}`;
}

function rateClient(client: Redis): RateClient {
  if (!('relayRateBuckets' in client)) {
    client.defineCommand('relayRateBuckets', { lua: REDIS_CLOCK + BUCKET_SCRIPT });
  }
  return client as unknown as RateClient;
}

/** The script's one argument: twelve doubles for each question. */
export function encodeAsks(asks: readonly EndpointAsk[]): Buffer {
  const packed = Buffer.allocUnsafe(asks.length * 96);
  let at = 0;
  const put = (value: number) => {
    at = packed.writeDoubleLE(value, at);
  };
  for (const { ask } of asks) {
    put(ask.slotVersion);
    put(ask.ratePerSecond);
    put(ask.burst);
    put(ask.waited);
    put(ask.fresh);
    put(ask.slots);
    put(ask.everyUs);
    put(ask.afterUs);
    put(ask.maxWaitUs);
    put(ask.owedUs);
    put(ask.known ? BECAUSE[ask.known.because] : 0);
    put(ask.known?.horizonUs ?? 0);
  }
  return packed;
}

/** What the script answers to one question. */
export function decodeReply([goes = 0, horizonUs = 0, ...delays]: RawReply): BucketReply {
  if (goes < 0) return { kind: 'needs_horizon', because: goes === -BECAUSE.unknown ? 'unknown' : 'suspect' };
  return { kind: 'answered', goUs: delays.slice(0, goes), slotsUs: delays.slice(goes), horizonUs };
}
