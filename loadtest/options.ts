import { parseArgs } from 'node:util';
import { MAX_POSTED_EVENTS } from '../lib/domain/limits.ts';
import { pairs, UsageError, whole } from './arguments.ts';
import {
  NEIGHBOUR_ARGUMENTS,
  NEIGHBOURS_USAGE,
  type NeighbourOptions,
  neighbourOptions,
} from './neighbours/options.ts';

export { UsageError } from './arguments.ts';

export const USAGE = `Usage: npm run loadtest -- <mode> [options]

  drain       accept a backlog with no dispatcher running, then start them and time the delivery of all of it
  sustained   hold a rate of events, whatever the answers, and time each from its intended send to its arrival
  ingest      accept only, no dispatcher: a closed loop, then an open one at a rate
  neighbours  healthy endpoints at a steady rate without and with a bad one beside them, in turn

Load
  --events N        drain: how many (60000)
  --rate N          sustained, ingest: events per second (5000, 8000)
  --seconds N       sustained, ingest: how long each loop runs, ramp included (60, 15)
  --ramp N          seconds in which an open loop climbs to its rate (3)
  --warmup N        seconds from the start that latency and CPU leave out, ramp included (5; neighbours 8)
  --loop WHICH      ingest: closed, open or both (both)
  --endpoints N     endpoints that match each event (1)
  --connections N   of the generator (256; neighbours 64)
  --payload N       bytes of each event (300)
  --keyed           give each event an idempotency key
  --batch N         ingest: then also a closed loop of batches of N events
  --verify          let the receiver check every signature
  --wait N          seconds to wait for what is still on its way, at most (120)

The fleet (private, started and stopped by the run)
  --apis N  --dispatchers N          processes of each (1; neighbours two dispatchers)
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

${NEIGHBOURS_USAGE}

Results
  --json PATH                        write all figures to a file
Exit code: 0 all accepted events arrived (and no bound of neighbours was passed), 1 some did not, 2 wrong usage.`;

export const MODES = ['drain', 'sustained', 'ingest', 'neighbours'] as const;
export type Mode = (typeof MODES)[number];

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
  /** Of the mode `ingest`: how many events each request of one more loop posts; null for no such loop. */
  batch: number | null;
  verify: boolean;
  waitSeconds: number;
  json: string | null;
  /** Of the mode `neighbours` alone. */
  neighbours: NeighbourOptions | null;
  target: PrivateTarget | RunningTarget;
}

export interface PrivateTarget {
  kind: 'private';
  apis: number;
  dispatchers: number;
  reconcilers: number;
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

interface Defaults {
  rate: string;
  seconds: string;
  endpoints: string;
  connections: string;
  dispatchers: string;
  warmup: string;
}

const ONE = { endpoints: '1', connections: '256', dispatchers: '1', warmup: '5' };
const DEFAULTS: Record<Mode, Defaults> = {
  drain: { ...ONE, rate: '0', seconds: '600' },
  sustained: { ...ONE, rate: '5000', seconds: '60' },
  ingest: { ...ONE, rate: '8000', seconds: '15' },
  neighbours: {
    rate: '100',
    seconds: '20',
    endpoints: '20',
    connections: '64',
    dispatchers: '2',
    warmup: '8',
  },
};

/** Reads the command line; null when help was asked for. Throws UsageError. */
export function parseOptions(args: readonly string[]): LoadTestOptions | null {
  const { values, positionals } = read(args);
  if (values.help) return null;
  const mode = modeOf(positionals);
  const defaults = DEFAULTS[mode];
  const seconds = whole('seconds', values.seconds ?? defaults.seconds, 1);
  const neighbours = mode === 'neighbours' ? neighbourOptions(values, seconds) : null;
  return {
    mode,
    events: whole('events', values.events ?? '60000', 1),
    rate: rateOf(mode, values),
    seconds,
    rampSeconds: whole('ramp', values.ramp ?? '3', 0),
    warmupSeconds: whole('warmup', values.warmup ?? defaults.warmup, 0),
    loops: loopsOf(values.loop ?? 'both'),
    endpoints: whole('endpoints', values.endpoints ?? defaults.endpoints, 1),
    connections: whole('connections', values.connections ?? defaults.connections, 1),
    payloadBytes: whole('payload', values.payload ?? '300', 1),
    keyed: values.keyed ?? false,
    batch: batchOf(mode, values.batch),
    verify: values.verify ?? false,
    waitSeconds: whole('wait', values.wait ?? '120', 1),
    json: values.json ?? null,
    neighbours,
    target:
      values.api === undefined ? privateTarget(values, defaults, neighbours) : runningTarget(mode, values),
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
    batch: text,
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
      options: { ...load, ...more, ...fleet, ...running, ...NEIGHBOUR_ARGUMENTS },
    });
  } catch (error) {
    throw new UsageError((error as Error).message);
  }
}

type Values = ReturnType<typeof read>['values'];

function modeOf(positionals: readonly string[]): Mode {
  const [mode, ...rest] = positionals;
  const known = MODES.find((name) => name === mode);
  if (known && rest.length === 0) return known;
  throw new UsageError('one mode is needed: drain, sustained, ingest or neighbours');
}

function batchOf(mode: Mode, value: string | undefined): number | null {
  if (value === undefined) return null;
  if (mode !== 'ingest') throw new UsageError('--batch is for the mode ingest');
  const size = whole('batch', value, 1);
  if (size > MAX_POSTED_EVENTS) throw new UsageError(`--batch takes at most ${MAX_POSTED_EVENTS}`);
  return size;
}

function rateOf(mode: Mode, values: Values): number {
  const { rate } = DEFAULTS[mode];
  if (mode === 'neighbours') return whole('healthy-rate', values['healthy-rate'] ?? values.rate ?? rate, 1);
  return whole('rate', values.rate ?? rate, mode === 'drain' ? 0 : 1);
}

function privateTarget(
  values: Values,
  defaults: Defaults,
  neighbours: NeighbourOptions | null,
): PrivateTarget {
  return {
    kind: 'private',
    apis: whole('apis', values.apis ?? '1', 1),
    dispatchers: whole('dispatchers', values.dispatchers ?? defaults.dispatchers, 1),
    reconcilers: neighbours?.changeLeaderAtSeconds == null ? 1 : 2,
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
  if (mode === 'neighbours')
    throw new UsageError('neighbours starts a fleet for each half of a pair, so it cannot use --api');
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
