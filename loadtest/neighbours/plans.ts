import type { NeighbourOptions, Scenario } from './options.ts';

/** One kind of bad neighbour, and what is done with it. */
export interface Plan {
  scenario: Scenario;
  title: string;
  /** Where its deliveries go at a receiver of their own, one endpoint each. */
  paths: readonly string[];
  /** Whether that receiver runs from the start. Without it the port refuses, until it comes back. */
  listens: boolean;
  /** Deliveries owed before the measured part, all bad endpoints together. */
  backlog: number;
  /** Events a second posted for the bad endpoints during the measured part, all together. */
  feedRate: number;
  /** How many of them each post carries: a flood by single posts measures what a request costs, not what the flooded endpoint does. */
  feedBatch: number;
  /** Seconds between the end of the first pass and the measured part, with the feed running. */
  settleSeconds: number;
  /** Switches the toggle this often; null: it stays off. */
  flipEverySeconds: number | null;
  /** Whether it can be made to work again. */
  recovers: boolean;
  /** Whether the healthy events carry idempotency keys of their own, and another producer meets one that is held. */
  heldKey: boolean;
  env: Record<string, string>;
}

export const TOGGLE = 'bad';

const NOTHING: Omit<Plan, 'scenario' | 'title'> = {
  paths: [],
  listens: true,
  backlog: 0,
  feedRate: 0,
  feedBatch: 1,
  settleSeconds: 2,
  flipEverySeconds: null,
  recovers: false,
  heldKey: false,
  env: {},
};

const SLOW_ENDPOINTS = 50;

export function planOf(scenario: Scenario, options: Pick<NeighbourOptions, 'backlog' | 'bad'>): Plan {
  const { ratePerSecond } = options.bad;
  const backlog = (own: number) => options.backlog ?? own;
  const plans: Record<Scenario, Omit<Plan, 'scenario'>> = {
    dead: {
      ...NOTHING,
      title: 'one endpoint that refuses connections',
      paths: ['/sink'],
      listens: false,
      backlog: backlog(100_000),
      recovers: true,
    },
    hang: {
      ...NOTHING,
      title: 'one endpoint that accepts and never answers',
      paths: [`/toggle?name=${TOGGLE}&off=hang`],
      backlog: backlog(20_000),
      recovers: true,
    },
    trickle: {
      ...NOTHING,
      title: 'two endpoints that send a byte every half second, one of its headers, one of its body',
      paths: ['headers', 'body'].map((part) => `/toggle?name=${TOGGLE}&off=trickle&ms=500&part=${part}`),
      backlog: backlog(20_000),
      recovers: true,
    },
    flood: {
      ...NOTHING,
      title: 'one endpoint that is sent a hundred times its rate',
      paths: ['/sink'],
      feedRate: Math.ceil(100 * ratePerSecond),
      feedBatch: options.bad.batch,
      settleSeconds: 5,
    },
    flap: {
      ...NOTHING,
      title: 'one endpoint that fails for three seconds and works for three, in turn',
      paths: [`/toggle?name=${TOGGLE}`],
      backlog: backlog(2_000),
      feedRate: Math.ceil(ratePerSecond),
      flipEverySeconds: 3,
      recovers: true,
    },
    slow50: {
      ...NOTHING,
      title: `${SLOW_ENDPOINTS} endpoints that answer 200 after 9 s`,
      paths: Array.from({ length: SLOW_ENDPOINTS }, (_, n) => `/slow?ms=9000&endpoint=${n + 1}`),
      backlog: backlog(5_000),
      settleSeconds: 15,
      // By default 5 s without a byte end an attempt, and 9 s would be failures.
      env: { RELAY_READ_TIMEOUT_SECS: '10' },
    },
    'held-key': {
      ...NOTHING,
      title: 'a producer whose open transaction holds an idempotency key that another one posts with',
      heldKey: true,
    },
  };
  return { scenario, ...plans[scenario] };
}
