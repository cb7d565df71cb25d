// Node builtins only: this runs before anything is installed.
import { spawn } from 'node:child_process';
import {
  existsSync,
  linkSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

const SOURCES = ['lib', 'services', 'loadtest'];
const POLL_MS = 100;

/** Installs dependencies and builds dist where they are missing or stale. */
export async function prepare(root) {
  if (isDeployed(root)) return { built: true };
  if (needsInstall(root)) {
    await locked(root, 'install', async () => {
      if (needsInstall(root)) await install(root);
    });
  }
  return { built: await buildWhenStale(root) };
}

/** Builds dist when a source is newer. Answers false when the compiler reported errors. */
export async function buildWhenStale(root) {
  if (!needsBuild(root)) return true;
  return locked(root, 'build', async () => {
    if (!needsBuild(root)) return true;
    const started = new Date();
    // Without the stamp, files of dist may be gone that the compiler's own notes count as written.
    if (!existsSync(join(root, 'dist', '.built')))
      rmSync(join(root, 'dist', '.tsbuildinfo'), { force: true });
    const compiler = join(root, 'node_modules', 'typescript', 'bin', 'tsc');
    const code = await run(process.execPath, [compiler, '--project', root], root);
    // Stamped with the moment before: a source saved meanwhile is newer, and built next time.
    if (code === 0) writeFileSync(join(root, 'dist', '.built'), started.toISOString());
    return code === 0;
  });
}

/** A production image: built elsewhere, its development tools left out. */
function isDeployed(root) {
  return (
    existsSync(join(root, 'dist')) &&
    existsSync(join(root, 'node_modules')) &&
    !existsSync(join(root, 'node_modules', 'typescript')) &&
    (!existsSync(join(root, 'lib')) || existsSync(join(root, 'node_modules', '.package-lock.json')))
  );
}

function needsInstall(root) {
  const installed = modified(join(root, 'node_modules', '.package-lock.json')); // npm writes it last
  return installed === 0 || installed < modified(join(root, 'package-lock.json'));
}

async function install(root) {
  process.stderr.write('installing dependencies (first run only)...\n');
  const npm = process.env.npm_execpath; // set under `npm start`; else npm is on the PATH
  const words = ['ci', '--include=dev', '--no-audit', '--no-fund', '--loglevel=error'];
  const code = npm ? await run(process.execPath, [npm, ...words], root) : await run('npm', words, root);
  if (code !== 0) throw new Error(`npm ci failed (exit code ${code}): see its message above`);
}

function needsBuild(root) {
  let built = 0;
  try {
    built = Date.parse(readFileSync(join(root, 'dist', '.built'), 'utf8'));
  } catch {
    return true;
  }
  const settings = modified(join(root, 'tsconfig.json'));
  return settings >= built || SOURCES.some((directory) => hasNewer(join(root, directory), built));
}

function hasNewer(directory, time) {
  if (!existsSync(directory)) return false;
  return readdirSync(directory, { withFileTypes: true }).some((entry) => {
    const path = join(directory, entry.name);
    if (entry.isDirectory()) return hasNewer(path, time);
    return entry.name.endsWith('ts') && modified(path) >= time;
  });
}

function modified(path) {
  return statSync(path, { throwIfNoEntry: false })?.mtimeMs ?? 0;
}

function run(command, args, cwd) {
  return new Promise((resolve, reject) => {
    // Its output goes to stderr, so that a job's stdout holds the job's words alone.
    const child = spawn(command, args, { cwd, stdio: ['ignore', 2, 2] });
    child.once('error', reject);
    child.once('exit', (code) => resolve(code ?? 1));
  });
}

/** One process at a time does the work; the others wait and then find it done. A dead holder's lock is taken. */
async function locked(root, name, work) {
  const directory = join(root, '.relay', 'locks');
  mkdirSync(directory, { recursive: true });
  const lock = join(directory, name);
  const mine = `${lock}.${process.pid}`;
  writeFileSync(mine, String(process.pid)); // linked into place whole: nobody sees a lock without its holder
  try {
    while (!link(mine, lock)) {
      if (!holderAlive(lock)) takeAway(lock, mine);
      await sleep(POLL_MS);
    }
    try {
      return await work();
    } finally {
      rmSync(lock, { force: true });
    }
  } finally {
    rmSync(mine, { force: true });
  }
}

function link(from, to) {
  try {
    linkSync(from, to);
    return true;
  } catch (error) {
    if (error.code === 'EEXIST') return false;
    throw error;
  }
}

function holderAlive(lock) {
  try {
    process.kill(Number(readFileSync(lock, 'utf8')), 0);
    return true;
  } catch (error) {
    return error.code === 'EPERM' || error.code === 'ENOENT'; // ENOENT: just released, so try again
  }
}

/** Moved before it is judged again: of two that saw the dead holder, the slower may have moved a fresh lock. */
function takeAway(lock, mine) {
  const moved = `${mine}.stale`;
  try {
    renameSync(lock, moved);
  } catch {
    return;
  }
  if (holderAlive(moved)) link(moved, lock);
  rmSync(moved, { force: true });
}
