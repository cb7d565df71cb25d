import type pg from 'pg';
import { pino } from 'pino';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { RedisLink } from '../../lib/broker/link.ts';
import { createPool } from '../../lib/store/pool.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';
import { givenBroker } from '../testing/given-broker.ts';
import { type PrivateRedis, startPrivateRedis } from '../testing/private-servers.ts';
import { startTcpProxy } from '../testing/tcp-proxy.ts';
import { FleetMember, type MemberOptions } from './member.ts';

let database: TestDatabase;
let pool: pg.Pool;
let redis: PrivateRedis;
const stops: (() => Promise<unknown>)[] = [];

beforeAll(async () => {
  [database, redis] = await Promise.all([createTestDatabase(), startPrivateRedis()]);
  pool = createPool({ url: database.url, purpose: 'general', max: 6, applicationName: 'test' });
});
afterEach(async () => {
  for (const stop of stops.splice(0).reverse()) await stop();
});
afterAll(async () => {
  await pool.end();
  await Promise.all([database.drop(), redis.stop()]);
});

async function givenLink(url = redis.url): Promise<RedisLink> {
  const link = await new RedisLink(givenBroker(url, { keyPrefix: 'fleet:' })).start();
  stops.push(() => link.stop());
  return link;
}

async function givenMember(options: Partial<MemberOptions> = {}) {
  const lines: { level: number; msg: string; why?: string }[] = [];
  const log = pino({}, { write: (line: string) => void lines.push(JSON.parse(line)) });
  const member = await new FleetMember({ pool, role: 'dispatcher', link: null, log, ...options }).start();
  stops.push(() => member.stop());
  return { member, lines };
}

describe('a member of the fleet', () => {
  it('has a number as long as it lives, and leaves no row behind', async () => {
    const { member } = await givenMember({ link: await givenLink() });
    const { rows } = await pool.query(
      'select id, role, wake from relay.process_heartbeats where number = $1',
      [member.number],
    );
    expect(rows).toEqual([{ id: member.id, role: 'dispatcher', wake: 'stream' }]);
    await member.stop();
    expect((await pool.query('select from relay.process_heartbeats')).rowCount).toBe(0);
  });

  it('enters again, under another number, when its row was removed', async () => {
    const { member } = await givenMember();
    const { number } = member;
    await pool.query('delete from relay.process_heartbeats');
    await eventually(() => expect(member.number).not.toBe(number), 4_000);
    expect(
      (await pool.query('select from relay.process_heartbeats where number = $1', [member.number])).rowCount,
    ).toBe(1);
  });

  it('goes on beating after an outage of the database', async () => {
    const proxy = await startTcpProxy(database.url);
    const far = createPool({ url: proxy.url, purpose: 'general', max: 2, applicationName: 'test' });
    stops.push(
      () => proxy.close(),
      () => far.end(),
    );
    const { member } = await givenMember({ pool: far });
    proxy.refuse();
    await eventually(() => expect(member.loop.failing).toBe(true), 5_000);
    proxy.pass();
    await eventually(() => expect(member.loop.failing).toBe(false), 5_000);
    const { rows } = await pool.query(
      `select now() - beat_at < interval '3 s' as fresh from relay.process_heartbeats where number = $1`,
      [member.number],
    );
    expect(rows).toEqual([{ fresh: true }]);
  });

  it('cannot enter without a database', async () => {
    const proxy = await startTcpProxy(database.url);
    const far = createPool({ url: proxy.url, purpose: 'general', max: 1, applicationName: 'test' });
    stops.push(
      () => proxy.close(),
      () => far.end(),
    );
    proxy.refuse();
    await expect(givenMember({ pool: far })).rejects.toThrow();
  });

  it('counts its like', async () => {
    const [one] = await Promise.all([givenMember(), givenMember(), givenMember({ role: 'api' })]);
    await eventually(
      () => expect(one.member.fleet).toMatchObject({ liveDispatchers: 2, liveApis: 1 }),
      4_000,
    );
  });
});

describe('poll mode', () => {
  it('is on without Redis, for oneself at once and for all soon after', async () => {
    const { member: well, lines } = await givenMember({ link: await givenLink() });
    expect([well.wake, well.pollMode]).toEqual(['stream', false]);
    const { member: without } = await givenMember({ role: 'api' });
    expect([without.wake, without.pollMode]).toEqual(['poll', true]);
    await eventually(() => expect(well.pollMode).toBe(true), 4_000);
    expect(well.wake).toBe('stream');
    await without.stop();
    await eventually(() => expect(well.pollMode).toBe(false), 4_000);
    await eventually(() =>
      expect(lines.map(({ level, why }) => [level, why])).toEqual([
        [30, undefined],
        [40, 'another process cannot reach Redis'],
        [30, undefined],
      ]),
    );
  });

  it('comes and goes with Redis', async () => {
    const { member } = await givenMember({ link: await givenLink() });
    await redis.stop();
    await eventually(() => expect(member.pollMode).toBe(true), 3_000);
    await redis.start();
    await eventually(() => expect(member.pollMode).toBe(false), 4_000);
  });
});
