import type { RedisLink } from '../../lib/broker/link.ts';
import type { ReconcileMetrics } from '../../lib/metrics/reconcile.ts';
import type { Logger } from '../../lib/runtime/log.ts';
import { Loop } from '../../lib/runtime/loop.ts';
import { type LeaderSession, tryLead } from '../../lib/store/leadership.ts';
import { Sweeper } from './sweeper.ts';

const ASK_EVERY_MS = 1_000;

export interface LeaderOptions {
  databaseUrl: string;
  link: RedisLink | null;
  pollMode: () => boolean;
  batch: number;
  idleMs: number;
  metrics: ReconcileMetrics;
  log: Logger;
}

/**
 * Leads when it can: the lock lives on the connection that sweeps, so who has lost the one has lost the other. Standing by, it asks once a second.
 */
export class Leader {
  readonly loop: Loop;
  readonly #options: LeaderOptions;
  #session: LeaderSession | null = null;
  #sweeper: Sweeper | null = null;

  constructor(options: LeaderOptions) {
    this.#options = options;
    this.loop = new Loop({
      name: 'sweep',
      log: options.log,
      round: () => this.#round(),
      maxBackoffMs: 1_000,
    });
  }

  get leading(): boolean {
    return this.#session !== null;
  }

  /** Asks once before the loop begins, so that a start behind a transaction pooler is refused. */
  async start(): Promise<this> {
    await this.#ask();
    this.loop.start();
    return this;
  }

  async stop(): Promise<void> {
    await this.loop.stop();
    await this.#resign();
  }

  async #round(): Promise<number> {
    if (!this.#session && !(await this.#ask())) return ASK_EVERY_MS * (0.75 + Math.random() / 2);
    try {
      return (await this.#sweeper?.round()) ?? ASK_EVERY_MS;
    } catch (error) {
      // A round that failed may have lost the session without a word of it; a new one costs little.
      await this.#resign();
      throw error;
    }
  }

  async #ask(): Promise<boolean> {
    const { log, metrics, databaseUrl } = this.#options;
    const session = await tryLead(databaseUrl, 'relay-reconciler-leader');
    if (!session) return false;
    this.#session = session;
    this.#sweeper = new Sweeper({ ...this.#options, client: session.client });
    void session.ended.then(() => this.#forget(session));
    metrics.terms.inc();
    log.info('leads');
    return true;
  }

  async #resign(): Promise<void> {
    const session = this.#session;
    this.#session = null;
    if (session) this.#options.log.info('no longer leads');
    await session?.release().catch(() => undefined);
  }

  #forget(session: LeaderSession): void {
    if (this.#session !== session) return;
    this.#session = null;
    this.#options.log.warn('no longer leads: its session has ended');
  }
}
