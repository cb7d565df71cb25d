import type pg from 'pg';
import { startupOptions } from './pool.ts';
import { openSession } from './session.ts';

// Two numbers that no other advisory lock in the database should use.
const LOCK_SPACE = 0x52_45_4c_41;
const LEADER = 1;

const LIMITS = [
  'idle_session_timeout=10000',
  'tcp_keepalives_idle=2',
  'tcp_keepalives_interval=1',
  'tcp_keepalives_count=3',
]
  .map((setting) => `-c ${setting}`)
  .join(' ');

export interface LeaderSession {
  /** The connection that holds the lock; the queue's sweeps run on it, so that who sweeps is who leads. */
  client: pg.Client;
  /** Resolves when the session has ended, for whatever reason. */
  ended: Promise<void>;
  release(): Promise<void>;
}

/**
 * Tries to become the leader: a session advisory lock on a connection of its own. Null when another process leads. The server ends the
 * session when the client is silent for 10 s or its host vanishes for 5 s, so a frozen or cut-off leader loses the lock by itself. Throws
 * when the connection is not a session of its own (a transaction pooler would give the lock to strangers).
 */
export async function tryLead(databaseUrl: string, applicationName: string): Promise<LeaderSession | null> {
  const { client, ended, close } = await openSession({
    connectionString: databaseUrl,
    application_name: applicationName,
    options: `${startupOptions('sweep')} ${LIMITS}`,
    query_timeout: 8_000,
    keepAliveInitialDelayMillis: 2_000,
  });
  try {
    await setTcpUserTimeout(client);
    if (!(await lock(client))) {
      await close();
      return null;
    }
    await requireOwnSession(client);
    return { client, ended, release: close };
  } catch (error) {
    await close();
    throw error;
  }
}

// A socket setting that Postgres refuses over a Unix socket, where nobody can be cut off.
async function setTcpUserTimeout(client: pg.Client): Promise<void> {
  await client.query('set tcp_user_timeout = 5000').catch(() => undefined);
}

async function lock(client: pg.Client): Promise<boolean> {
  const { rows } = await client.query<{ locked: boolean }>('select pg_try_advisory_lock($1, $2) as locked', [
    LOCK_SPACE,
    LEADER,
  ]);
  return rows[0]?.locked === true;
}

async function requireOwnSession(client: pg.Client): Promise<void> {
  const before = await backendPid(client);
  const { rowCount } = await client.query(
    `select from pg_locks
     where locktype = 'advisory' and classid = $1 and objid = $2 and pid = pg_backend_pid() and granted`,
    [LOCK_SPACE, LEADER],
  );
  if (rowCount === 1 && (await backendPid(client)) === before) return;
  throw new PoolerError(
    'the leader lock is not held by this session: behind a transaction pooler, set RELAY_DATABASE_DIRECT_URL to reach Postgres itself',
  );
}

async function backendPid(client: pg.Client): Promise<number | undefined> {
  const { rows } = await client.query<{ pid: number }>('select pg_backend_pid() as pid');
  return rows[0]?.pid;
}

export class PoolerError extends Error {
  override readonly name = 'PoolerError';
}
