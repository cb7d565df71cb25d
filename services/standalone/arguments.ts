import { parseArgs } from 'node:util';
import { ConfigurationError } from '../../lib/config/env.ts';

export interface Arguments {
  help: boolean;
  /** Whether a demo endpoint, a receiver and a stream of events run along. */
  demo: boolean;
}

export const HELP = `Usage: npm start [-- --no-demo]

Runs all of Relay in one process: Postgres and Redis where none are named, the API, a dispatcher and a
reconciler; and, unless told otherwise, a demo: an endpoint, a receiver behind it, and a small stream of
signed events from the one to the other. Data is kept; Ctrl-C drains and stops.

  --no-demo   services only
  --help      this text

Environment (any other setting of the services is respected too):

  DATABASE_URL         a Postgres to use; otherwise an embedded one is started
  RELAY_BROKER_URL     a Redis to use; otherwise a local one is started, or Relay runs without
  RELAY_DATA_DIR       where data and the secrets made here are kept   (.relay/data)
  RELAY_API_BIND       where the API listens                          (127.0.0.1:8080)
  RELAY_METRICS_BIND   the dispatcher's metrics; the reconciler's are one port higher
                                                                      (127.0.0.1:9091)
  RELAY_RECEIVER_BIND  where the demo's receiver listens              (127.0.0.1:9099)
  RELAY_ADMIN_KEY      the key that opens everything                  (made once)
  RELAY_SECRET_KEYS    what endpoint secrets are encrypted with       (made once)
  RELAY_LOG_LEVEL      trace, debug, info, warn, error, fatal, silent (warn)
  RELAY_LOG_FORMAT     json, text, or auto: text on a terminal        (auto)
  RELAY_ALLOW_PRIVATE_ENDPOINTS
                       whether deliveries may go to private addresses (true, here only)
`;

/** Throws ConfigurationError for an argument that there is not. */
export function parseArguments(argv: readonly string[]): Arguments {
  try {
    const { values } = parseArgs({
      args: [...argv],
      options: { help: { type: 'boolean', short: 'h' }, 'no-demo': { type: 'boolean' } },
    });
    return { help: values.help ?? false, demo: !values['no-demo'] };
  } catch (error) {
    const reason = error instanceof Error ? error.message.split('. ')[0] : String(error);
    throw new ConfigurationError(`${reason} (npm start -- --help tells what there is)`);
  }
}
