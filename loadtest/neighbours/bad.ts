import { setTimeout as sleep } from 'node:timers/promises';
import { canListen } from '../../lib/local/home.ts';
import { createEndpoint } from '../api-client.ts';
import type { Window } from '../audit.ts';
import type { PrivateFleet } from '../fleet.ts';
import { receiverSummary, setToggle } from '../receiver-client.ts';
import { type Run, type Sending, sendingDone, startSending, whileTelling } from '../run.ts';
import { type FlowSample, flowsFrom, neededForFlow } from './figures.ts';
import { type HeldKey, type HeldKeyReport, holdKey } from './held-key.ts';
import type { NeighbourOptions } from './options.ts';
import { type Plan, TOGGLE } from './plans.ts';
import { type TouchLog, watchTouches } from './touches.ts';

export interface Backlog {
  accepted: number;
  accepting: Window;
  /** From the last 202 until each delivery was looked at once. */
  firstPass: Window;
  /** Whether it was over within its time. */
  passed: boolean;
}

export interface Recovery {
  /** From the switch until deliveries arrived at nine tenths of the rate, for five seconds; null: not within the time. */
  seconds: number | null;
  /** What was left of the cooldown at the switch. */
  cooldownSeconds: number;
  /** Why nothing can be said; null when something can. */
  unclear: string | null;
}

/** The bad neighbour of one run. */
export interface Bad {
  readonly log: TouchLog;
  /** Gives it its backlog and waits for the first pass; null without a backlog. */
  pileUp(healthy: Sending): Promise<Backlog | null>;
  /** Starts whatever goes on beside the measured part. */
  carryOn(): Promise<void>;
  /** How many deliveries it has answered 2xx. */
  delivered(): Promise<number>;
  /** Ends what `carryOn` started; tells how the posts were answered. */
  calmDown(): Promise<{ fed: Record<string, number>; heldKey: HeldKeyReport | null }>;
  /** Makes it work again and watches; null when it cannot be, or nobody wants to know. */
  recover(): Promise<Recovery | null>;
}

const FED_FOR_SECONDS = 3_600;
const LOOK_EVERY_MS = 500;
const SAMPLE_EVERY_MS = 250;
const KEY_FREE_WITHIN_MS = 30_000;

export async function createBad(
  run: Run & { fleet: PrivateFleet },
  plan: Plan,
  options: NeighbourOptions,
): Promise<Bad> {
  const { fleet, teardown } = run;
  const port = await quietPort();
  const receiver = `http://127.0.0.1:${port}`;
  if (plan.listens && plan.paths.length > 0) await fleet.startReceiver(port);
  const { ids, eventTypes } = await register(fleet, receiver, plan, options);
  const log = await watchTouches(fleet.database, ids);
  teardown.add(() => log.close());

  const ratePerSecond = ids.length * options.bad.ratePerSecond;
  let feed: Sending | null = null;
  let flipping: Flipping | null = null;
  let heldKey: HeldKey | null = null;
  let listening = plan.listens;
  return {
    log,
    pileUp: (healthy) => pileUp(run, log, { eventTypes, plan, options, healthy }),
    async carryOn() {
      if (plan.flipEverySeconds !== null) flipping = flip(receiver, plan.flipEverySeconds * 1000);
      if (plan.heldKey) heldKey = await holdKey(fleet);
      if (plan.feedRate === 0) return;
      const { feedBatch } = plan;
      const rate = plan.feedRate / feedBatch;
      const load = { loop: 'open', rate, seconds: FED_FOR_SECONDS, rampSeconds: 0 } as const;
      feed = startSending(run, load, 0, { eventTypes, batch: feedBatch > 1 ? feedBatch : undefined });
    },
    delivered: async () =>
      listening && plan.paths.length > 0 ? (await receiverSummary(receiver)).delivered : 0,
    async calmDown() {
      await flipping?.stop();
      feed?.enough();
      const sent = feed ? await sendingDone(run, feed) : null;
      feed?.stop();
      return {
        fed: sent?.answers ?? {},
        heldKey: (await heldKey?.release(KEY_FREE_WITHIN_MS)) ?? null,
      };
    },
    async recover() {
      if (!plan.recovers || options.recoverySeconds === 0) return null;
      const owed = await log.owed();
      const cooldownSeconds = (await log.cooldownMs()) / 1000;
      if (owed < neededForFlow(ratePerSecond))
        return { seconds: null, cooldownSeconds, unclear: `only ${owed} deliveries are owed to it` };
      run.say('the bad endpoint works again');
      const fromMs = Date.now();
      if (listening) await setToggle(receiver, TOGGLE, true);
      else await fleet.startReceiver(port);
      listening = true;
      const flowsMs = await flowing(run, receiver, ratePerSecond, options.recoverySeconds * 1000);
      return { seconds: flowsMs === null ? null : (flowsMs - fromMs) / 1000, cooldownSeconds, unclear: null };
    },
  };
}

