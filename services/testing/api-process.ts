import { spawn } from 'node:child_process';
import { join } from 'node:path';
import { freePort, projectRoot } from '../../lib/local/home.ts';
import { ADMIN_KEY, SECRET_KEYS } from './api.ts';
import { eventually } from './eventually.ts';

export interface ApiProcess {
  url: string;
  /** Everything that it wrote to either stream. */
  output(): string;
  /** Stops it as an orchestrator does; resolves to its exit code. */
  stop(): Promise<number | null>;
  kill(): void;
}

/** An API in a process of its own, from dist, without Redis; waits until it answers. */
export async function startApiProcess(
  databaseUrl: string,
  env: Record<string, string> = {},
): Promise<ApiProcess> {
  const bind = env.RELAY_API_BIND ?? `127.0.0.1:${await freePort()}`;
  const child = spawn(process.execPath, [join(projectRoot(), 'dist/services/api/main.js')], {
    env: {
      PATH: process.env.PATH,
      DATABASE_URL: databaseUrl,
      RELAY_ADMIN_KEY: ADMIN_KEY,
      RELAY_SECRET_KEYS: SECRET_KEYS,
      RELAY_LOG_LEVEL: 'warn',
      RELAY_LOG_FORMAT: 'json',
      ...env,
      RELAY_API_BIND: bind,
    },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (chunk: Buffer) => {
      output += chunk.toString();
    });
  }
  const exited = new Promise<number | null>((resolve) => child.once('exit', resolve));
  const url = `http://${bind}`;
  await eventually(async () => {
    const { ok } = await fetch(`${url}/healthz`);
    if (!ok) throw new Error(`the API does not answer: ${output}`);
  }, 20_000);
  return {
    url,
    output: () => output,
    stop() {
      child.kill('SIGTERM');
      return exited;
    },
    kill: () => void child.kill('SIGKILL'),
  };
}
