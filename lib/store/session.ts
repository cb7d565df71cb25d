import { Socket } from 'node:net';
import pg from 'pg';

/** A connection that somebody holds for as long as it lives, because the server remembers something for it: a lock, a LISTEN. */
export interface Session {
  client: pg.Client;
  /** Resolves when it has ended, for whatever reason. */
  ended: Promise<void>;
  /** Ends it; within a second, also when nothing is at the other end any more. */
  close(): Promise<void>;
}

const FAREWELL_MS = 1_000;

/** Opens a session; throws when it cannot be had within 5 s. */
export async function openSession(config: Omit<pg.ClientConfig, 'stream'>): Promise<Session> {
  const socket = new Socket();
  const client = new pg.Client({
    ...config,
    connectionTimeoutMillis: 5_000,
    keepAlive: true,
    stream: () => socket,
  });
  const ended = new Promise<void>((resolve) => {
    client.on('end', resolve);
    client.on('error', () => resolve());
  });
  // The driver waits for the server to hang up, which a network that is gone never lets it do.
  const close = async () => {
    const impatient = setTimeout(() => socket.destroy(), FAREWELL_MS);
    await client.end().catch(() => undefined);
    clearTimeout(impatient);
  };
  try {
    await client.connect();
    return { client, ended, close };
  } catch (error) {
    await close();
    throw error;
  }
}
