import { setTimeout as sleep } from 'node:timers/promises';
import type { Phase, Verdict } from './report.ts';
import {
  arrivals,
  auditArrivals,
  phaseCosts,
  type Run,
  registerEndpoints,
  sendingDone,
  startSending,
  takeSnapshot,
  whileTelling,
} from './run.ts';

/** Holds a rate and measures, after the warm-up, each event from its intended send to its arrival. */
export async function sustained(run: Run): Promise<{ phases: Phase[]; verdict: Verdict }> {
  const { rate, seconds, rampSeconds, endpoints } = run.options;
  const warmupSeconds = Math.min(run.options.warmupSeconds, seconds - 1);
  await run.fleet.startDispatchers();
  await registerEndpoints(run);

  const sending = startSending(run, { loop: 'open', rate, seconds, rampSeconds }, warmupSeconds);
  await whileTelling(run, sending.progress, sleep(warmupSeconds * 1000));
  await run.database?.resetStatements();
  const from = await takeSnapshot(run, sending);
  const sent = await sendingDone(run, sending);
  const to = await takeSnapshot(run, sending);
  const costs = await phaseCosts(run, from, to);
  await sending.finish();

  await arrivals(run, sent.accepted * endpoints, sent);
  const { verdict, found } = await auditArrivals(run, [sending.acceptedFile], from.atMs);
  const measuredSeconds = (to.atMs - from.atMs) / 1000;
  const delivered = to.received.delivered - from.received.delivered;
  const phase: Phase = {
    name: 'sustained',
    offered: rate,
    seconds: Math.round(measuredSeconds * 10) / 10,
    acceptedPerSecond: sent.acceptedPerSecond,
    deliveredPerSecond: Math.round(delivered / measuredSeconds),
    answers: sent.answers,
    latency: {
      'intended send → 202': sent.accept,
      'intended send → arrival': found.latency,
      'due → send, as recorded': (await run.database?.lateness(from.atMs)) ?? null,
    },
    ...costs,
    notes: [`latency, rates and CPU leave out the first ${warmupSeconds} s`],
  };
  return { phases: [phase], verdict };
}
