import assert from 'node:assert/strict';
import { openDatabase } from './database.ts';
import { drain } from './drain.ts';
import { privateFleet, runningFleet } from './fleet.ts';
import { ingest } from './ingest.ts';
import { type NeighboursReport, neighbours } from './neighbours/neighbours.ts';
import { printNeighbours } from './neighbours/print.ts';
import { type LoadTestOptions, type Mode, parseOptions, USAGE, UsageError } from './options.ts';
import { describeMachine, passes, printableOptions, type Report, writeJson } from './report.ts';
import type { Run } from './run.ts';
import { sustained } from './sustained.ts';
import { printReport } from './table.ts';
import { createTeardown, type Teardown } from './teardown.ts';

const ON_ONE_FLEET = { drain, sustained, ingest };

/** Ctrl-C, or a request to end: everything that was started is ended first. */
class Interrupted extends Error {
  override readonly name = 'Interrupted';
}

process.exit(await main());

async function main(): Promise<number> {
  const teardown = createTeardown();
  try {
    const options = parseOptions(process.argv.slice(2));
    if (!options) {
      console.log(USAGE);
      return 0;
    }
    const report = await Promise.race([runMode(options, teardown), interrupted()]);
    if (options.json) writeJson(options.json, report);
    console.log(report.mode === 'neighbours' ? printNeighbours(report) : printReport(report));
    return report.ok ? 0 : 1;
  } catch (error) {
    return explain(error);
  } finally {
    await teardown.run();
  }
}

async function runMode(options: LoadTestOptions, teardown: Teardown): Promise<Report | NeighboursReport> {
  const startedAt = new Date();
  const say = (line: string) => {
    const seconds = ((Date.now() - startedAt.getTime()) / 1000).toFixed(0).padStart(4);
    process.stderr.write(`${seconds} s  ${line}\n`);
  };
  const { mode, target, neighbours: own } = options;
  if (mode !== 'neighbours') return runOnOneFleet(mode, options, { teardown, say, startedAt });
  assert(own !== null && target.kind === 'private', 'the options of this mode hold both');
  return neighbours({ options: { ...options, target }, neighbours: own, teardown, say });
}

async function runOnOneFleet(
  mode: Exclude<Mode, 'neighbours'>,
  options: LoadTestOptions,
  { teardown, say, startedAt }: { teardown: Teardown; say: (line: string) => void; startedAt: Date },
): Promise<Report> {
  const { target } = options;
  say(target.kind === 'private' ? 'starting a private fleet' : `using ${target.apis.join(', ')}`);
  const fleet =
    target.kind === 'private' ? await privateFleet(target, teardown) : runningFleet(target, teardown);
  const database = fleet.database === null ? null : await openDatabase(fleet.database);
  if (database) teardown.add(() => database.close());
  const run: Run = { options, fleet, database, teardown, say };
  const { phases, verdict } = await ON_ONE_FLEET[mode](run);
  return {
    mode,
    startedAt: startedAt.toISOString(),
    options: printableOptions(options),
    machine: await describeMachine(database),
    phases,
    verdict,
    ok: passes(verdict),
  };
}

function interrupted(): Promise<never> {
  return new Promise((_, reject) => {
    for (const signal of ['SIGINT', 'SIGTERM'] as const) {
      // A second one finds no patience: what we started dies with us (Linux), or is asked to on exit.
      process.once(signal, () => {
        process.once(signal, () => process.exit(130));
        reject(new Interrupted(signal));
      });
    }
  });
}

function explain(error: unknown): number {
  if (error instanceof UsageError) {
    console.error(`${error.message}\n\n${USAGE}`);
    return 2;
  }
  if (error instanceof Interrupted) {
    console.error('interrupted: ending what was started');
    return 130;
  }
  console.error(error);
  return 1;
}
