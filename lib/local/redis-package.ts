import { execFile, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, renameSync, rmSync, symlinkSync } from 'node:fs';
import { userInfo } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { findOnPath } from './on-path.ts';
import { LocalServiceUnavailable, type LogLine } from './unavailable.ts';

const execute = promisify(execFile);
const COMMAND_TIMEOUT_MS = 120_000;
const INSTALL_HINT =
  'install redis-server (Debian: apt-get install redis-server), set RELAY_BROKER_URL to a Redis that runs, ' +
  'or run without Redis';

export interface RedisProgram {
  command: string;
  /** Words in front that make the program find its libraries. */
  wrapper: string[];
}

/**
 * A private copy of Debian's redis-server under toolsDir, downloaded and unpacked the first time, with its
 * own package lists: no root, nothing of the system changed. Made aside and renamed when it has been seen
 * to run, so that two processes at once, or a killed one, never leave half a copy.
 */
export async function unpackedRedis(toolsDir: string, log: LogLine): Promise<RedisProgram> {
  const home = join(toolsDir, 'redis');
  if (existsSync(home)) return programIn(home);
  if (!findOnPath(['apt-get']) || !findOnPath(['dpkg-deb'])) {
    throw new LocalServiceUnavailable('redis', `no Redis here: ${INSTALL_HINT}`);
  }
  log('no redis-server here: unpacking a private copy into .relay/tools (first run only)');
  try {
    mkdirSync(toolsDir, { recursive: true });
    await build(toolsDir, home);
  } catch (error) {
    const detail = error instanceof Error ? error.message.trim().split('\n').at(-1) : String(error);
    throw new LocalServiceUnavailable(
      'redis',
      `no Redis here and none to be had (${detail}): ${INSTALL_HINT}`,
      {
        cause: error,
      },
    );
  }
  return programIn(home);
}

async function build(toolsDir: string, home: string): Promise<void> {
  const draft = mkdtempSync(join(toolsDir, 'redis-draft-'));
  try {
    const root = join(draft, 'root');
    const apt = await privateApt(draft);
    await fetchWithLibraries(apt, draft, root);
    // Debian ships the server as a link in another package to this very program, which acts by its name.
    symlinkSync('redis-check-rdb', join(root, 'usr', 'bin', 'redis-server'));
    await runs(programIn(root));
    renameSync(root, home);
  } catch (error) {
    if (!existsSync(home)) throw error; // else another process was first, and its copy serves
  } finally {
    rmSync(draft, { recursive: true, force: true });
  }
}

/** An apt that keeps its state in the draft, so that it neither needs nor takes the system's locks. */
async function privateApt(draft: string): Promise<string[]> {
  for (const directory of ['state/lists/partial', 'cache/archives/partial', 'debs', 'root']) {
    mkdirSync(join(draft, directory), { recursive: true });
  }
  const settings = {
    'Dir::State': join(draft, 'state'),
    'Dir::State::status': '/var/lib/dpkg/status',
    'Dir::Cache': join(draft, 'cache'),
    'APT::Sandbox::User': userInfo().username,
    'Debug::NoLocking': '1',
    'Acquire::Retries': '2',
    'Acquire::http::Timeout': '20',
  };
  const apt = Object.entries(settings).flatMap(([name, value]) => ['-o', `${name}=${value}`]);
  await execute('apt-get', [...apt, '-qq', 'update'], { timeout: COMMAND_TIMEOUT_MS });
  return apt;
}

/** Downloads the server and, in rounds, those libraries it depends on that this machine lacks. */
async function fetchWithLibraries(apt: string[], draft: string, root: string): Promise<void> {
  const debs = join(draft, 'debs');
  const seen = new Set<string>();
  let wanted = ['redis-tools'];
  while (wanted.length > 0) {
    for (const name of wanted) seen.add(name);
    await execute('apt-get', [...apt, '-qq', 'download', ...wanted], {
      cwd: debs,
      timeout: COMMAND_TIMEOUT_MS,
    });
    const dependencies = new Set<string>();
    for (const file of readdirSync(debs)) {
      const deb = join(debs, file);
      await execute('dpkg-deb', ['-x', deb, root]);
      const { stdout } = await execute('dpkg-deb', ['-f', deb, 'Depends']);
      for (const name of libraryNames(stdout)) dependencies.add(name);
      rmSync(deb);
    }
    wanted = [...dependencies].filter((name) => !seen.has(name) && !installed(name));
  }
}

/** `libssl3 (>= 3.0.0), libc6 | libc6.1, adduser` → the first choice of each that is a library. */
function libraryNames(depends: string): string[] {
  return depends
    .split(',')
    .map((choice) => /^\s*(lib[^\s|(:]+)/.exec(choice)?.[1])
    .filter((name) => name !== undefined);
}

function installed(name: string): boolean {
  const answer = spawnSync('dpkg-query', ['-s', name], { encoding: 'utf8' });
  return answer.stdout?.includes('install ok installed') ?? false;
}

function programIn(root: string): RedisProgram {
  const libraries = ['usr/lib', 'lib']
    .map((directory) => join(root, directory))
    .filter((directory) => existsSync(directory))
    .flatMap((directory) => [directory, ...multiarch(directory)]);
  return {
    command: join(root, 'usr', 'bin', 'redis-server'),
    wrapper: ['env', `LD_LIBRARY_PATH=${libraries.join(':')}`],
  };
}

function multiarch(directory: string): string[] {
  return readdirSync(directory)
    .filter((name) => name.endsWith('-linux-gnu') || name.endsWith('-linux-gnueabihf'))
    .map((name) => join(directory, name));
}

async function runs(program: RedisProgram): Promise<void> {
  const [command = '', ...args] = [...program.wrapper, program.command, '--version'];
  await execute(command, args);
}
