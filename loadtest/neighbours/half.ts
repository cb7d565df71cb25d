import { setTimeout as sleep } from 'node:timers/promises';
import { createEndpoint } from '../api-client.ts';
import type { Window } from '../audit.ts';
import { openDatabase } from '../database.ts';
import { type PrivateFleet, privateFleet } from '../fleet.ts';
import type { LatencySummary } from '../latency.ts';
import type { LoadTestOptions, PrivateTarget } from '../options.ts';
import { resetReceiver, setSecrets } from '../receiver-client.ts';
import { type Phase, round, type Verdict } from '../report.ts';
import {
  arrivals,
  auditArrivals,
  phaseCosts,
  type Run,
  sendingDone,
  startSending,
  takeSnapshot,
  whileTelling,
} from '../run.ts';
import { createTeardown, type Teardown } from '../teardown.ts';
import { type Backlog, type Bad, createBad, type Recovery } from './bad.ts';
import { laterClaimsBySecond } from './figures.ts';
import type { HeldKeyReport } from './held-key.ts';
import type { NeighbourOptions } from './options.ts';
import type { Plan } from './plans.ts';
import { redisMemory } from './redis-memory.ts';
import { type BusiestSeconds, busiestSeconds, measuredSeconds, type Stop } from './stops.ts';
import type { Touch, Written } from './touches.ts';

/** A run of healthy endpoints, alone or beside the bad one, on a fleet of its own. */
export interface Half {
  seconds: number;
  /** Intended send → arrival at the healthy endpoints, in the measured part. */
  latency: LatencySummary | null;
  answers: Record<string, number>;
  verdict: Verdict;
  /** Null when processes were stopped meanwhile. */
  cpu: Phase['cpu'];
  postgres: Phase['postgres'];
  redisBytes: number | null;
  stops: Stop[];
  bad: BadFigures | null;
}

export interface BadFigures {
  backlog: Backlog | null;
  /** Of the healthy ones, while the backlog was accepted and looked at for the first time. */
  meanwhile: Record<'accepting' | 'firstPass', LatencySummary | null>;
  /** Claims of deliveries that had been claimed before, in the fullest second of any one endpoint. */
  busiest: BusiestSeconds;
  /** The same claims in each second of the measured part, all bad endpoints together. */
  laterClaimsBySecond: number[];
  /** A second, in the measured part, all bad endpoints together. */
  perSecond: { firstClaims: number; laterClaims: number; announced: number; delivered: number };
  /** Attempt rows a second by class. */
  writtenPerSecond: Written;
  fed: Record<string, number>;
  heldKey: HeldKeyReport | null;
  recovery: Recovery | null;
}

export interface HalfContext {
  options: LoadTestOptions & { target: PrivateTarget };
  neighbours: NeighbourOptions;
  plan: Plan;
  teardown: Teardown;
  say(line: string): void;
}

type PrivateRun = Run & { fleet: PrivateFleet };

/** Runs one half on a fresh fleet, so that nothing of the bad one is left in it, and ends the fleet. */
export async function runHalf(context: HalfContext, side: 'without' | 'with', pair: number): Promise<Half> {
  const { plan, say } = context;
  const teardown = createTeardown();
  context.teardown.add(() => teardown.run());
  say(`${plan.scenario}, pair ${pair}, ${side} the bad one`);
  try {
    const run = await startRun(context, `${plan.scenario}-${pair}-${side}`, teardown);
    const idle: Plan = {
      ...plan,
      paths: [],
      backlog: 0,
      feedRate: 0,
      flipEverySeconds: null,
      heldKey: false,
    };
    const bad = await createBad(run, side === 'with' ? plan : idle, context.neighbours);
    return await measure(context, run, side === 'with' ? { bad } : null);
  } finally {
    await teardown.run();
  }
}

async function startRun(
  { options, plan, say }: HalfContext,
  part: string,
  teardown: Teardown,
): Promise<PrivateRun> {
  const target = { ...options.target, env: { ...plan.env, ...options.target.env } };
  const fleet = await privateFleet(target, teardown, part);
  const database = await openDatabase(fleet.database);
  teardown.add(() => database.close());
  await fleet.startDispatchers();
  // Each healthy event goes to one endpoint.
  const own = { ...options, endpoints: 1, keyed: options.keyed || plan.heldKey };
  return { options: own, fleet, database, teardown, say };
}

