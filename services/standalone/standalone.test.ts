import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterEach, describe, expect, inject, it } from 'vitest';
import { type ChildServer, startChildServer } from '../../lib/local/child-server.ts';
import { freePort, projectRoot } from '../../lib/local/home.ts';
import { caller } from '../testing/api.ts';
import { createEmptyDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';

const run = promisify(execFile);

interface Started extends ChildServer {
  apiUrl: string;
  adminKey: string;
}

interface Home {
  dataDir: string;
  env: Record<string, string>;
}

const running: ChildServer[] = [];
afterEach(async () => {
  await Promise.all(running.splice(0).map((child) => child.stop([{ signal: 'SIGKILL', waitMs: 5_000 }])));
});

/** A data directory that does not exist yet, and addresses of its own. */
async function givenHome(env: Record<string, string> = {}): Promise<Home> {
  const dataDir = join(inject('runDirectory'), `standalone-${randomBytes(4).toString('hex')}`);
  const own = {
    RELAY_DATA_DIR: dataDir,
    RELAY_API_BIND: `127.0.0.1:${await freePort()}`,
    RELAY_METRICS_BIND: '127.0.0.1:0',
    RELAY_RECEIVER_BIND: `127.0.0.1:${await freePort()}`,
  };
  return { dataDir, env: { ...own, ...env } };
}

function launch(home: Home, args: string[] = []): ChildServer {
  const settings = Object.entries(home.env).map(([name, value]) => `${name}=${value}`);
  const main = join(projectRoot(), 'dist', 'services', 'standalone', 'main.js');
  const child = startChildServer([process.execPath, main, ...args], {
    wrapper: ['env', '-u', 'DATABASE_URL', '-u', 'RELAY_BROKER_URL', ...settings],
    logFile: `${home.dataDir}.log`,
    deathSignal: 'TERM',
  });
  running.push(child);
  return child;
}

async function start(home: Home, args: string[] = []): Promise<Started> {
  const child = launch(home, args);
  await eventually(() => {
    if (!child.output().includes('is running')) throw new Error(`not running: ${child.output()}`);
  }, 40_000);
  const said = (name: string) => new RegExp(`^ +${name} +(\\S+)`, 'm').exec(child.output())?.[1] ?? '';
  return { ...child, apiUrl: said('API'), adminKey: said('Admin key') };
}

const call = ({ apiUrl, adminKey }: Started) => {
  const asAdmin = caller(apiUrl);
  return (method: string, path: string, body?: object) => asAdmin(method, path, { key: adminKey, body });
};

/** Resolves when a request is open that keeps the dispatcher's drain waiting. */
async function busy(asAdmin: ReturnType<typeof call>, url: string): Promise<void> {
  const endpoint = await asAdmin('POST', '/v1/endpoints', { url, event_types: ['slow'] });
  expect(endpoint.status).toBe(201);
  const event = await asAdmin('POST', '/v1/events', { type: 'slow' });
  // Claimed is not yet sent: what is not begun is given back at a stop, and nothing waits for it.
  await eventually(async () => {
    const answer = await fetch(`${new URL(url).origin}/received?id=${event.json.delivery_ids[0]}`);
    const { deliveries_seen: seen } = (await answer.json()) as { deliveries_seen: { requests: number }[] };
    expect(seen[0]?.requests).toBe(1);
  });
}

// The shell reads the lines as somebody's who pastes them; only curl itself may be missing on a machine.
const CURL = `curl() { "$NODE" -e '
  const args = process.argv.slice(1).filter((word) => word !== "-sS");
  const option = (name) => { const at = args.indexOf(name); return at < 0 ? undefined : args.splice(at, 2)[1]; };
  const [name, value] = option("-H").split(": ");
  const body = option("-d");
  fetch(args[0], { method: body ? "POST" : "GET", headers: { [name]: value }, body })
    .then((answer) => answer.text()).then((text) => process.stdout.write(text));
' -- "$@"; }`;

async function paste(lines: string): Promise<string> {
  const env = { ...process.env, NODE: process.execPath };
  return (await run('sh', ['-c', `${CURL}\n${lines}`], { env })).stdout;
}

describe('npm start', { timeout: 90_000 }, () => {
  it('shows signed deliveries arriving, prints lines that work when pasted, and drains at Ctrl-C', async () => {
    const home = await givenHome();
    const relay = await start(home);
    await eventually(() => expect(relay.output()).toMatch(/delivered [1-9]\d*, verified [1-9]/), 20_000);

    const [post, read] = relay.output().match(/^(id=\$\(curl|curl) .*$/gm) ?? [];
    const id = (await paste(post!)).trim();
    expect(id).toMatch(/^[0-9a-f-]{36}$/);
    await eventually(async () => {
      const { delivery, attempts } = JSON.parse(await paste(`id=${id}\n${read}`));
      expect(delivery).toMatchObject({ id, event_type: 'demo.hello', status: 'succeeded' });
      expect(attempts).toMatchObject([{ http_status: 200, response_snippet: 'verified' }]);
    });

    const postmaster = Number(
      readFileSync(join(home.dataDir, 'postgres', 'data', 'postmaster.pid'), 'utf8').split('\n')[0],
    );
    process.kill(relay.pid, 'SIGINT');
    expect(await relay.exited).toBe(0);
    const steps = relay.output().match(/^(stopping .*|stopped)$/gm);
    expect(steps).toEqual([
      'stopping the summary',
      'stopping the demo stream',
      'stopping the API',
      'stopping the dispatcher',
      'stopping the reconciler',
      'stopping the receiver',
      'stopping Redis',
      'stopping Postgres',
      'stopped',
    ]);
    expect(() => process.kill(postmaster, 0)).toThrow('ESRCH');
  });

  it('loses nothing to kill -9, and remembers its key, its secrets and its endpoint', async () => {
    const home = await givenHome();
    const first = await start(home);
    const api = call(first);
    const before = await api('GET', '/v1/endpoints');
    const accepted: string[] = [];
    const posting = Promise.all(
      Array.from({ length: 300 }, async (_, n) => {
        const { status, json } = await api('POST', '/v1/events', { type: 'demo.burst', n });
        if (status === 202) accepted.push(...json.delivery_ids);
      }).map((post) => post.catch(() => undefined)),
    );
    await eventually(() => expect(accepted.length).toBeGreaterThan(50));
    process.kill(first.pid, 'SIGKILL');
    await posting;

    const second = await start(home);
    expect(second.adminKey).toBe(first.adminKey);
    const again = call(second);
    const { json } = await again('GET', '/v1/endpoints');
    expect(json.items.map(({ id }: { id: string }) => id)).toEqual([before.json.items[0].id]);
    for (const id of accepted) {
      await eventually(async () => {
        const read = await again('GET', `/v1/deliveries/${id}`);
        expect(read.json.delivery.status).toBe('succeeded');
      }, 60_000);
    }
    for (const name of ['admin-key', 'secret-keys', 'demo-endpoint.json']) {
      expect(statSync(join(home.dataDir, name)).mode & 0o777).toBe(0o600);
    }
    expect(second.output()).not.toContain('rejected');
  });

  it('exits at once at a second Ctrl-C, which is not the one that npm passes on', async () => {
    const home = await givenHome();
    const relay = await start(home);
    await busy(call(relay), `http://${home.env.RELAY_RECEIVER_BIND}/slow?ms=8000`);
    process.kill(relay.pid, 'SIGINT');
    process.kill(relay.pid, 'SIGINT');
    await eventually(() => expect(relay.output()).toContain('stopping the dispatcher'));
    await new Promise((resolve) => setTimeout(resolve, 350));
    process.kill(relay.pid, 'SIGINT');
    expect(await relay.exited).toBe(1);
    expect(relay.output()).not.toContain('stopped');
  });

  it('runs the services alone, on the stores that are named, also when the Redis among them is away', async () => {
    const away = `redis://127.0.0.1:${await freePort()}`;
    const database = await createEmptyDatabase();
    const home = await givenHome({ DATABASE_URL: database.url, RELAY_BROKER_URL: away });
    const relay = await start(home, ['--no-demo']);
    expect(relay.output()).toContain('poll mode');
    expect(readdirSync(home.dataDir).toSorted()).toEqual(['admin-key', 'secret-keys']);
    const api = call(relay);
    expect((await api('GET', '/v1/endpoints')).json.count).toBe(0);
    expect((await api('POST', '/v1/events', { type: 'anything' })).status).toBe(202);
    await eventually(() => expect(relay.output()).toMatch(/accepted 1, delivered 0, retries 0/));
    await relay.stop([{ signal: 'SIGTERM', waitMs: 20_000 }]);
    expect(await relay.exited).toBe(0);
    await database.drop();
  });

  it.each([
    ['its address is taken', { RELAY_API_BIND: 'taken' }, /set RELAY_API_BIND to another address/],
    ['the demo may not reach this machine', { RELAY_ALLOW_PRIVATE_ENDPOINTS: 'false' }, /--no-demo/],
    ['a setting is wrong', { RELAY_MAX_IN_FLIGHT: '0' }, /RELAY_MAX_IN_FLIGHT/],
  ])('says one sentence and exits 1 when %s', async (_, env, sentence) => {
    const taken = new URL(inject('postgresUrl')).host;
    const values = Object.entries(env).map(([name, value]) => [name, value === 'taken' ? taken : value]);
    const relay = launch(await givenHome(Object.fromEntries(values)));
    expect(await relay.exited).toBe(1);
    const last = relay.output().trim().split('\n').at(-1);
    expect(last).toMatch(/^relay: /);
    expect(last).toMatch(sentence);
  });
});
