import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { checkInvariants, violations } from '../../lib/store/invariants.ts';
import { migrate } from '../../lib/store/migrate.ts';
import { createPool } from '../../lib/store/pool.ts';
import { eventually } from '../testing/eventually.ts';
import { type Fleet, startFleet } from '../testing/fleet.ts';
import { type PrivatePostgres, startPrivatePostgres } from '../testing/private-servers.ts';
import { createTestRedis } from '../testing/redis.ts';

let postgres: PrivatePostgres;
let fleet: Fleet;
let pool: pg.Pool;

beforeAll(async () => {
  postgres = await startPrivatePostgres();
  await migrate(postgres.url);
  pool = createPool({ url: postgres.url, purpose: 'general', max: 2, applicationName: 'test' });
  fleet = await startFleet({ databaseUrl: postgres.url, redisUrl: createTestRedis().url });
  await Promise.all([
    fleet.start('api'),
    fleet.start('dispatcher'),
    fleet.start('reconciler'),
    fleet.start('reconciler'),
  ]);
  await fleet.endpoint('/sink');
});
afterAll(async () => {
  await fleet.stop();
  await pool.end();
  await postgres.stop('immediate');
});

const metric = async (role: 'api' | 'dispatcher', name: string) => {
  const process = fleet.processes.find((candidate) => candidate.role === role);
  const text = await (await fetch(`${process?.url}/metrics`)).text();
  return Number(new RegExp(`^${name} (\\S+)`, 'm').exec(text)?.[1]);
};

describe('Postgres crashing and coming back under load', () => {
  it('ends no process, loses nothing that was accepted, and is said by 503', {
    timeout: 120_000,
  }, async () => {
    const posting = fleet.post(900, { connections: 16, rate: 150 });
    for (let crash = 0; crash < 2; crash++) {
      await eventually(() => expect(fleet.receiver.counts().delivered).toBeGreaterThan(100 * (crash + 1)));
      await postgres.stop('immediate');
      await new Promise((resolve) => setTimeout(resolve, 500));
      await postgres.start();
    }
    const { deliveryIds, statuses } = await posting;
    expect(Object.keys(statuses).sort()).toEqual(['202', '503']);
    expect(fleet.processes.every((process) => process.alive())).toBe(true);

    await eventually(async () => {
      const { rows } = await pool.query<{ n: number }>(
        'select count(*)::integer as n from relay.deliveries where id = any($1::uuid[])',
        [deliveryIds],
      );
      expect(rows[0]?.n).toBe(deliveryIds.length);
    });
    await fleet.delivered(deliveryIds, 60_000);
    await eventually(
      async () => expect((await pool.query('select from relay.queue')).rowCount).toBe(0),
      60_000,
    );
    expect(violations(await checkInvariants(pool, { repair: false }))).toBe(0);
  });
});

describe('a connection that breaks inside COMMIT', () => {
  it('is answered 503 commit_unknown, and Relay makes no second event of it', {
    timeout: 60_000,
  }, async () => {
    // A deferred trigger runs inside COMMIT; this one ends its own session there.
    await pool.query(`
      create function relay.cut_in_commit() returns trigger language plpgsql as $$
      begin
        perform pg_terminate_backend(pg_backend_pid());
        perform pg_sleep(1);
        return null;
      end $$;
      create constraint trigger cut_in_commit after insert on relay.events deferrable initially deferred
        for each row when (new.type = 'cut.me') execute function relay.cut_in_commit()`);
    const { status, json } = await fleet.call('POST', '/v1/events', { body: { type: 'cut.me' } });
    expect([status, json.code]).toEqual([503, 'commit_unknown']);
    expect(await metric('api', 'relay_ingest_commit_unknown_total')).toBeGreaterThanOrEqual(1);
    await pool.query('drop trigger cut_in_commit on relay.events');
    const after = await fleet.post(5, { type: 'cut.not' });
    await fleet.delivered(after.deliveryIds);
    const { rows } = await pool.query<{ n: number }>(
      `select count(*)::integer as n from relay.events where type = 'cut.me'`,
    );
    expect(rows[0]?.n).toBeLessThanOrEqual(1);
  });
});

