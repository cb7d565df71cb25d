import type pg from 'pg';
import { pause } from '../../lib/runtime/pause.ts';
import { createPool } from '../../lib/store/pool.ts';
import { countQueue } from '../../lib/store/queue-gauges.ts';
import type { DemoReceiver } from './demo.ts';
import { readCounted } from './figures.ts';
import type { Screen } from './screen.ts';
import type { Services } from './services.ts';
import { type Status, statusBlock, statusLine } from './summary.ts';

const REDRAW_EVERY_MS = 1_000;
const LINE_EVERY_MS = 5_000;
const QUEUE_LIMIT = 100_000;

export interface StatusOptions {
  services: Services;
  /** Null without the demo. */
  demo: DemoReceiver | null;
  databaseUrl: string;
  screen: Screen;
  since: Date;
}

/** Shows how things stand until stopped: a block drawn anew each second on a terminal, a line now and then on a pipe. */
export function startStatus(options: StatusOptions): { stop(): Promise<void> } {
  const ending = new AbortController();
  const pool = createPool({
    url: options.databaseUrl,
    purpose: 'general',
    max: 1,
    applicationName: 'relay-summary',
  });
  const shown = showUntil(ending.signal, options, pool);
  return {
    async stop() {
      ending.abort();
      await shown;
      await pool.end();
    },
  };
}

async function showUntil(signal: AbortSignal, options: StatusOptions, pool: pg.Pool): Promise<void> {
  const { screen } = options;
  while (!signal.aborted) {
    await pause(screen.isTerminal ? REDRAW_EVERY_MS : LINE_EVERY_MS, signal);
    const status = await readStatus(options, pool);
    if (signal.aborted) return;
    if (screen.isTerminal) screen.show(statusBlock(status));
    else screen.say(statusLine(status));
  }
}

/** What cannot be read at the moment is null: the summary goes on through any outage. */
async function readStatus({ services, demo, since }: StatusOptions, pool: pg.Pool): Promise<Status> {
  const [counted, size] = await Promise.all([
    readCounted({ api: services.api.url, dispatcher: services.dispatcher.metricsUrl }).catch(() => null),
    countQueue(pool, QUEUE_LIMIT).catch(() => null),
  ]);
  return {
    since,
    now: new Date(),
    counted,
    queue: size === null ? null : { size, capped: size >= QUEUE_LIMIT },
    demo: demo && {
      verified: demo.receiver.counts().verified,
      rejected: demo.receiver.counts().rejected,
      p50Ms: demo.watch.percentile(0.5),
      p99Ms: demo.watch.percentile(0.99),
      recent: demo.watch.recent,
    },
  };
}
