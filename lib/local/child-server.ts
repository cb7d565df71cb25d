import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { closeSync, openSync, readFileSync, statSync } from 'node:fs';
import { dirname } from 'node:path';

const LOG_LIMIT_BYTES = 10 * 1024 * 1024;

/** A server process that is ours: started here, told to stop here, and gone when this process is gone. */
export interface ChildServer {
  readonly pid: number;
  /** Settles when the process has ended, with its exit code (null when a signal ended it). */
  readonly exited: Promise<number | null>;
  alive(): boolean;
  /** What it has written to its log file since it was started. */
  output(): string;
  /** Sends each signal in turn until the process has ended; the last one should be SIGKILL. */
  stop(steps: readonly StopStep[]): Promise<void>;
}

export interface StopStep {
  signal: NodeJS.Signals;
  waitMs: number;
}

export interface ChildServerOptions {
  logFile: string;
  /** What the kernel sends it when this process dies without a word (Linux, util-linux). */
  deathSignal: 'INT' | 'TERM';
  /** Command words in front, such as a change of user; the death signal is set inside of them. */
  wrapper?: readonly string[];
  stdin?: string;
}

/**
 * Starts a server in a process group of its own, so that Ctrl-C reaches us alone and we can drain before it
 * stops. Call from the main thread only: the kernel ties the death signal to the thread that forked.
 */
export function startChildServer(argv: readonly string[], options: ChildServerOptions): ChildServer {
  const [command = '', ...args] = [...(options.wrapper ?? []), ...deathSignal(options.deathSignal), ...argv];
  const log = openLog(options.logFile);
  const child = spawn(command, args, {
    detached: true,
    cwd: dirname(options.logFile), // ours may be closed to the account it runs as
    stdio: [options.stdin === undefined ? 'ignore' : 'pipe', log.fd, log.fd],
  });
  closeSync(log.fd);
  child.stdin?.on('error', () => undefined); // it may be gone before it has read; `exited` tells
  child.stdin?.end(options.stdin);
  child.unref();
  stopWithUs(child, `SIG${options.deathSignal}`);
  return server(child, () => readFileSync(options.logFile).subarray(log.start).toString('utf8'));
}

function server(child: ChildProcess, output: () => string): ChildServer {
  const exited = new Promise<number | null>((resolve) => {
    child.once('exit', resolve);
    child.once('error', () => resolve(-1));
  });
  const alive = () => child.pid !== undefined && child.exitCode === null && child.signalCode === null;
  async function stop(steps: readonly StopStep[]): Promise<void> {
    child.ref();
    for (const step of steps) {
      if (!alive()) return;
      child.kill(step.signal);
      if (await endsWithin(exited, step.waitMs)) return;
    }
  }
  return { pid: child.pid ?? -1, exited, alive, output, stop };
}

/** Where the kernel cannot do it (no setpriv), an ordinary end of this process still takes the server along. */
function stopWithUs(child: ChildProcess, signal: NodeJS.Signals): void {
  const onExit = () => child.kill(signal);
  process.setMaxListeners(Math.max(process.getMaxListeners(), 50));
  process.once('exit', onExit);
  child.once('exit', () => process.off('exit', onExit));
}

function openLog(file: string): { fd: number; start: number } {
  const size = statSync(file, { throwIfNoEntry: false })?.size ?? 0;
  const append = size < LOG_LIMIT_BYTES;
  return { fd: openSync(file, append ? 'a' : 'w', 0o600), start: append ? size : 0 };
}

let deathSignalSupported: boolean | undefined;

function deathSignal(signal: 'INT' | 'TERM'): string[] {
  deathSignalSupported ??=
    spawnSync('setpriv', ['--pdeathsig=INT', 'true'], { stdio: 'ignore' }).status === 0;
  return deathSignalSupported ? ['setpriv', `--pdeathsig=${signal}`, '--'] : [];
}

async function endsWithin(exited: Promise<unknown>, limitMs: number): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<false>((resolve) => {
    timer = setTimeout(() => resolve(false), limitMs);
  });
  try {
    return await Promise.race([exited.then(() => true), late]);
  } finally {
    clearTimeout(timer);
  }
}
