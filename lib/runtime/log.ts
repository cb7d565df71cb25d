import { createRequire } from 'node:module';
import { destination, type Logger, pino, stdSerializers } from 'pino';

export type { Logger } from 'pino';

export interface LogOptions {
  service: string;
  level: string;
  /** `auto`: JSON to a pipe, readable lines to a terminal. */
  format: 'json' | 'text' | 'auto';
}

// A safety net, not the method: nothing that carries a secret is logged in the first place.
const SECRET_FIELDS = ['secret', 'previousSecret', 'authorization', 'adminKey', 'secretKeys', 'password'];
const REDACT = SECRET_FIELDS.flatMap((field) => [field, `*.${field}`, `*.*.${field}`]);

/**
 * One logger for a process. Lines go to stdout synchronously: a line costs about 3 us, and the lines before a crash are there
 * when it is looked into.
 */
export function createLogger(options: LogOptions): Logger {
  const asText = options.format === 'text' || (options.format === 'auto' && process.stdout.isTTY === true);
  return pino(
    {
      level: options.level,
      base: { service: options.service },
      timestamp: pino.stdTimeFunctions.isoTime,
      serializers: { err: safeError },
      redact: { paths: REDACT, censor: '<redacted>' },
    },
    asText ? prettyStream() : destination({ dest: 1, sync: true }),
  );
}

/** A Postgres error quotes row contents in `detail` and `where`; neither belongs in a log. */
function safeError(error: Error): object {
  const { type, message, stack } = stdSerializers.err(error);
  const code = (error as { code?: unknown }).code;
  return { type, message, stack, ...(typeof code === 'string' ? { code } : {}) };
}

function prettyStream() {
  // pino-pretty is CommonJS and wanted on terminals only; a worker transport would lose the last lines of a crash.
  const pretty = createRequire(import.meta.url)('pino-pretty') as (options: object) => NodeJS.WritableStream;
  return pretty({
    colorize: process.stdout.isTTY === true,
    sync: true,
    ignore: 'pid,hostname,service',
    translateTime: 'HH:MM:ss.l',
  });
}