describe('an idempotency key that an open transaction holds', () => {
  it('makes only those wait who use it', { timeout: 60_000 }, async () => {
    const holder = new pg.Client({ connectionString: postgres.url });
    await holder.connect();
    await holder.query('begin');
    await holder.query(
      `insert into relay.idempotency_keys (tenant_id, key, digest, event_id, expires_at)
       values ('00000000-0000-0000-0000-000000000001', 'held', '\\x00', gen_random_uuid(), now() + interval '1 day')`,
    );
    const held = fleet.call('POST', '/v1/events', {
      body: { type: 'held' },
      headers: { 'idempotency-key': 'held' },
    });
    const others = await fleet.post(200, {
      rate: 100,
      headers: (n) => (n % 2 ? { 'idempotency-key': `free-${n}` } : {}),
    });
    expect(others.statuses).toEqual({ 202: 200 });
    const { status, json, headers } = await held;
    expect([status, json.code]).toEqual([409, 'idempotency_in_progress']);
    expect(Number(headers.get('retry-after'))).toBeGreaterThan(0);

    await holder.query('rollback');
    await holder.end();
    const again = await fleet.call('POST', '/v1/events', {
      body: { type: 'held' },
      headers: { 'idempotency-key': 'held' },
    });
    expect(again.status).toBe(202);
    await fleet.delivered([...others.deliveryIds, ...again.json.delivery_ids]);
  });
});

describe('outcomes that cannot be written for a while', () => {
  it('are written in the end: nothing is sent twice, nothing abandoned, and nothing new is claimed meanwhile', {
    timeout: 120_000,
  }, async () => {
    fleet.receiver.reset();
    await pool.query(`
      create function relay.refuse_attempts() returns trigger language plpgsql as $$
      begin
        raise exception using errcode = '53100', message = 'no space left';
      end $$;
      create trigger refuse_attempts before insert on relay.delivery_attempts for each row execute function relay.refuse_attempts()`);
    const first = await fleet.post(60, { rate: 60 });
    await eventually(async () =>
      expect(await metric('dispatcher', 'relay_settle_oldest_unsettled_seconds')).toBeGreaterThan(2),
    );
    const claimed = await metric('dispatcher', 'relay_deliveries_claimed_total');
    const second = await fleet.post(120, { rate: 60 });
    expect(await metric('dispatcher', 'relay_deliveries_claimed_total')).toBe(claimed);

    await pool.query('drop trigger refuse_attempts on relay.delivery_attempts');
    await fleet.delivered([...first.deliveryIds, ...second.deliveryIds], 60_000);
    await eventually(async () => expect((await pool.query('select from relay.queue')).rowCount).toBe(0));
    expect(fleet.receiver.counts().duplicates).toBe(0);
    const { rows } = await pool.query(`select from relay.deliveries where dead_reason = 'abandoned'`);
    expect(rows.length).toBe(0);
  });
});

describe('a COMMIT that takes two seconds', () => {
  it('delivers after the commit, and nothing of what was rolled back', { timeout: 60_000 }, async () => {
    await pool.query(`
      create function relay.slow_commit() returns trigger language plpgsql as $$
      begin
        perform pg_sleep(2);
        if new.type = 'slow.fails' then raise exception using errcode = '23514', message = 'refused late'; end if;
        return null;
      end $$;
      create constraint trigger slow_commit after insert on relay.events deferrable initially deferred
        for each row when (new.type like 'slow.%') execute function relay.slow_commit()`);
    const [slow, failed] = await Promise.all([
      Promise.all(
        Array.from({ length: 3 }, () => fleet.call('POST', '/v1/events', { body: { type: 'slow.works' } })),
      ),
      fleet.call('POST', '/v1/events', { body: { type: 'slow.fails' } }),
    ]);
    await pool.query('drop trigger slow_commit on relay.events');
    expect(slow.map((answer) => answer.status)).toEqual([202, 202, 202]);
    expect(failed.status).toBe(422);
    await fleet.delivered(slow.flatMap((answer) => answer.json.delivery_ids));
    const { rows } = await pool.query(`select from relay.events where type = 'slow.fails'`);
    expect(rows.length).toBe(0);
  });
});
