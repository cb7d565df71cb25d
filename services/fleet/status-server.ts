import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import type pg from 'pg';
import type { Registry } from '../../lib/metrics/registry.ts';
import type { Loop } from '../../lib/runtime/loop.ts';
import { pingDatabase } from '../../lib/store/readiness.ts';

/** A loop that has not had a good round for this long turns: it runs often, so something holds it. */
const LOOP_STUCK_MS = 60_000;
const DATABASE_LIMIT_MS = 2_000;

export interface StatusServerOptions {
  bind: { host: string; port: number };
  registry: Registry;
  pool: pg.Pool;
  loops: readonly Loop[];
}

interface Check {
  status: 'pass' | 'fail';
  detail: string;
}

/**
 * `/metrics`, `/healthz` (the process turns) and `/readyz` (the database answers) of a process that serves nothing else. A process is not restarted for
 * an outage of the database: that would turn one outage into two. Redis away makes nothing unready.
 */
export async function startStatusServer(
  options: StatusServerOptions,
): Promise<{ url: string; close(): Promise<void> }> {
  const server = createServer((request, response) => {
    const path = request.url?.split('?')[0];
    const answer = async () => {
      if (path === '/metrics')
        return { code: 200, type: options.registry.contentType, body: await options.registry.metrics() };
      if (path === '/healthz') return { code: 200, type: 'text/plain', body: 'ok\n' };
      if (path === '/readyz') return readiness(options);
      return { code: 404, type: 'text/plain', body: 'not found: try /healthz, /readyz or /metrics\n' };
    };
    answer().then(
      ({ code, type, body }) => response.writeHead(code, { 'content-type': type }).end(body),
      () => response.writeHead(500).end(),
    );
  });
  await listen(server, options.bind);
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://${options.bind.host === '0.0.0.0' ? '127.0.0.1' : options.bind.host}:${port}`,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

function listen(server: Server, bind: { host: string; port: number }): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen(bind.port, bind.host, () => resolve());
  });
}

async function readiness(options: StatusServerOptions) {
  const checks = { database: await databaseCheck(options.pool), loops: loopsCheck(options.loops) };
  const ready = Object.values(checks).every((check) => check.status === 'pass');
  return {
    code: ready ? 200 : 503,
    type: 'application/json',
    body: `${JSON.stringify({ ready, ...checks })}\n`,
  };
}

async function databaseCheck(pool: pg.Pool): Promise<Check> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error('no answer within 2 s')), DATABASE_LIMIT_MS);
  });
  try {
    await Promise.race([pingDatabase(pool), late]);
    return { status: 'pass', detail: 'answers' };
  } catch (error) {
    return { status: 'fail', detail: error instanceof Error ? error.message : 'no answer' };
  } finally {
    clearTimeout(timer);
  }
}

function loopsCheck(loops: readonly Loop[]): Check {
  const stuck = loops.filter((loop) => loop.ageMs > LOOP_STUCK_MS).map((loop) => loop.name);
  return stuck.length === 0
    ? { status: 'pass', detail: 'all turn' }
    : { status: 'fail', detail: `no good round lately: ${stuck.join(', ')}` };
}
