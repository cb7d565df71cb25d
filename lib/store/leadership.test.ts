import pg from 'pg';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import { eventually } from '../../services/testing/eventually.ts';
import { startTcpProxy } from '../../services/testing/tcp-proxy.ts';
import { type LeaderSession, PoolerError, tryLead } from './leadership.ts';

let database: TestDatabase;
let admin: pg.Client;
const sessions: LeaderSession[] = [];

beforeAll(async () => {
  database = await createTestDatabase();
  admin = new pg.Client({ connectionString: database.url });
  await admin.connect();
});
afterEach(async () => {
  await Promise.all(sessions.splice(0).map((session) => session.release().catch(() => undefined)));
});
afterAll(async () => {
  await admin.end();
  await database.drop();
});

async function lead(url = database.url): Promise<LeaderSession | null> {
  const session = await tryLead(url, 'leader');
  if (session) sessions.push(session);
  return session;
}

async function requireLead(url?: string): Promise<LeaderSession> {
  const session = await lead(url);
  if (!session) throw new Error('somebody else leads');
  return session;
}

async function eventuallyLeads(): Promise<void> {
  await eventually(async () => {
    if (!(await lead())) throw new Error('somebody else leads');
  });
}

describe('of many that want to lead', () => {
  it('one does, until it resigns', async () => {
    const asked = await Promise.all([1, 2, 3, 4, 5].map(() => lead()));
    const leaders = asked.filter((session) => session !== null);
    expect(leaders.length).toBe(1);
    expect(await lead()).toBeNull();
    await leaders[0]!.release();
    await leaders[0]!.ended;
    expect(await lead()).not.toBeNull();
  });

  it('those who do not leave no connection behind', async () => {
    await requireLead();
    await Promise.all([1, 2, 3].map(() => lead()));
    await eventually(async () => {
      const { rows } = await admin.query(
        `select count(*)::int as n from pg_stat_activity where application_name = 'leader' and datname = current_database()`,
      );
      expect(rows).toEqual([{ n: 1 }]);
    });
  });
});

describe('a leader', () => {
  it('that is killed learns of it, and the next leads at once', async () => {
    const first = await requireLead();
    const { rows } = await first.client.query('select pg_backend_pid() as pid');
    await admin.query('select pg_terminate_backend($1)', [rows[0].pid]);
    await first.ended;
    await eventuallyLeads();
    await expect(first.client.query('select 1')).rejects.toThrow();
  });

  it('runs under limits that end its session when it freezes or is cut off', async () => {
    const { client } = await requireLead();
    const show = async (name: string) =>
      (await client.query(`select current_setting('${name}') as value`)).rows[0].value;
    expect(await show('idle_session_timeout')).toBe('10s');
    expect(await show('idle_in_transaction_session_timeout')).toBe('10s');
    expect(await show('statement_timeout')).toBe('5s');
    expect(await show('tcp_user_timeout')).toBe('5000');
    expect(await show('tcp_keepalives_idle')).toBe('2');
    expect(await show('plan_cache_mode')).toBe('force_generic_plan');
  });

  it('that is silent for 10 s has lost', async () => {
    const frozen = await requireLead();
    const started = performance.now();
    await frozen.ended;
    expect(performance.now() - started).toBeGreaterThan(8_000);
    expect(performance.now() - started).toBeLessThan(14_000);
    await eventuallyLeads();
  });

  it('that is cut off can resign without waiting for the network', async () => {
    const proxy = await startTcpProxy(database.url);
    const cutOff = await requireLead(proxy.url);
    proxy.swallow();
    const started = performance.now();
    await cutOff.release().catch(() => undefined);
    expect(performance.now() - started).toBeLessThan(3_000);
    await proxy.close();
  });
});

describe('behind a transaction pooler', () => {
  it('nobody leads: the lock was given to somebody else, and the error says what to set', async () => {
    // What a pooler does to a session lock: the statement succeeds, in a session that is not ours.
    await admin.query(`create schema pooler;
      create function pooler.pg_try_advisory_lock(integer, integer) returns boolean language sql as 'select true'`);
    const name = new URL(database.url).pathname.slice(1);
    await admin.query(`alter database ${name} set search_path = pooler, pg_catalog`);
    const refused = await tryLead(database.url, 'leader').catch((error: unknown) => error);
    await admin.query(`alter database ${name} reset search_path`);
    expect(refused).toBeInstanceOf(PoolerError);
    expect(String(refused)).toContain('RELAY_DATABASE_DIRECT_URL');
  });
});

describe('without a database', () => {
  it('the attempt to lead fails', async () => {
    const url = new URL(database.url);
    url.pathname = '/nothing_there';
    await expect(tryLead(url.href, 'leader')).rejects.toMatchObject({ code: '3D000' });
  });
});
