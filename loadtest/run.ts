import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { createEndpoint } from './api-client.ts';
import { type Accepted, type Audit, type AuditOptions, audit, readAccepted } from './audit.ts';
import { type CpuSample, cpuBetween, sampleCpu } from './cpu.ts';
import type { Database, DatabaseTotals, Whereabouts } from './database.ts';
import type { Fleet } from './fleet.ts';
import type { GeneratorProgress, GeneratorResult, Load } from './generator.ts';
import { type RunningGenerator, startGenerator } from './generator-process.ts';
import type { LoadTestOptions } from './options.ts';
import {
  type ReceiverSummary,
  receivedDeliveries,
  receiverSummary,
  resetReceiver,
  setSecrets,
} from './receiver-client.ts';
import { type Phase, phaseCpu, phasePostgres, type Verdict } from './report.ts';
import type { Teardown } from './teardown.ts';

export const EVENT_TYPE = 'loadtest.ping';
const REQUEST_TIMEOUT_MS = 30_000;
/** A second send of something already delivered shows up late, so the count waits a little after the last arrival. */
const DUPLICATE_WATCH_MS = 2_000;
const POLL_MS = 200;

/** What the modes share: the fleet, what they look at, and where they say how it goes. */
export interface Run {
  options: LoadTestOptions;
  fleet: Fleet;
  database: Database | null;
  teardown: Teardown;
  say(line: string): void;
}

/** The figures at one moment; a phase is what lies between two of them. */
export interface Snapshot {
  atMs: number;
  cpu: CpuSample | null;
  totals: DatabaseTotals | null;
  received: ReceiverSummary;
}

/** Registers the run's endpoints at the receiver, which starts counting from nothing. */
export async function registerEndpoints({ options, fleet }: Run): Promise<void> {
  await resetReceiver(fleet.receiver);
  const path = options.verify ? 'verify' : 'sink';
  const secrets: string[] = [];
  for (let n = 1; n <= options.endpoints; n += 1) {
    const url = `${fleet.receiver}/${path}?endpoint=${n}`;
    secrets.push((await createEndpoint(fleet.apis[0]!, fleet.key, { url, eventType: EVENT_TYPE })).secret);
  }
  if (options.verify) await setSecrets(fleet.receiver, secrets);
}

/** A generator at work, with the file it will leave. */
export interface Sending extends RunningGenerator {
  acceptedFile: string;
}

export function startSending(
  run: Run,
  load: Load,
  measureFromSeconds: number,
  { eventTypes = [EVENT_TYPE], batch }: { eventTypes?: readonly string[]; batch?: number | undefined } = {},
): Sending {
  const { options, fleet, teardown } = run;
  const acceptedFile = join(fleet.directory, `accepted-${eventTypes[0]}-${load.loop}-${Date.now()}`);
  const connections =
    batch === undefined ? options.connections : Math.min(options.connections, connectionsFor(batch));
  const generator = startGenerator({
    acceptedFile,
    plan: {
      apis: fleet.apis,
      key: fleet.key,
      connections,
      load,
      eventTypes,
      payloadBytes: options.payloadBytes,
      keyed: options.keyed,
      batch,
      measureFromSeconds,
      requestTimeoutMs: REQUEST_TIMEOUT_MS,
    },
  });
  teardown.add(() => generator.stop());
  return { ...generator, acceptedFile };
}

/** So many that the events on their way stay well under what an API lets wait. */
const MAX_EVENTS_OPEN = 4_096;

/** How many connections post batches of a size at the same time, at most. */
export function connectionsFor(batch: number): number {
  return Math.max(2, Math.floor(MAX_EVENTS_OPEN / batch));
}

/** Waits for a generator, with a line each second; throws when a process of the fleet ends meanwhile. */
export async function sendingDone(run: Run, sending: Sending): Promise<GeneratorResult> {
  return whileTelling(run, () => sending.progress(), sending.done());
}

