import type pg from 'pg';
import { newestDispatcherBeatMs, pingDatabase, queueLatenessMs } from '../../lib/store/readiness.ts';

export interface Check {
  status: 'pass' | 'fail' | 'skipped';
  detail: string;
}

/** Whether this process should be given requests, and why not. */
export interface ReadinessReport {
  ready: boolean;
  draining: boolean;
  database: Check;
  dispatcher: Check;
  queue: Check;
}

export interface ReadinessOptions {
  heartbeatMaxAgeMs: number;
  maxLatenessMs: number;
}

/** One answer serves everybody who asks within this time: probes of a fleet must not add up to a load. */
const FRESH_MS = 1_000;
/** A probe gives up soon; the answer should be no before it does. */
const LIMIT_MS = 2_000;

/**
 * Judges readiness: the database answers, dispatchers are alive, nothing is late. A check whose question fails is a fail, never a pass.
 * Redis is not asked: without it Relay accepts and delivers.
 */
export class Readiness {
  readonly #pool: pg.Pool;
  readonly #options: ReadinessOptions;
  #draining = false;
  #latest: { at: number; report: Promise<ReadinessReport> } | null = null;

  constructor(pool: pg.Pool, options: ReadinessOptions) {
    this.#pool = pool;
    this.#options = options;
  }

  /** From now on the answer is no: the process is going away. */
  drain(): void {
    this.#draining = true;
  }

  async report(): Promise<ReadinessReport> {
    if (this.#draining) return DRAINING;
    const now = performance.now();
    if (!this.#latest || now - this.#latest.at > FRESH_MS) {
      this.#latest = { at: now, report: this.#judge() };
    }
    return this.#latest.report;
  }

  async #judge(): Promise<ReadinessReport> {
    const database = await check('the database does not answer', async () => {
      await pingDatabase(this.#pool);
      return pass('answers');
    });
    if (database.status !== 'pass') {
      return { ready: false, draining: false, database, dispatcher: SKIPPED, queue: SKIPPED };
    }
    const [dispatcher, queue] = await Promise.all([
      check('the heartbeats could not be read', () => this.#dispatchers()),
      check('the queue could not be read', () => this.#lateness()),
    ]);
    const ready = dispatcher.status === 'pass' && queue.status === 'pass';
    return { ready, draining: false, database, dispatcher, queue };
  }

  async #dispatchers(): Promise<Check> {
    const ageMs = await newestDispatcherBeatMs(this.#pool);
    if (ageMs === null) return fail('no dispatcher has ever reported');
    const { heartbeatMaxAgeMs } = this.#options;
    const said = `the newest heartbeat of a dispatcher is ${inSeconds(ageMs)} old`;
    return ageMs <= heartbeatMaxAgeMs
      ? pass(said)
      : fail(`${said}, more than ${inSeconds(heartbeatMaxAgeMs)}`);
  }

  async #lateness(): Promise<Check> {
    const lateMs = await queueLatenessMs(this.#pool);
    if (lateMs === null) return pass('nothing is late');
    const { maxLatenessMs } = this.#options;
    const said = `the oldest due delivery is ${inSeconds(lateMs)} late`;
    return lateMs <= maxLatenessMs ? pass(said) : fail(`${said}, more than ${inSeconds(maxLatenessMs)}`);
  }
}

const SKIPPED: Check = { status: 'skipped', detail: 'needs the database' };
const LEAVING: Check = { status: 'skipped', detail: 'draining' };
const DRAINING: ReadinessReport = {
  ready: false,
  draining: true,
  database: LEAVING,
  dispatcher: LEAVING,
  queue: LEAVING,
};

async function check(failure: string, ask: () => Promise<Check>): Promise<Check> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<Check>((resolve) => {
    timer = setTimeout(() => resolve(fail(`${failure} within ${inSeconds(LIMIT_MS)}`)), LIMIT_MS);
  });
  try {
    return await Promise.race([ask(), late]);
  } catch {
    return fail(failure);
  } finally {
    clearTimeout(timer);
  }
}

function pass(detail: string): Check {
  return { status: 'pass', detail };
}

function fail(detail: string): Check {
  return { status: 'fail', detail };
}

function inSeconds(ms: number): string {
  return `${(Math.max(0, ms) / 1000).toFixed(1)} s`;
}
