import { parseArgs } from 'node:util';

export const USAGE = `Usage: npm run loadtest -- <mode> [options]

  drain       accept a backlog with no dispatcher running, then start them and time the delivery of all of it
  sustained   hold a rate of events, whatever the answers, and time each from its intended send to its arrival
  ingest      accept only, no dispatcher: a closed loop, then an open one at a rate

Load
  --events N        drain: how many (60000)
  --rate N          sustained, ingest: events per second (5000, 8000)
  --seconds N       sustained, ingest: how long each loop runs, ramp included (60, 15)
  --ramp N          seconds in which an open loop climbs to its rate (3)
  --warmup N        seconds from the start that latency and CPU leave out, ramp included (5)
  --loop WHICH      ingest: closed, open or both (both)
  --endpoints N     endpoints that match each event (1)
  --connections N   of the generator (256)
  --payload N       bytes of each event (300)
  --keyed           give each event an idempotency key
  --verify          let the receiver check every signature
  --wait N          seconds to wait for what is still on its way, at most (120)

The fleet (private, started and stopped by the run)
  --apis N  --dispatchers N          processes of each (1)
  --no-redis                         run without a broker
  --env NAME=VALUE                   a setting for all services; may be repeated
  --pg NAME=VALUE                    a setting of the Postgres server; may be repeated
  --statements                       load pg_stat_statements and list the dearest statements
  --keep                             keep data and logs under .relay/loadtest
  --profile ROLE                     write CPU profiles of a role's processes there (api, dispatcher, reconciler or
                                     receiver; may be repeated; implies --keep; costs some speed)

A fleet that runs already
  --api URL[,URL]  --key KEY         its API and a key with the scopes events:write and manage
  --receiver URL                     a receiver (npm run receiver) that its dispatchers can reach
  --database URL                     to tell lost from late, and for the figures of Postgres

Results
  --json PATH                        write all figures to a file
Exit code: 0 all accepted events arrived, 1 some did not, 2 wrong usage.`;

export type Mode = 'drain' | 'sustained' | 'ingest';

export interface LoadTestOptions {
  mode: Mode;
  events: number;
  rate: number;
  seconds: number;
  rampSeconds: number;
  warmupSeconds: number;
  loops: readonly ('closed' | 'open')[];
  endpoints: number;
  connections: number;
  payloadBytes: number;
  keyed: boolean;
  verify: boolean;
  waitSeconds: number;
  json: string | null;
  target: PrivateTarget | RunningTarget;
}

export interface PrivateTarget {
  kind: 'private';
  apis: number;
  dispatchers: number;
  redis: boolean;
  env: Record<string, string>;
  postgresSettings: Record<string, string>;
  statements: boolean;
  keep: boolean;
  profile: readonly string[];
}

export interface RunningTarget {
  kind: 'running';
  apis: readonly string[];
  key: string;
  receiver: string;
  database: string | null;
}

/** Wrong usage: the message says what, and the usage follows it. */
export class UsageError extends Error {
  override readonly name = 'UsageError';
}

const DEFAULTS: Record<Mode, { rate: string; seconds: string }> = {
  drain: { rate: '0', seconds: '600' },
  sustained: { rate: '5000', seconds: '60' },
  ingest: { rate: '8000', seconds: '15' },
};

/** Reads the command line; null when help was asked for. Throws UsageError. */
export function parseOptions(args: readonly string[]): LoadTestOptions | null {
  const { values, positionals } = read(args);
  if (values.help) return null;
  const mode = modeOf(positionals);
  const defaults = DEFAULTS[mode];
  return {
    mode,
    events: whole('events', values.events ?? '60000', 1),
    rate: whole('rate', values.rate ?? defaults.rate, mode === 'drain' ? 0 : 1),
    seconds: whole('seconds', values.seconds ?? defaults.seconds, 1),
    rampSeconds: whole('ramp', values.ramp ?? '3', 0),
    warmupSeconds: whole('warmup', values.warmup ?? '5', 0),
    loops: loopsOf(values.loop ?? 'both'),
    endpoints: whole('endpoints', values.endpoints ?? '1', 1),
    connections: whole('connections', values.connections ?? '256', 1),
    payloadBytes: whole('payload', values.payload ?? '300', 1),
    keyed: values.keyed ?? false,
    verify: values.verify ?? false,
    waitSeconds: whole('wait', values.wait ?? '120', 1),
    json: values.json ?? null,
    target: values.api === undefined ? privateTarget(values) : runningTarget(mode, values),
  };
}

