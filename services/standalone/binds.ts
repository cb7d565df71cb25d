import { type Bind, ConfigurationError } from '../../lib/config/env.ts';
import { canListen } from '../../lib/local/home.ts';

/** Throws, saying what to set, when the API's address is taken: nobody could find it anywhere else. */
export async function requireFree(bind: Bind, setting: string): Promise<void> {
  if (await isFree(bind)) return;
  throw new ConfigurationError(
    `${printed(bind)} cannot be listened on, most likely because something else does: set ${setting} to another address, ` +
      `for example ${setting}=127.0.0.1:${bind.port + 10}`,
  );
}

/** The address itself, or the same host with a port that the system chooses when it is taken. */
export async function freeOr(bind: Bind, say: (line: string) => void, what: string): Promise<Bind> {
  if (await isFree(bind)) return bind;
  say(`${printed(bind)} is taken: ${what} on a free port`);
  return { host: bind.host, port: 0 };
}

export function printed({ host, port }: Bind): string {
  return `${host.includes(':') ? `[${host}]` : host}:${port}`;
}

async function isFree({ host, port }: Bind): Promise<boolean> {
  return port === 0 || canListen(port, host);
}
