import { spawn } from 'node:child_process';
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { type LocalPostgres, startPostgres } from './postgres.ts';
import { readPostmaster } from './postmaster.ts';
import { LocalServiceUnavailable } from './unavailable.ts';

const scratch = mkdtempSync(join(tmpdir(), 'relay-postgres-'));
const dataDir = join(scratch, 'server');
const data = join(dataDir, 'data');
let server: LocalPostgres;

const start = (port?: number) => startPostgres({ dataDir, durable: false, ...(port ? { port } : {}) });

beforeAll(async () => {
  chmodSync(scratch, 0o755);
  server = await start();
  await query('create table kept (word text)');
});

afterAll(async () => {
  await server.stop('immediate');
  rmSync(scratch, { recursive: true, force: true });
});

describe('a local Postgres', () => {
  it('has the same address and data after it was stopped and started', async () => {
    const { url } = server;
    await query("insert into kept values ('stop')");
    await server.stop();
    server = await start();
    expect(server.url).toBe(url);
    expect(await words()).toContain('stop');
  });

  it('recovers what was committed before a crash, on the port that is asked for', async () => {
    await query("insert into kept values ('crash')");
    await server.stop('immediate');
    server = await start(server.port);
    expect(await words()).toContain('crash');
  });

  it('starts again right after kill -9 of the postmaster', async () => {
    await query("insert into kept values ('kill')");
    process.kill(server.pid ?? 0, 'SIGKILL');
    server = await start(server.port);
    expect(await words()).toContain('kill');
  });

  it('takes a password only', async () => {
    const url = new URL(server.url);
    url.password = 'wrong';
    await expect(query('select 1', url.href)).rejects.toMatchObject({ code: '28P01' });
    expect(statSync(join(dataDir, 'password')).mode & 0o777).toBe(0o600);
  });

  it('keeps text in UTF-8, ordered by code point, and times in UTC', async () => {
    const [row] = await query(
      `select current_setting('server_encoding') as encoding, current_setting('timezone') as zone,
              (select string_agg(w, '' order by w) from unnest(array['b', 'B', 'ä', 'a']) w) as sorted`,
    );
    expect(row).toEqual({ encoding: 'UTF8', zone: 'UTC', sorted: 'Babä' });
  });
});

describe('a data directory', () => {
  it('is refused while the process that started its Postgres lives', async () => {
    const second = start();
    await expect(second).rejects.toThrow(LocalServiceUnavailable);
    await expect(second).rejects.toThrow(`in use by process ${process.pid}`);
    expect(await words()).toContain('stop');
  });

  it('is taken over, its Postgres stopped, when that process is gone', async () => {
    const { pid } = server;
    const owner = JSON.parse(readFileSync(join(dataDir, 'owner'), 'utf8'));
    writeFileSync(join(dataDir, 'owner'), JSON.stringify({ ...owner, started: 'another time' }));
    server = await start(server.port);
    expect(server.pid).not.toBe(pid);
    expect(await words()).toContain('stop');
  });

  it('is usable when its pid file names a process that is something else by now', async () => {
    await server.stop('immediate');
    const stranger = spawn('sleep', ['60']);
    try {
      const file = join(data, 'postmaster.pid');
      const left = [stranger.pid, data, 1_700_000_000, server.port, '', '127.0.0.1', '', 'ready'];
      writeFileSync(file, left.join('\n'));
      server = await start(server.port);
      expect(await words()).toContain('stop');
    } finally {
      stranger.kill();
    }
  });

  it('made by another version of Postgres is refused by name', async () => {
    const other = join(scratch, 'other');
    mkdirSync(join(other, 'data'), { recursive: true });
    writeFileSync(join(other, 'data', 'PG_VERSION'), '9\n');
    await expect(startPostgres({ dataDir: other, durable: false })).rejects.toThrow('made by Postgres 9');
  });
});

describe('a Postgres whose parent is killed', () => {
  const home = join(scratch, 'orphan');
  let pid = 0;
  afterEach(() => void (running(pid) && process.kill(pid, 'SIGQUIT')));

  it.runIf(process.platform === 'linux')('stops cleanly by itself', async () => {
    const module = new URL('../../dist/lib/local/postgres.js', import.meta.url).href;
    const script = `const { startPostgres } = await import(${JSON.stringify(module)});
      await startPostgres({ dataDir: ${JSON.stringify(home)}, durable: false });
      setInterval(() => {}, 1000);`;
    const parent = spawn(process.execPath, ['--input-type=module', '-e', script], { stdio: 'inherit' });
    await until(() => readPostmaster(join(home, 'data'))?.ready === true);
    pid = readPostmaster(join(home, 'data'))?.pid ?? 0;
    parent.kill('SIGKILL');
    await until(() => readPostmaster(join(home, 'data')) === null);
    expect(readFileSync(join(home, 'log'), 'utf8')).toContain('database system is shut down');
  });
});

describe.runIf(process.getuid?.() === 0)('as root', () => {
  it('starts under a directory that no other account can enter', async () => {
    const home = join(scratch, 'private');
    mkdirSync(home, { mode: 0o700 });
    const hidden = await startPostgres({ dataDir: join(home, 'server'), durable: false });
    try {
      expect(await query('select 1 as one', hidden.url)).toEqual([{ one: 1 }]);
    } finally {
      await hidden.stop('immediate');
    }
  });
});

async function words(): Promise<string[]> {
  return (await query('select word from kept')).map((row) => String(row.word));
}

async function query(text: string, url = server.url): Promise<Record<string, unknown>[]> {
  const client = new pg.Client({ connectionString: url });
  try {
    await client.connect();
    return (await client.query(text)).rows;
  } finally {
    await client.end();
  }
}

async function until(condition: () => boolean): Promise<void> {
  const deadline = Date.now() + 20_000;
  while (!condition()) {
    if (Date.now() > deadline) throw new Error('the condition did not come true in time');
    await sleep(20);
  }
}

function running(pid: number): boolean {
  try {
    return pid > 0 && process.kill(pid, 0);
  } catch {
    return false;
  }
}
