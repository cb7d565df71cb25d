import { setTimeout as sleep } from 'node:timers/promises';
import { receiverSummary } from './receiver-client.ts';
import type { Phase, Verdict } from './report.ts';
import { round } from './report.ts';
import {
  arrivals,
  auditArrivals,
  phaseCosts,
  type Run,
  registerEndpoints,
  sendingDone,
  startSending,
  takeSnapshot,
} from './run.ts';

const FIRST_ARRIVAL_WITHIN_MS = 60_000;

/** Accepts a backlog that nobody delivers, then starts the dispatchers and times how fast it goes. */
export async function drain(run: Run): Promise<{ phases: Phase[]; verdict: Verdict }> {
  const { events, seconds, endpoints } = run.options;
  await registerEndpoints(run);
  const sending = startSending(run, { loop: 'closed', events, seconds }, 0);
  const sent = await sendingDone(run, sending);
  await sending.finish();
  run.say(`accepted ${sent.accepted} at ${sent.acceptedPerSecond}/s; starting the dispatchers`);

  const startedMs = Date.now();
  await run.database?.resetStatements();
  await run.fleet.startDispatchers();
  await firstArrival(run);
  const from = await takeSnapshot(run, null);
  await arrivals(run, sent.accepted * endpoints, sent);
  const to = await takeSnapshot(run, null);
  const costs = await phaseCosts(run, from, to);

  const { verdict, found } = await auditArrivals(run, [sending.acceptedFile], 0);
  const { arrivals: moments } = found;
  const rate = ratesOf(moments);
  const phase: Phase = {
    name: 'drain',
    offered: null,
    seconds: round(rate.seconds, 2),
    acceptedPerSecond: null,
    deliveredPerSecond: rate.whole,
    answers: sent.answers,
    latency: {},
    ...costs,
    notes: [
      `first arrival ${Math.round((moments[0] ?? startedMs) - startedMs)} ms after the dispatchers were told to start`,
      `middle 80 % at ${rate.middle.toLocaleString('en-US')}/s; the whole counts from the first arrival to the last, cold code included`,
      `the backlog was accepted at ${sent.acceptedPerSecond.toLocaleString('en-US')} events/s`,
    ],
  };
  return { phases: [phase], verdict };
}

/** Deliveries per second between the first arrival and the last, and over the middle four fifths of them. */
export function ratesOf(moments: Float64Array): { seconds: number; whole: number; middle: number } {
  const between = (from: number, to: number) => {
    const ms = (moments[to] ?? 0) - (moments[from] ?? 0);
    return { ms, rate: ms > 0 ? Math.round(((to - from) / ms) * 1000) : 0 };
  };
  const last = Math.max(0, moments.length - 1);
  const whole = between(0, last);
  return {
    seconds: whole.ms / 1000,
    whole: whole.rate,
    middle: between(Math.floor(last * 0.1), Math.floor(last * 0.9)).rate,
  };
}

async function firstArrival(run: Run): Promise<void> {
  const deadline = Date.now() + FIRST_ARRIVAL_WITHIN_MS;
  while ((await receiverSummary(run.fleet.receiver)).delivered === 0) {
    run.fleet.check();
    if (Date.now() > deadline) throw new Error("nothing arrived within a minute of the dispatchers' start");
    await sleep(20);
  }
}
