import { setTimeout as sleep } from 'node:timers/promises';
import type { Load } from './generator.ts';
import type { Phase, Verdict } from './report.ts';
import {
  connectionsFor,
  phaseCosts,
  type Run,
  readAll,
  registerEndpoints,
  sendingDone,
  startSending,
  takeSnapshot,
  whileTelling,
} from './run.ts';

/** Accepts only: no dispatcher runs, and what was accepted is looked for in Postgres. */
export async function ingest(run: Run): Promise<{ phases: Phase[]; verdict: Verdict }> {
  await registerEndpoints(run);
  const phases: Phase[] = [];
  const files: string[] = [];
  const loads = run.options.loops.map((loop) => ({ loop, batch: undefined as number | undefined }));
  if (run.options.batch !== null) loads.push({ loop: 'closed', batch: run.options.batch });
  for (const { loop, batch } of loads) {
    const { phase, acceptedFile } = await acceptPhase(run, loop, batch);
    phases.push(phase);
    files.push(acceptedFile);
  }
  return { phases, verdict: await auditCommitted(run, files) };
}

async function acceptPhase(
  run: Run,
  loop: 'closed' | 'open',
  batch: number | undefined,
): Promise<{ phase: Phase; acceptedFile: string }> {
  const { rate, seconds, rampSeconds } = run.options;
  const warmupSeconds = Math.min(run.options.warmupSeconds, seconds - 1);
  const load: Load = loop === 'open' ? { loop, rate, seconds, rampSeconds } : { loop, seconds, events: null };
  const sending = startSending(run, load, warmupSeconds, { batch });
  await whileTelling(run, sending.progress, sleep(warmupSeconds * 1000));
  await run.database?.resetStatements();
  const acceptedBefore = sending.progress().accepted;
  const from = await takeSnapshot(run, sending);
  const sent = await sendingDone(run, sending);
  const to = await takeSnapshot(run, sending);
  const costs = await phaseCosts(run, from, to, sent.accepted - acceptedBefore);
  await sending.finish();
  const phase: Phase = {
    name: phaseName(run.options.connections, loop, batch),
    offered: loop === 'open' ? rate : null,
    seconds: Math.round((to.atMs - from.atMs) / 100) / 10,
    acceptedPerSecond: sent.acceptedPerSecond,
    deliveredPerSecond: null,
    answers: sent.answers,
    latency: { [loop === 'open' ? 'intended send → 202' : 'send → 202']: sent.accept },
    ...costs,
    notes: [`latency, rates and CPU leave out the first ${warmupSeconds} s`],
  };
  return { phase, acceptedFile: sending.acceptedFile };
}

function phaseName(connections: number, loop: 'closed' | 'open', batch: number | undefined): string {
  if (batch === undefined) return `ingest, ${loop} loop, ${connections} connections`;
  const open = Math.min(connections, connectionsFor(batch));
  return `ingest, ${loop} loop, batches of ${batch}, ${open} connections`;
}

/** Every accepted delivery must be a row, owed and waiting, since nobody delivers here. */
async function auditCommitted(run: Run, files: readonly string[]): Promise<Verdict> {
  const accepted = await readAll(files, run.options.endpoints);
  const ids = [...accepted.deliveries.keys()];
  const found = await run.database?.whereabouts(ids);
  const absent = found?.absent ?? 0;
  return {
    lookedForAt: found ? 'postgres' : 'nowhere',
    events: accepted.events,
    wrongFanOut: accepted.wrongFanOut,
    expected: ids.length,
    delivered: ids.length - absent,
    missing: { pending: 0, dead: 0, succeeded: 0, absent },
    duplicated: 0,
    duplicateRequests: 0,
    unaccepted: 0,
  };
}
