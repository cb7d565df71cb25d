import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import { eventually } from '../../services/testing/eventually.ts';
import { givenClaimed, givenOne, keepOne, retry } from '../../services/testing/given-queue.ts';
import { attemptRows } from '../../services/testing/stored-rows.ts';
import { createPool } from './pool.ts';
import { ensureAttemptPartitions } from './queue-gauges.ts';

let database: TestDatabase;
let pool: pg.Pool;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 6, applicationName: 'test' });
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

async function connect(timeZone: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: database.url, options: `-c timezone=${timeZone}` });
  await client.connect();
  return client;
}

interface Partition {
  name: string;
  bounds: string;
  from: Date;
  to: Date;
}

async function partitions(): Promise<Partition[]> {
  const { rows } = await pool.query<{ name: string; bounds: string }>(
    `select c.relname as name, pg_get_expr(c.relpartbound, c.oid) as bounds
     from pg_inherits i join pg_class c on c.oid = i.inhrelid
     where i.inhparent = 'relay.delivery_attempts'::regclass and c.relname <> 'delivery_attempts_default' order by 1`,
  );
  return rows.map((row) => {
    const [from, to] = [...row.bounds.matchAll(/'([^']+)'/g)].map(([, moment]) => new Date(moment!));
    return { ...row, from: from!, to: to! };
  });
}

const insertAttempt = (at: string) =>
  pool.query(
    `insert into relay.delivery_attempts (delivery_id, at, seq, attempt, generation, class)
     values (gen_random_uuid(), $1, 1, 1, 1, 'lost') returning tableoid::regclass::text as table`,
    [at],
  );

describe('the log of attempts', () => {
  it('has a partition for each UTC day, without hole or overlap, from yesterday to a fortnight ahead', async () => {
    const days = await partitions();
    expect(days.length).toBe(16);
    for (const [n, { name, from, to }] of days.entries()) {
      expect(to.getTime() - from.getTime()).toBe(86_400_000);
      expect(from.toISOString().slice(11)).toBe('00:00:00.000Z');
      expect(name).toBe(`delivery_attempts_${from.toISOString().slice(0, 10).replaceAll('-', '')}`);
      if (n > 0) expect(from).toEqual(days[n - 1]!.to);
    }
    const { rows } = await pool.query(`select (now() at time zone 'utc')::date::text as today`);
    expect(days[1]!.from.toISOString().slice(0, 10)).toBe(rows[0].today);
  });

  it('has its bounds in UTC whatever the zone of whoever makes them', async () => {
    const elsewhere = await connect('America/Denver');
    await elsewhere.query('select relay.ensure_attempt_partitions(20)');
    await elsewhere.end();
    const days = await partitions();
    expect(days.length).toBe(22);
    for (const { from } of days) expect(from.toISOString().slice(11)).toBe('00:00:00.000Z');
  });

  it('takes a row of any moment, and tells by the default partition when its day was missing', async () => {
    const day = (await partitions())[3]!;
    const inside = await insertAttempt(new Date(day.to.getTime() - 1).toISOString());
    expect(inside.rows[0].table).toContain(day.name);
    const outside = await insertAttempt('2001-01-01T00:00:00Z');
    expect(outside.rows[0].table).toContain('delivery_attempts_default');
  });

  it('is not changed: rows are neither updated nor deleted, in any partition', async () => {
    const id = await givenOne(pool);
    await keepOne(pool, retry(await givenClaimed(pool, id)));
    for (const change of [
      `update relay.delivery_attempts set class = 'success'`,
      'delete from relay.delivery_attempts',
    ]) {
      await expect(pool.query(change)).rejects.toThrow('append-only');
    }
    const [newest] = (await partitions()).slice(-1);
    await insertAttempt(newest!.from.toISOString());
    await expect(pool.query(`delete from relay.${newest!.name}`)).rejects.toThrow('append-only');
    expect(await attemptRows(pool, id)).toMatchObject([{ class: 'retryable' }]);
  });

  it('may have rows moved by whoever says so, in that transaction alone', async () => {
    const mover = await connect('UTC');
    await mover.query(`begin; set local relay.moving_rows = on`);
    await mover.query(`delete from relay.delivery_attempts_default`);
    await mover.query('rollback');
    await expect(mover.query('delete from relay.delivery_attempts_default')).rejects.toThrow('append-only');
    await mover.end();
  });
});

describe('making partitions', () => {
  it('makes what is missing and nothing else', async () => {
    const before = (await partitions()).length;
    expect(await ensureAttemptPartitions(pool, 25)).toBe(27 - before);
    expect(await ensureAttemptPartitions(pool, 25)).toBe(0);
    const { rows } = await pool.query(
      `select count(*)::int as indexes from pg_indexes where schemaname = 'relay' and tablename ~ '^delivery_attempts_[0-9]'`,
    );
    expect(rows[0].indexes).toBe(27);
  });

  it('at the same moment by several is done once', async () => {
    // Whoever does not get the lock in time comes again, as the leader does.
    const made = await Promise.all(
      [1, 2, 3, 4].map(() => eventually(() => ensureAttemptPartitions(pool, 40))),
    );
    expect(made.reduce((sum, n) => sum + n, 0)).toBeLessThanOrEqual(15);
    expect((await partitions()).length).toBe(42);
  });

  it('does not wait for open settles, nor they for it', async () => {
    const settling = await connect('UTC');
    await settling.query('begin');
    await settling.query(
      `insert into relay.delivery_attempts (delivery_id, seq, attempt, generation, class) values (gen_random_uuid(), 1, 1, 1, 'lost')`,
    );
    expect(await ensureAttemptPartitions(pool, 42)).toBe(2);
    await settling.query('commit');
    await settling.end();
  });

  it('gives up soon when somebody reads the whole log, and holds up no settle meanwhile', async () => {
    const reader = await connect('UTC');
    await reader.query('begin');
    await reader.query('select count(*) from relay.delivery_attempts');
    const started = performance.now();
    const making = ensureAttemptPartitions(pool, 45).catch((error: { code: string }) => error.code);
    const id = await givenOne(pool);
    await keepOne(pool, retry(await givenClaimed(pool, id)));
    expect(await making).toBe('55P03');
    expect(performance.now() - started).toBeLessThan(3_000);
    await reader.query('commit');
    await reader.end();
    expect(await ensureAttemptPartitions(pool, 45)).toBe(3);
  });

  it('leaves a day alone whose rows lie in the default partition', async () => {
    const { rows } = await pool.query(`select ((now() at time zone 'utc')::date + 47)::text as day`);
    await insertAttempt(`${rows[0].day}T12:00:00Z`);
    expect(await ensureAttemptPartitions(pool, 48)).toBe(2);
    expect((await partitions()).map(({ name }) => name)).not.toContain(
      `delivery_attempts_${rows[0].day.replaceAll('-', '')}`,
    );
  });
});
