import { Agent, request } from 'node:http';
import type pg from 'pg';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { freePort } from '../../lib/local/home.ts';
import { createPool } from '../../lib/store/pool.ts';
import { ADMIN_KEY, caller, startTestApi } from '../testing/api.ts';
import { type ApiProcess, startApiProcess } from '../testing/api-process.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';
import { RawClient } from '../testing/raw-http.ts';
import { startRollingProxy } from '../testing/rolling-proxy.ts';

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
  for (const child of children.splice(0)) child.kill();
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

const children: ApiProcess[] = [];

async function startReplica(port: number, env: Record<string, string> = {}): Promise<ApiProcess> {
  const child = await startApiProcess(database.url, { RELAY_API_BIND: `127.0.0.1:${port}`, ...env });
  children.push(child);
  return child;
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
    const replicas = await Promise.all(ports.map((port) => startReplica(port)));
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

describe('an API whose port is taken', () => {
  it('does not start, and leaves nothing behind', async () => {
    const processes = async () => {
      const { rows } = await pool.query('select id from relay.process_heartbeats order by id');
      return rows;
    };
    const replica = await startReplica(await freePort());
    const before = await processes();
    const taken = { RELAY_API_BIND: new URL(replica.url).host };
    await expect(startTestApi(database.url, taken)).rejects.toThrow('EADDRINUSE');
    expect(await processes()).toEqual(before);
  });
});
