// `node services/standalone/bootstrap.mjs <job> [args]`: the one way in, from a bare clone to a running job.
// Node builtins only, since it installs everything else; the syntax is kept old enough to say so on an old Node.
import { dirname, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

const root = dirname(dirname(dirname(fileURLToPath(import.meta.url))));

const JOBS = {
  prepare: null, // installs and builds, and no more
  standalone: 'dist/services/standalone/main.js',
  api: 'dist/services/api/main.js',
  dispatcher: 'dist/services/dispatcher/main.js',
  reconciler: 'dist/services/reconciler/main.js',
  receiver: 'dist/services/receiver/main.js',
  migrate: 'dist/services/migrate/main.js',
  'check-invariants': 'dist/services/migrate/check-invariants.js',
  'reencrypt-secrets': 'dist/services/migrate/reencrypt-secrets.js',
  loadtest: 'dist/loadtest/main.js',
  test: 'node_modules/vitest/vitest.mjs',
};

const [job = '', ...args] = process.argv.slice(2);
const problem = problemWith(job);
if (problem) stop(problem, job);
else await start(job, args);

function problemWith(job) {
  const [major, minor] = process.versions.node.split('.').map(Number);
  if (major < 20 || (major === 20 && minor < 19)) {
    return `Relay needs Node 20.19 or newer; this is ${process.versions.node}.`;
  }
  return Object.hasOwn(JOBS, job)
    ? null
    : `Usage: bootstrap.mjs <${Object.keys(JOBS).join(' | ')}> [arguments]`;
}

/** The job runs in this very process, so that signals, the terminal and the exit code are simply its own. */
async function start(job, args) {
  if (!(await prepared())) return stop(`${job} not started: see above.`, job);
  if (JOBS[job] === null) return;
  const file = join(root, JOBS[job]);
  const words = job === 'test' ? ['run', ...args] : args;
  if (job === 'test') process.chdir(root);
  process.argv = [process.execPath, file, ...words];
  process.setSourceMapsEnabled(true);
  await import(pathToFileURL(file).href);
}

async function prepared() {
  const { prepare } = await import('./prepare.mjs');
  try {
    return (await prepare(root)).built;
  } catch (error) {
    process.stderr.write(`${error.message}\n`);
    return false;
  }
}

function stop(message, job) {
  process.stderr.write(`${message}\n`);
  if (job === 'test') process.stdout.write('0 passed, 1 failed\n');
  process.exitCode = 1;
}
