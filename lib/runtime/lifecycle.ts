export interface RunningService {
  /** Stops within the service's own deadline; resolves when nothing of it runs any more. */
  stop(): Promise<void>;
}

/**
 * Runs one service as a process: starts it, waits for SIGTERM or SIGINT, stops it and exits 0. A second signal exits at once with
 * 1. A start that fails prints one sentence for a wrong setting, or the error, and exits 1.
 */
export async function runService(name: string, start: () => Promise<RunningService>): Promise<void> {
  const signalled = firstSignal();
  try {
    const service = await start();
    await signalled;
    await service.stop();
    process.exit(0);
  } catch (error) {
    console.error(`${name}: ${describeStartError(error)}`);
    process.exit(1);
  }
}

/** Runs a command to its end and exits 0; one that fails is reported like a failed start, and exits 1. */
export async function runCommand(name: string, work: () => Promise<void>): Promise<void> {
  try {
    await work();
    process.exit(0);
  } catch (error) {
    console.error(`${name}: ${describeStartError(error)}`);
    process.exit(1);
  }
}

/** Ctrl-C under npm may come twice at once: from the terminal to us, and again from npm, which passes on what it was sent. */
const SAME_SIGNAL_MS = 300;

function firstSignal(): Promise<void> {
  return new Promise((resolve) => {
    let askedAt: number | null = null;
    const onSignal = () => {
      const now = performance.now();
      if (askedAt !== null && now - askedAt > SAME_SIGNAL_MS) process.exit(1);
      askedAt ??= now;
      resolve();
    };
    process.on('SIGTERM', onSignal);
    process.on('SIGINT', onSignal);
  });
}

const EXPECTED = new Set([
  'ConfigurationError',
  'SchemaBehindError',
  'SecretKeyMissingError',
  'LocalServiceUnavailable',
  'PoolerError',
]);

/** A port that is taken or forbidden, a server that is not there: the message says which. */
const EXPECTED_CODES = new Set([
  'EADDRINUSE',
  'EADDRNOTAVAIL',
  'EACCES',
  'ECONNREFUSED',
  'ENOTFOUND',
  '3D000',
  '28P01',
  '28000',
]);

function describeStartError(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const { code } = error as NodeJS.ErrnoException;
  return EXPECTED.has(error.name) || EXPECTED_CODES.has(code ?? '')
    ? error.message
    : (error.stack ?? error.message);
}
