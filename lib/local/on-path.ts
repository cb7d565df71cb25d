import { spawnSync } from 'node:child_process';
import { realpathSync } from 'node:fs';

/** The real path of the first of these programs that the PATH offers; null when it offers none. */
export function findOnPath(names: readonly string[]): string | null {
  for (const name of names) {
    const answer = spawnSync('sh', ['-c', 'command -v "$1"', 'sh', name], { encoding: 'utf8' });
    const path = answer.stdout?.trim();
    if (answer.status === 0 && path?.startsWith('/')) return realpathSync(path);
  }
  return null;
}
