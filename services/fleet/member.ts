import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import type { RedisLink } from '../../lib/broker/link.ts';
import type { WakeMode } from '../../lib/domain/vocabulary.ts';
import type { Logger } from '../../lib/runtime/log.ts';
import { Loop } from '../../lib/runtime/loop.ts';
import { measureClockAhead } from '../../lib/store/clock.ts';
import {
  beat,
  type Fleet,
  type ProcessRole,
  registerProcess,
  unregisterProcess,
} from '../../lib/store/heartbeats.ts';

const BEAT_EVERY_MS = 1_000;
/** A difference that people should hear of: receivers refuse signatures whose timestamp is minutes off. */
const WRONG_CLOCK_MS = 30_000;

export interface MemberOptions {
  pool: pg.Pool;
  role: ProcessRole;
  /** Null when no Redis is configured. */
  link: RedisLink | null;
  log: Logger;
}

/**
 * A process's membership of the fleet: it beats every second, says how it learns of work and hears how the others do. Poll mode is a state
 * of the fleet: what one process cannot announce, every dispatcher must look for.
 */
export class FleetMember {
  readonly id = randomUUID();
  readonly loop: Loop;
  readonly #options: MemberOptions;
  #number = 0;
  #fleet: Fleet = { poll: false, liveApis: 1, liveDispatchers: 1, dispatchersBefore: 0 };
  #saidPoll: boolean | null = null;
  #clockAheadMs = 0;
  #saidWrongClock = false;

  constructor(options: MemberOptions) {
    this.#options = options;
    // Soon again after an outage: a process that is not heard of for 5 s counts as dead.
    this.loop = new Loop({
      name: 'heartbeat',
      log: options.log,
      round: () => this.#beat(),
      maxBackoffMs: BEAT_EVERY_MS,
    });
  }

  /** Enters the fleet; throws when the database is away. */
  async start(): Promise<this> {
    await this.#register();
    await this.#beat();
    this.loop.start();
    return this;
  }

  /** Names this process in `queue.claimed_by`. */
  get number(): number {
    return this.#number;
  }

  /** How this process itself learns of work. */
  get wake(): WakeMode {
    return this.#options.link?.up ? 'stream' : 'poll';
  }

  /** Whether the fleet looks into the queue instead of trusting announcements. */
  get pollMode(): boolean {
    return this.wake === 'poll' || this.#fleet.poll;
  }

  get fleet(): Fleet {
    return this.#fleet;
  }

  /** The time by the database's clock, ms since 1970: where an absolute time leaves the process, its own clock does not decide. */
  now(): number {
    return Date.now() + this.#clockAheadMs;
  }

  async stop(): Promise<void> {
    await this.loop.stop();
    await unregisterProcess(this.#options.pool, this.#number).catch(() => undefined);
  }

  async #register(): Promise<void> {
    const { pool, role } = this.#options;
    this.#number = await registerProcess(pool, { id: this.id, role, wake: this.wake });
  }

  async #beat(): Promise<number> {
    const { pool, role, log } = this.#options;
    const fleet = await beat(pool, { number: this.#number, role, wake: this.wake });
    if (!fleet) await this.#register();
    else this.#fleet = fleet;
    await this.#compareClocks();
    if (this.pollMode !== this.#saidPoll) {
      this.#saidPoll = this.pollMode;
      const why =
        this.#options.link === null
          ? 'no Redis is configured'
          : this.wake === 'poll'
            ? 'Redis is away'
            : 'another process cannot reach Redis';
      if (this.pollMode) log.warn({ why }, 'poll mode: work is found in the database');
      else log.info('stream mode: work is announced through Redis');
    }
    return BEAT_EVERY_MS;
  }

  async #compareClocks(): Promise<void> {
    const ahead = await measureClockAhead(this.#options.pool);
    if (ahead === null) return;
    this.#clockAheadMs = ahead;
    const wrong = Math.abs(ahead) > WRONG_CLOCK_MS;
    if (wrong && !this.#saidWrongClock) {
      const seconds = Math.round(ahead / 1000);
      this.#options.log.warn(
        { database_ahead_seconds: seconds },
        "this machine's clock is wrong: the database's is used",
      );
    }
    this.#saidWrongClock = wrong;
  }
}
