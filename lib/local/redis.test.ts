import { mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type LocalRedis, startRedis } from './redis.ts';
import { unpackedRedis } from './redis-package.ts';
import { LocalServiceUnavailable } from './unavailable.ts';

const scratch = mkdtempSync(join(tmpdir(), 'relay-redis-'));
const dir = join(scratch, 'server');
let server: LocalRedis;

beforeAll(async () => {
  server = await startRedis({ dir });
});

afterAll(async () => {
  await server.stop();
  rmSync(scratch, { recursive: true, force: true });
});

describe('a local Redis', () => {
  it('takes a password only', async () => {
    const url = new URL(server.url);
    url.password = '';
    await expect(ask(url.href)).rejects.toThrow(/NOAUTH/);
    expect(statSync(join(dir, 'password')).mode & 0o777).toBe(0o600);
  });

  it('has the same address, and nothing in it, after it was stopped and started', async () => {
    const { url, port } = server;
    await ask(url, (client) => client.set('word', 'kept'));
    await server.stop();
    server = await startRedis({ dir, port });
    expect(server.url).toBe(url);
    expect(await ask(url, (client) => client.get('word'))).toBeNull();
  });

  it('starts again right after kill -9', async () => {
    const { url, port } = server;
    process.kill(server.pid ?? 0, 'SIGKILL');
    server = await startRedis({ dir, port });
    expect(await ask(url)).toBe('PONG');
  });

  it('says so when somebody else holds its port', async () => {
    const taken = startRedis({ dir: join(scratch, 'second'), port: server.port });
    await expect(taken).rejects.toThrow(LocalServiceUnavailable);
  });
});

describe('a machine that cannot give a Redis', () => {
  it('is told apart by its error, whose message says what to do', async () => {
    const file = join(scratch, 'file');
    writeFileSync(file, '');
    const unpacked = unpackedRedis(join(file, 'tools'), () => undefined);
    await expect(unpacked).rejects.toMatchObject({ name: 'LocalServiceUnavailable', service: 'redis' });
    await expect(unpacked).rejects.toThrow(/install redis-server .* or run without Redis/);
  });
});

async function ask<T>(url: string, work?: (client: Redis) => Promise<T>): Promise<T | string> {
  const client = new Redis(url, { maxRetriesPerRequest: 1, lazyConnect: true, retryStrategy: () => null });
  client.on('error', () => undefined); // the call that meets it rejects
  try {
    return await (work ? work(client) : client.ping());
  } finally {
    client.disconnect();
  }
}