export async function takeSnapshot(run: Run, sending: Sending | null): Promise<Snapshot> {
  const groups = [...run.fleet.groups(), { role: 'harness', pids: [process.pid] }];
  if (sending) groups.push({ role: 'generator', pids: [sending.pid] });
  const [totals, received] = await Promise.all([
    run.database?.totals() ?? null,
    receiverSummary(run.fleet.receiver),
  ]);
  return {
    atMs: Date.now(),
    cpu: run.fleet.groups().length > 0 ? sampleCpu(groups) : null,
    totals,
    received,
  };
}

/** The costs between two snapshots, per delivery, or per event where `events` says how many were accepted. */
export async function phaseCosts(
  run: Run,
  from: Snapshot,
  to: Snapshot,
  events?: number,
): Promise<Pick<Phase, 'cpu' | 'postgres'>> {
  const items = events ?? to.received.delivered - from.received.delivered;
  const statements = (await run.database?.statements()) ?? null;
  return {
    cpu: phaseCpu(cpuBetween(from.cpu, to.cpu), items, events === undefined ? 'deliveries' : 'events'),
    postgres: phasePostgres(from.totals, to.totals, items, statements),
  };
}

/** Waits until the receiver has seen `expected` deliveries, or the patience of the run is over. */
export async function arrivals(run: Run, expected: number, progress: GeneratorProgress): Promise<void> {
  const deadline = Date.now() + run.options.waitSeconds * 1000;
  const waiting = (async () => {
    while (Date.now() < deadline) {
      if ((await receiverSummary(run.fleet.receiver)).delivered >= expected) return;
      await sleep(POLL_MS);
    }
    run.say(`gave up waiting after ${run.options.waitSeconds} s`);
  })();
  await whileTelling(run, () => progress, waiting);
}

export async function whileTelling<T>(
  run: Run,
  progress: () => GeneratorProgress,
  work: Promise<T>,
): Promise<T> {
  let over = false;
  const finished = work.finally(() => {
    over = true;
  });
  const telling = (async () => {
    while (!over) {
      await Promise.race([finished.catch(() => undefined), sleep(1000)]);
      if (over) return;
      run.fleet.check();
      await tell(run, progress());
    }
  })();
  await Promise.race([finished, telling]);
  return finished;
}

async function tell(run: Run, { accepted, refused, unknown, behind }: GeneratorProgress): Promise<void> {
  const { delivered, duplicates } = await receiverSummary(run.fleet.receiver);
  const odd = [
    refused > 0 ? `refused ${refused}` : '',
    unknown > 0 ? `unknown ${unknown}` : '',
    behind > 0 ? `behind ${behind}` : '',
    duplicates > 0 ? `duplicates ${duplicates}` : '',
  ].filter((part) => part !== '');
  run.say(`accepted ${accepted}  delivered ${delivered}  ${odd.join('  ')}`);
}

/** Looks for every accepted event × endpoint at the receiver, by id. */
export async function auditArrivals(
  run: Run,
  files: readonly string[],
  measuredFromMs: number,
  windows: NonNullable<AuditOptions['windows']> = {},
): Promise<{ verdict: Verdict; found: Audit }> {
  await sleep(DUPLICATE_WATCH_MS);
  const accepted = await readAll(files, run.options.endpoints);
  const found = await audit(accepted, receivedDeliveries(run.fleet.receiver), { measuredFromMs, windows });
  const { missing, latency: _, within: __, arrivals: ___, ...counts } = found;
  const verdict: Verdict = {
    ...counts,
    lookedForAt: 'receiver',
    events: accepted.events,
    wrongFanOut: accepted.wrongFanOut,
    missing: await whereabouts(run, missing),
  };
  return { verdict, found };
}

export async function readAll(files: readonly string[], endpoints: number): Promise<Accepted> {
  const all: Accepted = { events: 0, deliveries: new Map(), wrongFanOut: 0 };
  for (const file of files) {
    const { events, deliveries, wrongFanOut } = await readAccepted(file, endpoints);
    all.events += events;
    all.wrongFanOut += wrongFanOut;
    for (const [id, atMs] of deliveries) all.deliveries.set(id, atMs);
  }
  return all;
}

async function whereabouts(run: Run, missing: readonly string[]): Promise<Whereabouts> {
  if (run.database) return run.database.whereabouts(missing);
  return { pending: 0, dead: 0, succeeded: 0, absent: missing.length };
}
