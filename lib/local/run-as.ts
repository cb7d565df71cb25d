import { spawnSync } from 'node:child_process';
import { chownSync, existsSync, lchownSync, readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { LocalServiceUnavailable } from './unavailable.ts';

// The account `nobody` of Linux distributions. initdb needs an account with an entry in /etc/passwd.
const NOBODY = 65_534;

/** How to run a program that refuses to run as root: the words in front, and who must own its files. */
export interface RunAs {
  wrapper: string[];
  /** null: leave ownership alone. */
  owner: { uid: number; gid: number } | null;
}

/**
 * Postgres refuses uid 0. Tried in this order when we are root, each by really running the program:
 * a plain drop to another account (works where that account can reach code and data), a user namespace
 * (works under a private directory; containers often forbid it), a drop that keeps the right to pass
 * directory permissions. The owner of existing data goes first, so that a data directory keeps its way.
 */
export function chooseRunAs(program: string, home: string): RunAs {
  if (process.getuid?.() !== 0) return { wrapper: [], owner: null };
  const found = waysFor(home).find((way) => works(way, program, home));
  if (!found) {
    throw new LocalServiceUnavailable(
      'postgres',
      'Postgres refuses to run as root and this machine allows no other account (setpriv and unshare both ' +
        'failed): run Relay as an ordinary user, or set DATABASE_URL',
    );
  }
  if (found.owner) giveFiles(home, found.owner);
  return found;
}

function waysFor(home: string): RunAs[] {
  const { uid, gid } = statSync(home);
  const account = uid === 0 ? { uid: NOBODY, gid: NOBODY } : { uid, gid };
  const identity = [`--reuid=${account.uid}`, `--regid=${account.gid}`, '--clear-groups'];
  const passDirectories = [
    '--securebits=+no_setuid_fixup', // without it access(2) ignores the capability below
    '--inh-caps=+dac_override',
    '--ambient-caps=+dac_override',
  ];
  const drop: RunAs = { wrapper: ['setpriv', ...identity, '--'], owner: account };
  const map = [`--map-user=${NOBODY}`, `--map-group=${NOBODY}`];
  const namespace: RunAs = {
    wrapper: ['unshare', '--user', ...map, '--'],
    owner: { uid: 0, gid: 0 },
  };
  const keep: RunAs = { wrapper: ['setpriv', ...identity, ...passDirectories, '--'], owner: account };
  if (uid !== 0) return [drop, keep, namespace];
  const dataOfRoot = readdirSync(home).includes('data');
  return dataOfRoot ? [namespace, drop, keep] : [drop, namespace, keep];
}

function works(way: RunAs, program: string, home: string): boolean {
  if (way.owner) chownSync(home, way.owner.uid, way.owner.gid);
  const check = '"$1" --version && ls "$2" && test -w "$2"';
  const [command = '', ...args] = [...way.wrapper, 'sh', '-c', check, 'sh', program, home];
  return spawnSync(command, args, { stdio: 'ignore' }).status === 0;
}

/** The directory itself goes last: owned rightly, it says that all in it was given before. */
function giveFiles(home: string, owner: { uid: number; gid: number }): void {
  const data = join(home, 'data');
  if (!existsSync(data) || statSync(data).uid === owner.uid) return;
  for (const entry of readdirSync(data, { withFileTypes: true, recursive: true })) {
    lchownSync(join(entry.parentPath, entry.name), owner.uid, owner.gid);
  }
  chownSync(data, owner.uid, owner.gid);
}
