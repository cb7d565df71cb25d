import { randomBytes } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

/** A directory for one service alone; those above it stay open, so that an account we drop to can pass. */
export function makeHome(path: string): string {
  const home = resolve(path);
  mkdirSync(dirname(home), { recursive: true });
  mkdirSync(home, { recursive: true, mode: 0o700 });
  return home;
}

/** A password that stays the same over restarts, kept in a 0600 file of the service's own directory. */
export function rememberedPassword(home: string): string {
  const file = join(home, 'password');
  try {
    writeFileSync(file, randomBytes(24).toString('hex'), { mode: 0o600, flag: 'wx' });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  }
  return readFileSync(file, 'utf8').trim();
}

/** The port of the last run when nobody else holds it, so that addresses people have noted stay true. */
export async function rememberedPort(home: string): Promise<number> {
  const file = join(home, 'port');
  const remembered = existsSync(file) ? Number(readFileSync(file, 'utf8')) : 0;
  const port = remembered > 0 && (await canListen(remembered)) ? remembered : await freePort();
  writeFileSync(file, String(port));
  return port;
}

/** A port of 127.0.0.1 that was free a moment ago; whoever takes it must cope with losing the race. */
export async function freePort(): Promise<number> {
  const port = await listenOnce(0);
  if (port === null) throw new Error('no free port on 127.0.0.1');
  return port;
}

/** Tells whether a port is free this moment. */
export async function canListen(port: number, host = '127.0.0.1'): Promise<boolean> {
  return (await listenOnce(port, host)) !== null;
}

/** The directory that holds package.json, whether this file runs from source or from dist. */
export function projectRoot(): string {
  let directory = dirname(fileURLToPath(import.meta.url));
  while (!existsSync(join(directory, 'package.json'))) {
    const parent = dirname(directory);
    if (parent === directory) throw new Error('package.json not found above lib/local');
    directory = parent;
  }
  return directory;
}

function listenOnce(port: number, host = '127.0.0.1'): Promise<number | null> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once('error', () => resolve(null));
    server.listen(port, host, () => {
      const address = server.address();
      server.close(() => resolve(typeof address === 'object' && address !== null ? address.port : null));
    });
  });
}
