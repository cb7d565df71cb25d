import { mkdirSync, readdirSync, rmdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { projectRoot } from '../lib/local/home.ts';
import type { Teardown } from './teardown.ts';

/** Makes the scratch space of a run, or of the named part of one; without `keep` the teardown removes it. */
export function makeDirectory(teardown: Teardown, options: { keep: boolean; part?: string }): string {
  const parent = join(projectRoot(), '.relay', 'loadtest');
  const run = join(parent, options.keep ? `kept-${process.pid}` : String(process.pid));
  const directory = options.part === undefined ? run : join(run, options.part);
  mkdirSync(directory, { recursive: true });
  removeAbandoned(parent);
  if (!options.keep) teardown.add(() => remove(directory, run));
  return directory;
}

/** Parts come one after the other, so whichever goes last takes the run's directory along. */
function remove(directory: string, run: string): void {
  rmSync(directory, { recursive: true, force: true });
  if (directory !== run && readdirSync(run).length === 0) rmdirSync(run);
}

/** A run that was killed leaves gigabytes behind. */
function removeAbandoned(parent: string): void {
  for (const name of readdirSync(parent)) {
    if (/^\d+$/.test(name) && !alive(Number(name)))
      rmSync(join(parent, name), { recursive: true, force: true });
  }
}

function alive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}
