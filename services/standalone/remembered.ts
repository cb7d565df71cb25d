import { randomBytes } from 'node:crypto';
import { chmodSync, existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

/** The directory of everything that outlives a run. Others may pass through it, since Postgres may run as another account. */
export function makeDataDir(path: string): string {
  mkdirSync(path, { recursive: true });
  return path;
}

/** A secret that is made the first time and stays: a file that only its owner can read. */
export function rememberedSecret(dataDir: string, name: string, make: () => string): string {
  const file = join(dataDir, name);
  if (!existsSync(file)) writePrivately(file, `${make()}\n`);
  chmodSync(file, 0o600);
  return readFileSync(file, 'utf8').trim();
}

/** As RELAY_ADMIN_KEY. */
export function newAdminKey(): string {
  return `relay_admin_${randomBytes(24).toString('base64url')}`;
}

/** As RELAY_SECRET_KEYS: one key. */
export function newSecretKeys(): string {
  return randomBytes(32).toString('base64');
}

export interface RememberedEndpoint {
  id: string;
  secret: string;
}

/** The demo's endpoint of an earlier run; null when there was none. */
export function recallEndpoint(dataDir: string): RememberedEndpoint | null {
  const file = join(dataDir, DEMO_FILE);
  if (!existsSync(file)) return null;
  const { id, secret } = JSON.parse(readFileSync(file, 'utf8')) as Partial<RememberedEndpoint>;
  return id && secret ? { id, secret } : null;
}

export function rememberEndpoint(dataDir: string, endpoint: RememberedEndpoint): void {
  writePrivately(join(dataDir, DEMO_FILE), `${JSON.stringify(endpoint)}\n`);
}

const DEMO_FILE = 'demo-endpoint.json';

/** Written aside and renamed: a process killed half-way leaves the old file or the new one. */
function writePrivately(file: string, text: string): void {
  const draft = `${file}.${process.pid}`;
  writeFileSync(draft, text, { mode: 0o600 });
  renameSync(draft, file);
}