function read(args: readonly string[]) {
  const text = { type: 'string' } as const;
  const many = { type: 'string', multiple: true } as const;
  const flag = { type: 'boolean' } as const;
  const load = {
    events: text,
    rate: text,
    seconds: text,
    ramp: text,
    warmup: text,
    loop: text,
    endpoints: text,
  };
  const more = {
    connections: text,
    payload: text,
    keyed: flag,
    verify: flag,
    wait: text,
    json: text,
    help: flag,
  };
  const fleet = {
    apis: text,
    dispatchers: text,
    'no-redis': flag,
    env: many,
    pg: many,
    statements: flag,
    keep: flag,
    profile: many,
  };
  const running = { api: text, key: text, receiver: text, database: text };
  try {
    return parseArgs({
      args: [...args],
      allowPositionals: true,
      options: { ...load, ...more, ...fleet, ...running },
    });
  } catch (error) {
    throw new UsageError((error as Error).message);
  }
}

type Values = ReturnType<typeof read>['values'];

function modeOf(positionals: readonly string[]): Mode {
  const [mode, ...rest] = positionals;
  if (rest.length === 0 && (mode === 'drain' || mode === 'sustained' || mode === 'ingest')) return mode;
  throw new UsageError('one mode is needed: drain, sustained or ingest');
}

function privateTarget(values: Values): PrivateTarget {
  return {
    kind: 'private',
    apis: whole('apis', values.apis ?? '1', 1),
    dispatchers: whole('dispatchers', values.dispatchers ?? '1', 1),
    redis: !values['no-redis'],
    env: pairs('env', values.env ?? []),
    postgresSettings: pairs('pg', values.pg ?? []),
    statements: values.statements ?? false,
    keep: values.keep === true || values.profile !== undefined,
    profile: (values.profile ?? []).map(roleOf),
  };
}

function runningTarget(mode: Mode, values: Values): RunningTarget {
  if (mode === 'drain') throw new UsageError('drain starts its own dispatchers, so it cannot use --api');
  if (!values.key) throw new UsageError('--api needs --key');
  if (!values.receiver) throw new UsageError('--api needs --receiver, where the deliveries are counted');
  const apis = values.api!.split(',').map((url) => url.replace(/\/$/, ''));
  const odd = apis.find((url) => !/^http:\/\/[^/]+:\d+$/.test(url));
  if (odd !== undefined) throw new UsageError(`--api takes http://host:port, and got ${odd}`);
  return {
    kind: 'running',
    apis,
    key: values.key,
    receiver: values.receiver.replace(/\/$/, ''),
    database: values.database ?? null,
  };
}

function roleOf(word: string): string {
  if (['api', 'dispatcher', 'reconciler', 'receiver'].includes(word)) return word;
  throw new UsageError(`--profile takes api, dispatcher, reconciler or receiver, and got ${word}`);
}

function loopsOf(word: string): ('closed' | 'open')[] {
  if (word === 'both') return ['closed', 'open'];
  if (word === 'closed' || word === 'open') return [word];
  throw new UsageError('--loop takes closed, open or both');
}

function whole(name: string, value: string, min: number): number {
  const number = Number(value);
  if (/^\d+$/.test(value) && number >= min && number <= 1_000_000_000) return number;
  throw new UsageError(`--${name} takes a whole number of at least ${min}, and got ${value}`);
}

function pairs(name: string, entries: readonly string[]): Record<string, string> {
  return Object.fromEntries(
    entries.map((entry) => {
      const equals = entry.indexOf('=');
      if (equals < 1) throw new UsageError(`--${name} takes NAME=VALUE, and got ${entry}`);
      return [entry.slice(0, equals), entry.slice(equals + 1)];
    }),
  );
}
