import { positive, UsageError, whole } from '../arguments.ts';

export const SCENARIOS = ['dead', 'hang', 'trickle', 'flood', 'flap', 'slow50', 'held-key'] as const;
export type Scenario = (typeof SCENARIOS)[number];

export const NEIGHBOURS_USAGE = `Neighbours (private fleets only; --seconds is the measured part, 20; --endpoints are the healthy ones, 20; --dispatchers 2)
  --scenario WHICH     ${SCENARIOS.join(', ')} or all; several with commas (all)
  --pairs N            runs without and with the bad one, in turn (5)
  --healthy-rate N     events a second for all healthy endpoints together (100)
  --backlog N          deliveries owed to the bad endpoint before the measured part (dead 100000, hang and trickle 20000,
                       slow50 5000, flap 2000)
  --bad-rate N  --bad-burst N  --bad-cap N
                       rate, burst and max_in_flight of each bad endpoint (10, 20, 8)
  --bad-batch N        events in each post of the flood (100)
  --recovery N         seconds to wait for a bad endpoint that came back to get its own rate; 0: do not look (120)
  --first-pass N       seconds in which each delivery of the backlog must have been looked at once (300)
  --restart-postgres-at N  --change-leader-at N
                       seconds into the measured part at which Postgres is restarted, or the leading one of two
                       reconcilers is killed, with and without the bad one`;

export interface NeighbourOptions {
  scenarios: readonly Scenario[];
  pairs: number;
  /** Null: the scenario's own. */
  backlog: number | null;
  /** Of each bad endpoint. */
  bad: { ratePerSecond: number; burst: number; maxInFlight: number; batch: number };
  recoverySeconds: number;
  firstPassSeconds: number;
  restartPostgresAtSeconds: number | null;
  changeLeaderAtSeconds: number | null;
}

/** For the strict parser of the command line. */
export const NEIGHBOUR_ARGUMENTS = {
  scenario: { type: 'string', multiple: true },
  pairs: { type: 'string' },
  'healthy-rate': { type: 'string' },
  backlog: { type: 'string' },
  'bad-rate': { type: 'string' },
  'bad-burst': { type: 'string' },
  'bad-cap': { type: 'string' },
  'bad-batch': { type: 'string' },
  recovery: { type: 'string' },
  'first-pass': { type: 'string' },
  'restart-postgres-at': { type: 'string' },
  'change-leader-at': { type: 'string' },
} as const;

type Values = { [Name in keyof typeof NEIGHBOUR_ARGUMENTS]?: string | string[] | undefined };

/** Reads what only this mode knows. Throws UsageError. */
export function neighbourOptions(values: Values, seconds: number): NeighbourOptions {
  const text = (name: keyof Values, fallback: string) => String(values[name] ?? fallback);
  const within = (name: 'restart-postgres-at' | 'change-leader-at') => {
    if (values[name] === undefined) return null;
    const at = whole(name, text(name, ''), 0);
    if (at < seconds) return at;
    throw new UsageError(`--${name} must lie within the ${seconds} measured seconds, and got ${at}`);
  };
  return {
    scenarios: scenariosOf([values.scenario ?? 'all'].flat()),
    pairs: whole('pairs', text('pairs', '5'), 1),
    backlog: values.backlog === undefined ? null : whole('backlog', text('backlog', ''), 0),
    bad: {
      ratePerSecond: positive('bad-rate', text('bad-rate', '10')),
      burst: whole('bad-burst', text('bad-burst', '20'), 1),
      maxInFlight: whole('bad-cap', text('bad-cap', '8'), 1),
      batch: whole('bad-batch', text('bad-batch', '100'), 1),
    },
    recoverySeconds: whole('recovery', text('recovery', '120'), 0),
    firstPassSeconds: whole('first-pass', text('first-pass', '300'), 1),
    restartPostgresAtSeconds: within('restart-postgres-at'),
    changeLeaderAtSeconds: within('change-leader-at'),
  };
}

function scenariosOf(words: readonly string[]): readonly Scenario[] {
  const named = words.flatMap((word) => word.split(','));
  if (named.includes('all')) return SCENARIOS;
  const odd = named.find((word) => !SCENARIOS.includes(word as Scenario));
  if (odd !== undefined)
    throw new UsageError(`--scenario takes ${SCENARIOS.join(', ')} or all, and got ${odd}`);
  return SCENARIOS.filter((scenario) => named.includes(scenario));
}
