import { type ChildProcess, spawn } from 'node:child_process';
import { Agent, request } from 'node:http';
import { join } from 'node:path';
import type pg from 'pg';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { freePort, projectRoot } from '../../lib/local/home.ts';
import { createPool } from '../../lib/store/pool.ts';
import { ADMIN_KEY, caller } from '../testing/api.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';
import { RawClient } from '../testing/raw-http.ts';
import { startRollingProxy } from '../testing/rolling-proxy.ts';
import { givenSecretKeys } from '../testing/secret-keys.ts';

const { setting } = givenSecretKeys();
const children: ChildProcess[] = [];
let database: TestDatabase;
let pool: pg.Pool;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
  // Readiness wants a dispatcher; this one beats for the length of the tests.
  await pool.query(
    `insert into relay.process_heartbeats (id, role, wake, beat_at)
     values (gen_random_uuid(), 'dispatcher', 'stream', now() + interval '10 min')`,
  );
});
afterEach(() => {
  for (const child of children.splice(0)) child.kill('SIGKILL');
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

/** An API in a process of its own. */
async function startReplica(port: number, env: Record<string, string> = {}) {
  const child = spawn(process.execPath, [join(projectRoot(), 'dist/services/api/main.js')], {
    env: {
      PATH: process.env.PATH,
      DATABASE_URL: database.url,
      RELAY_API_BIND: `127.0.0.1:${port}`,
      RELAY_ADMIN_KEY: ADMIN_KEY,
      RELAY_SECRET_KEYS: setting,
      RELAY_LOG_LEVEL: 'warn',
      RELAY_LOG_FORMAT: 'json',
      ...env,
    },
    stdio: 'ignore',
  });
  children.push(child);
  const exited = new Promise<number | null>((resolve) => child.once('exit', resolve));
  const url = `http://127.0.0.1:${port}`;
  await eventually(async () => expect((await fetch(`${url}/readyz`)).status).toBe(200), 20_000);
  return {
    url,
    /** Stops it as an orchestrator does; resolves to its exit code. */
    stop(): Promise<number | null> {
      child.kill('SIGTERM');
      return exited;
    },
  };
}

/** One POST over kept connections; resolves to the status, or the code of the error. */
function post(agent: Agent, url: string): Promise<number | string> {
  return new Promise((resolve) => {
    const body = '{"type":"rolling"}';
    const headers = { authorization: `Bearer ${ADMIN_KEY}`, 'content-length': body.length };
    const sent = request(`${url}/v1/events`, { method: 'POST', headers, agent }, (answer) => {
      answer.resume();
      answer.on('end', () => resolve(answer.statusCode ?? 0));
    });
    sent.on('error', (error: NodeJS.ErrnoException) => resolve(error.code ?? error.message));
    sent.end(body);
  });
}

describe('a rolling restart (case O-27)', () => {
  it('fails no POST of two hundred a second over kept connections, and every process exits 0', async () => {
    const ports = [await freePort(), await freePort()];
    const replicas = await Promise.all(ports.map(startReplica));
    const proxy = await startRollingProxy(replicas.map((replica) => replica.url));
    const agent = new Agent({ keepAlive: true, maxSockets: 20 });
    const results: Promise<number | string>[] = [];
    const producer = setInterval(() => results.push(post(agent, proxy.url)), 5);
    try {
      for (const [place, port] of ports.entries()) {
        expect(await replicas[place]!.stop()).toBe(0);
        replicas[place] = await startReplica(port);
      }
    } finally {
      clearInterval(producer);
    }
    const statuses = await Promise.all(results);
    agent.destroy();
    await proxy.close();
    expect(statuses.filter((status) => status !== 202)).toEqual([]);
    expect(statuses.length).toBeGreaterThan(400);
    const { rows } = await pool.query(`select count(*)::int as n from relay.events where type = 'rolling'`);
    expect(rows[0].n).toBe(statuses.length);
  });
});

describe('an API that is told to stop', () => {
  it('says that it drains, closes each connection with its answer, lets what is open finish, and exits 0', async () => {
    const replica = await startReplica(await freePort());
    const idle = new RawClient(replica.url).send('GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n');
    await idle.expect(/HTTP\/1\.1 200 /);
    const slow = new RawClient(replica.url).send(
      `POST /v1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${ADMIN_KEY}\r\ncontent-length: 18\r\n\r\n{"type":`,
    );
    await new Promise((resolve) => slow.socket.once('connect', resolve));
    await eventually(async () => expect((await fetch(`${replica.url}/healthz`)).status).toBe(200));

    const exited = replica.stop();
    await eventually(async () => {
      const ready = await caller(replica.url)('GET', '/readyz', { key: null });
      expect([ready.status, ready.json.draining, ready.headers.get('connection')]).toEqual([
        503,
        true,
        'close',
      ]);
    });
    await idle.closed;
    await eventually(async () => await expect(fetch(`${replica.url}/healthz`)).rejects.toThrow());
    slow.send('"late"   }');
    await slow.expect(/^HTTP\/1\.1 202 .*connection: close/is);
    await slow.closed;
    expect(await exited).toBe(0);
  });

  it('does not wait for ever for a client that does not finish', async () => {
    const replica = await startReplica(await freePort(), { RELAY_SHUTDOWN_DEADLINE_SECS: '4' });
    const stuck = new RawClient(replica.url).send('GET /healthz HTTP/1.1\r\nhost: x\r\nx-half:');
    await new Promise((resolve) => stuck.socket.once('connect', resolve));
    const startedAt = performance.now();
    expect(await replica.stop()).toBe(0);
    expect(performance.now() - startedAt).toBeLessThan(6_000);
    stuck.end();
  });
});