async function measure(context: HalfContext, run: PrivateRun, side: { bad: Bad } | null): Promise<Half> {
  const { options, neighbours, plan } = context;
  const eventTypes = await registerHealthy(run, options.endpoints);
  const load = {
    loop: 'open',
    rate: options.rate,
    seconds: 3_600,
    rampSeconds: options.rampSeconds,
  } as const;
  const healthy = startSending(run, load, 0, { eventTypes });
  const passing = (seconds: number) => whileTelling(run, healthy.progress, sleep(seconds * 1000));
  await passing(options.warmupSeconds);
  const backlog = (await side?.bad.pileUp(healthy)) ?? null;
  await side?.bad.carryOn();
  if (side) await passing(plan.settleSeconds);

  await run.database?.resetStatements();
  const deliveredBefore = (await side?.bad.delivered()) ?? 0;
  const from = await takeSnapshot(run, healthy);
  const stops = await whileTelling(
    run,
    healthy.progress,
    measuredSeconds(run.fleet, options.seconds, neighbours),
  );
  const to = await takeSnapshot(run, healthy);
  const delivered = ((await side?.bad.delivered()) ?? 0) - deliveredBefore;
  const costs = await phaseCosts(run, from, to);
  const redisBytes = run.fleet.redis ? await redisMemory(run.fleet.redis) : null;

  healthy.enough();
  const sent = await sendingDone(run, healthy);
  await healthy.finish();
  const measured: Window = { fromMs: from.atMs, toMs: to.atMs };
  const bad = side ? await badFigures(side.bad, { measured, stops, backlog, delivered }) : null;
  await arrivals(run, sent.accepted, sent);
  const windows = {
    measured,
    ...(backlog ? { accepting: backlog.accepting, firstPass: backlog.firstPass } : {}),
  };
  const { verdict, found } = await auditArrivals(run, [healthy.acceptedFile], from.atMs, windows);
  return {
    seconds: round((to.atMs - from.atMs) / 1000, 1),
    latency: found.within.measured ?? null,
    answers: sent.answers,
    verdict,
    cpu: stops.length > 0 ? null : costs.cpu,
    postgres: costs.postgres,
    redisBytes,
    stops,
    bad: bad && {
      ...bad,
      meanwhile: {
        accepting: found.within.accepting ?? null,
        firstPass: found.within.firstPass ?? null,
      },
    },
  };
}

async function badFigures(
  bad: Bad,
  seen: { measured: Window; stops: readonly Stop[]; backlog: Backlog | null; delivered: number },
): Promise<Omit<BadFigures, 'meanwhile'>> {
  const { measured, stops, backlog, delivered } = seen;
  const perSecond = (count: number) => round(count / ((measured.toMs - measured.fromMs) / 1000), 2);
  const { fed, heldKey } = await bad.calmDown();
  const touches = await bad.log.touches(measured);
  const written = await bad.log.written(measured);
  const count = (kind: Touch['kind'], again: boolean) =>
    touches.filter((touch) => touch.kind === kind && touch.again === again).length;
  return {
    backlog,
    busiest: busiestSeconds(touches, stops),
    laterClaimsBySecond: laterClaimsBySecond(touches, measured),
    perSecond: {
      firstClaims: perSecond(count('claimed', false)),
      laterClaims: perSecond(count('claimed', true)),
      announced: perSecond(count('announced', false) + count('announced', true)),
      delivered: perSecond(delivered),
    },
    writtenPerSecond: Object.fromEntries(Object.entries(written).map(([name, n]) => [name, perSecond(n)])),
    fed,
    heldKey,
    recovery: await bad.recover(),
  };
}

/** Registers the healthy endpoints, each for an event type of its own, and returns the types. */
async function registerHealthy({ fleet, options }: PrivateRun, count: number): Promise<string[]> {
  await resetReceiver(fleet.receiver);
  const path = options.verify ? 'verify' : 'sink';
  const eventTypes: string[] = [];
  const secrets: string[] = [];
  for (let n = 1; n <= count; n += 1) {
    const endpoint = { url: `${fleet.receiver}/${path}?endpoint=${n}`, eventType: `loadtest.healthy.${n}` };
    secrets.push((await createEndpoint(fleet.apis[0]!, fleet.key, endpoint)).secret);
    eventTypes.push(endpoint.eventType);
  }
  if (options.verify) await setSecrets(fleet.receiver, secrets);
  return eventTypes;
}