/** Registers an endpoint for each path of the plan, each with an event type of its own. */
async function register(fleet: PrivateFleet, receiver: string, plan: Plan, { bad }: NeighbourOptions) {
  const ids: string[] = [];
  const eventTypes: string[] = [];
  const limits = {
    rate_per_second: bad.ratePerSecond,
    burst: bad.burst,
    max_in_flight: bad.maxInFlight,
  };
  for (const [n, path] of plan.paths.entries()) {
    const eventType = `loadtest.bad.${n + 1}`;
    const url = `${receiver}${path}`;
    ids.push((await createEndpoint(fleet.apis[0]!, fleet.key, { url, eventType, limits })).id);
    eventTypes.push(eventType);
  }
  return { ids, eventTypes };
}

async function pileUp(
  run: Run,
  log: TouchLog,
  work: { eventTypes: readonly string[]; plan: Plan; options: NeighbourOptions; healthy: Sending },
): Promise<Backlog | null> {
  const { plan, options, healthy, eventTypes } = work;
  if (plan.backlog === 0) return null;
  const startMs = Date.now();
  const load = { loop: 'closed', events: plan.backlog, seconds: FED_FOR_SECONDS } as const;
  const sending = startSending(run, load, 0, { eventTypes });
  const { accepted } = await sendingDone(run, sending);
  sending.stop();
  const acceptedMs = Date.now();
  run.say(`the bad one is owed ${accepted}; waiting for the first pass`);
  const deadline = acceptedMs + options.firstPassSeconds * 1000;
  let untouched = await log.untouched();
  while (untouched > 0 && Date.now() < deadline) {
    await whileTelling(run, healthy.progress, sleep(LOOK_EVERY_MS));
    untouched = await log.untouched();
  }
  return {
    accepted,
    accepting: { fromMs: startMs, toMs: acceptedMs },
    firstPass: { fromMs: acceptedMs, toMs: Date.now() },
    passed: untouched === 0,
  };
}

interface Flipping {
  stop(): Promise<void>;
}

function flip(receiver: string, everyMs: number): Flipping {
  const stopping = new AbortController();
  const flips = (async () => {
    for (let on = true; !stopping.signal.aborted; on = !on) {
      await setToggle(receiver, TOGGLE, on);
      await sleep(everyMs, undefined, { signal: stopping.signal }).catch(() => undefined);
    }
  })();
  // Whoever stops it hears of a failure; until then it is no unhandled rejection.
  flips.catch(() => undefined);
  return {
    stop() {
      stopping.abort();
      return flips;
    },
  };
}

async function flowing(
  run: Run,
  receiver: string,
  ratePerSecond: number,
  withinMs: number,
): Promise<number | null> {
  const samples: FlowSample[] = [];
  const deadline = Date.now() + withinMs;
  while (Date.now() < deadline) {
    samples.push({ atMs: Date.now(), delivered: (await receiverSummary(receiver)).delivered });
    const fromMs = flowsFrom(samples, ratePerSecond);
    if (fromMs !== null) return fromMs;
    run.fleet.check();
    await sleep(SAMPLE_EVERY_MS);
  }
  return null;
}

const QUIET_PORTS = { from: 20_000, count: 10_000 };

/**
 * A port outside the range that outgoing connections take theirs from: there, one of a hundred thousand attempts to connect to a
 * refusing port of this machine would be given that very port and meet itself.
 */
async function quietPort(): Promise<number> {
  for (;;) {
    const port = QUIET_PORTS.from + Math.floor(Math.random() * QUIET_PORTS.count);
    if (await canListen(port)) return port;
  }
}
