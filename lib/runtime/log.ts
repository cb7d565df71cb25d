import { createRequire } from 'node:module';
import { type DestinationStream, destination, type Logger, pino, stdSerializers } from 'pino';

export type { Logger } from 'pino';

export interface LogOptions {
  service: string;
  level: string;
  /** `auto`: JSON to a pipe, readable lines to a terminal. */
  format: 'json' | 'text' | 'auto';
  /** Takes the lines instead of stdout, each with its end of line; for whoever shares the terminal with them. */
  write?: (line: string) => void;
}

// A safety net, not the method: nothing that carries a secret is logged in the first place.
const SECRET_FIELDS = ['secret', 'previousSecret', 'authorization', 'adminKey', 'secretKeys', 'password'];
const REDACT = SECRET_FIELDS.flatMap((field) => [field, `*.${field}`, `*.*.${field}`]);

/**
 * One logger for a process. Lines go to stdout synchronously: a line costs about 3 us, and the lines before a crash are there
 * when it is looked into.
 */
export function createLogger(options: LogOptions): Logger {
  return pino(
    { ...common(options), redact: { paths: REDACT, censor: '<redacted>' } },
    options.write
      ? handOver(options.write, isText(options))
      : isText(options)
        ? prettyStream()
        : destination({ dest: 1, sync: true }),
  );
}

function handOver(write: (line: string) => void, asText: boolean): DestinationStream {
  const format = asText ? pinoPretty().prettyFactory(PRETTY) : (line: string) => line;
  return { write: (line) => write(format(line)) };
}

const FLUSH_EVERY_MS = 250;

/**
 * The logger for one line a delivery. Its callers name each field, so it does not search for secrets (that alone cost an eighth of a
 * dispatcher's time), and it writes 12 KiB at once, a quarter of a second late at most: what it says is in the database too.
 */
export function createLineLogger(options: LogOptions): Logger {
  if (options.write) return pino(common(options), handOver(options.write, isText(options)));
  if (isText(options)) return pino(common(options), prettyStream());
  const stream = destination({ dest: 1, sync: true, minLength: 12_288 });
  setInterval(() => stream.flush(), FLUSH_EVERY_MS).unref();
  process.on('exit', () => stream.flushSync());
  return pino(common(options), stream);
}

function common(options: LogOptions) {
  return {
    level: options.level,
    base: { service: options.service },
    timestamp: isoTime,
    serializers: { err: safeError },
  };
}

let printedAt = 0;
let printed = '';

/** Many lines are written in one millisecond; its name is printed once. */
function isoTime(): string {
  const now = Date.now();
  if (now !== printedAt) {
    printedAt = now;
    printed = `,"time":"${new Date(now).toISOString()}"`;
  }
  return printed;
}

function isText({ format }: LogOptions): boolean {
  return format === 'text' || (format === 'auto' && process.stdout.isTTY === true);
}

/** A Postgres error quotes row contents in `detail` and `where`; neither belongs in a log. */
function safeError(error: unknown): object {
  if (!(error instanceof Error)) return { message: String(error) };
  const { type, message, stack } = stdSerializers.err(error);
  const code = (error as { code?: unknown }).code;
  return { type, message, stack, ...(typeof code === 'string' ? { code } : {}) };
}

const PRETTY = {
  colorize: process.stdout.isTTY === true,
  ignore: 'pid,hostname,service',
  translateTime: 'HH:MM:ss.l',
};

function prettyStream(): DestinationStream {
  return pinoPretty()({ ...PRETTY, sync: true }); // a worker transport would lose the last lines of a crash
}

interface PinoPretty {
  (options: object): DestinationStream;
  prettyFactory(options: object): (line: string) => string;
}

// CommonJS, and wanted on terminals only.
function pinoPretty(): PinoPretty {
  return createRequire(import.meta.url)('pino-pretty') as PinoPretty;
}
