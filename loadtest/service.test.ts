import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { freePort } from '../lib/local/home.ts';
import { startService } from './service.ts';

const directory = mkdtempSync(join(tmpdir(), 'relay-service-'));
afterAll(() => rmSync(directory, { recursive: true }));

async function receiver(env: Record<string, string>) {
  const bind = `127.0.0.1:${await freePort()}`;
  const url = `http://${bind}`;
  const service = { role: 'receiver', name: 'receiver', url } as const;
  return {
    healthUrl: `${url}/healthz`,
    starting: startService(service, { RELAY_RECEIVER_BIND: bind, ...env }, directory),
  };
}

describe('a service as a process', () => {
  it('answers when it is said to have started, and is gone when it was stopped', async () => {
    const { healthUrl, starting } = await receiver({});
    const service = await starting;
    expect((await fetch(healthUrl)).status).toBe(200);
    service.check();
    await service.stop();
    expect(() => service.check()).toThrow(/receiver has ended:[\s\S]*receiver stopped/);
    await expect(fetch(healthUrl)).rejects.toThrow();
  });

  it('that cannot start says why', async () => {
    const { starting } = await receiver({ RELAY_RECEIVER_BIND: 'nowhere' });
    await expect(starting).rejects.toThrow(/receiver has ended:[\s\S]*RELAY_RECEIVER_BIND/);
  });
});
