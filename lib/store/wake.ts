import type pg from 'pg';
import { openSession } from './session.ts';

const CHANNEL = 'relay_queue';

/**
 * A bare wake-up for those who poll. Sent after the commit and never inside a producer's transaction: a transaction that has notified
 * takes a lock of the whole database until its commit is done.
 */
export async function notifyQueue(pool: pg.Pool): Promise<void> {
  await pool.query(`select pg_notify('${CHANNEL}', '')`);
}

export interface QueueListener {
  ended: Promise<void>;
  close(): Promise<void>;
}

/** Listens on a connection of its own until it ends; throws when it cannot be had. */
export async function listenQueue(
  databaseUrl: string,
  applicationName: string,
  onWake: () => void,
): Promise<QueueListener> {
  const { client, ended, close } = await openSession({
    connectionString: databaseUrl,
    application_name: applicationName,
    keepAliveInitialDelayMillis: 5_000,
  });
  client.on('notification', onWake);
  try {
    await client.query(`listen ${CHANNEL}`);
    return { ended, close };
  } catch (error) {
    await close();
    throw error;
  }
}
