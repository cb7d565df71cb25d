import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { checkInvariants, violations } from '../../lib/store/invariants.ts';
import { createPool } from '../../lib/store/pool.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';
import { type Fleet, type FleetProcess, startFleet } from '../testing/fleet.ts';
import { type PrivateRedis, startPrivateRedis } from '../testing/private-servers.ts';
import { type SwitchedSink, startSwitchedSink } from '../testing/switched-sink.ts';

/** The shortest lease that the configuration allows for sends of up to 3 s. */
const LEASE_MS = 10_000;
const CAP = 3;
const QUICK_RETRY = { retry_policy: { max_attempts: 20, base_ms: 500, factor: 1, cap_ms: 1_000 } };

let database: TestDatabase;
let pool: pg.Pool;
let redis: PrivateRedis;
let sink: SwitchedSink;
let fleet: Fleet;
let dispatchers: FleetProcess[] = [];

beforeAll(async () => {
  [database, redis, sink] = await Promise.all([
    createTestDatabase(),
    startPrivateRedis(),
    startSwitchedSink(),
  ]);
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
  const env = {
    RELAY_REQUEST_TIMEOUT_SECS: '3',
    RELAY_CONNECT_TIMEOUT_SECS: '3',
    RELAY_READ_TIMEOUT_SECS: '3',
    RELAY_LEASE_TTL_SECS: String(LEASE_MS / 1_000),
    // What the receiver is made to do here must not open a breaker: the caps alone are looked at.
    RELAY_BREAKER: 'off',
    RELAY_MAX_IN_FLIGHT: '8',
  };
  fleet = await startFleet({ databaseUrl: database.url, redisUrl: redis.url, env });
  await Promise.all([fleet.start('api'), fleet.start('reconciler')]);
});
afterAll(async () => {
  await fleet.stop();
  await Promise.all([sink.close(), redis.stop(), pool.end()]);
  await database.drop();
});

async function startDispatchers(): Promise<void> {
  dispatchers = await Promise.all([fleet.start('dispatcher'), fleet.start('dispatcher')]);
}

/** Each dispatcher has heard of the other, and of nobody who is dead: until then their shares need not add up to the cap. */
async function expectAcquainted(): Promise<void> {
  const { rows } = await pool.query<{ live: number; heard: boolean }>(
    `select count(*)::integer as live, min(beat_at) > max(started_at) as heard from relay.process_heartbeats
     where role = 'dispatcher' and beat_at > now() - interval '6 s'`,
  );
  expect(rows[0]).toEqual({ live: 2, heard: true });
}

function apiPolls(): boolean {
  const api = fleet.processes.find(({ role }) => role === 'api');
  return api?.log().some((line) => String(line.msg).startsWith('poll mode')) ?? false;
}

async function inFlight(): Promise<number[]> {
  return Promise.all(
    dispatchers.map(async ({ url }) => {
      const text = await (await fetch(`${url}/metrics`)).text();
      return Number(/^relay_deliveries_in_flight (\d+)$/m.exec(text)?.[1]);
    }),
  );
}

async function owed(): Promise<number> {
  const { rows } = await pool.query<{ n: number }>('select count(*)::integer as n from relay.queue');
  return rows[0]!.n;
}

const expectIdle = (withinMs: number) =>
  eventually(async () => {
    expect(await owed()).toBe(0);
    expect(await inFlight()).toEqual([0, 0]);
  }, withinMs);

describe('an endpoint with a cap of 3 whose dispatchers are all killed while 3 requests are open (O-06)', {
  timeout: 120_000,
}, () => {
  it('is sent to again within a lease, round after round, also without Redis, and keeps no slot taken', async () => {
    const path = '/capped';
    await fleet.endpoint('', {
      url: sink.url + path,
      event_types: ['capped'],
      max_in_flight: CAP,
      ...QUICK_RETRY,
    });
    await startDispatchers();
    const posted: string[] = [];
    /** From when the new ones were up, for they may take their time on a busy machine. */
    const againMs: number[] = [];
    for (const round of ['with Redis', 'without Redis', 'with Redis again']) {
      await eventually(expectAcquainted, 2 * LEASE_MS);
      sink.set(path, 'hold');
      posted.push(...(await fleet.post(12, { type: 'capped' })).deliveryIds);
      await eventually(() => expect(sink.open(path)).toBe(CAP), 2 * LEASE_MS);
      if (round === 'without Redis') await redis.stop();
      await Promise.all(dispatchers.map((dispatcher) => dispatcher.kill()));
      const killedAt = Date.now();
      expect(sink.mostOpen(path)).toBe(CAP);
      sink.set(path, { status: 200 });
      // What an API announces to a Redis that it takes to be there waits for the sweep, half a minute.
      if (round === 'without Redis') await eventually(() => expect(apiPolls()).toBe(true));
      // What the dead ones hold waits for the end of its lease; what comes now needs only a slot.
      posted.push(...(await fleet.post(1, { type: 'capped' })).deliveryIds);
      await startDispatchers();
      const upAt = Date.now();
      const again = await eventually(() => {
        const found = sink.arrivals(path).find(({ atMs }) => atMs > killedAt);
        if (!found) throw new Error('nothing was sent since the kill');
        return found;
      }, 2 * LEASE_MS);
      againMs.push(Math.max(0, again.atMs - upAt));
      if (round === 'without Redis') await redis.start();
    }
    for (const ms of againMs) expect(ms).toBeLessThan(LEASE_MS);
    // What the dead ones held comes back within a lease and the sweep's grace, what they had read within half a minute.
    await expectIdle(60_000);
    const arrived = sink.arrivals(path).map(({ deliveryId }) => deliveryId);
    expect(new Set(arrived)).toEqual(new Set(posted));
    // Beside those that were held until they timed out, only what was open when its sender died was sent twice.
    const { rows } = await pool.query(
      `select from relay.delivery_attempts where delivery_id = any($1::uuid[]) and class = 'retryable'`,
      [posted],
    );
    expect(arrived.length - posted.length - rows.length).toBeLessThanOrEqual(3 * CAP);
    expect(violations(await checkInvariants(pool, { repair: false }))).toBe(0);
  });
});

/** How sends can end, and what of the record is spoilt while they wait. A path is the receiver's, or the sink's. */
const ENDINGS: Record<string, { url?: string; spoil?: string }> = {
  '/reset': {},
  '/hold': {},
  '/bigbody?kb=100': {},
  '/trickle?ms=50': {},
  '/trickle?part=headers': {},
  '/redirect': {},
  '/drop': {},
  '/429?retry_after=0': {},
  nobody: { url: 'http://127.0.0.1:1/' },
  secret: { spoil: `update relay.endpoints set secret = 'no secret', version = version + 1 where id = $1` },
  url: { spoil: `update relay.endpoints set url = 'nowhere', version = version + 1 where id = $1` },
  header: {
    spoil: `update relay.events set content_type = E'text/plain\\r\\nx: y' where id in (select event_id from relay.deliveries where endpoint_id = $1)`,
  },
  event: {
    spoil:
      'delete from relay.events where id in (select event_id from relay.deliveries where endpoint_id = $1)',
  },
};

describe('sends that end in every way there is', { timeout: 90_000 }, () => {
  it('give their slots back, each once', async () => {
    const oversize = { RELAY_MAX_PAYLOAD_BYTES: '100000' };
    dispatchers.push(
      ...(await Promise.all(
        dispatchers.splice(0).map(async (old) => {
          await old.terminate();
          return fleet.start('dispatcher', oversize);
        }),
      )),
    );
    const sinkPaths = ['/reset', '/hold'];
    sink.set('/reset', 'reset');
    sink.set('/hold', 'hold');
    const kinds = Object.entries(ENDINGS).map(([name, ending], n) => ({
      name,
      ...ending,
      type: `ending.${n}`,
    }));
    const endpoints = await Promise.all(
      kinds.map(({ name, url, spoil, type }) =>
        fleet.endpoint('', {
          url:
            url ??
            (sinkPaths.includes(name) ? sink.url + name : fleet.receiver.url + (spoil ? '/sink' : name)),
          event_types: [type],
          retry_policy: { max_attempts: 2, base_ms: 100, factor: 1, cap_ms: 1_000 },
        }),
      ),
    );
    const spoilt = endpoints.filter((_, n) => kinds[n]!.spoil);
    for (const { id } of spoilt) await fleet.call('POST', `/v1/endpoints/${id}/pause`, { body: {} });
    for (const { type } of kinds) await fleet.post(6, { type });
    for (const size of [50_000, 200_000])
      await postBytes(kinds.find(({ name }) => name === '/redirect')!.type, size);
    for (const [n, { spoil }] of kinds.entries()) if (spoil) await pool.query(spoil, [endpoints[n]!.id]);
    for (const { id } of spoilt) await fleet.call('POST', `/v1/endpoints/${id}/resume`);
    await eventually(async () => {
      for (const open of await inFlight()) expect(open).toBeLessThanOrEqual(8);
      const { rows } = await pool.query(
        `select e.url, count(*)::integer, min(q.waiting) as waiting, min(q.deferral_reason) as why from relay.queue q join relay.endpoints e on e.id = q.endpoint_id group by 1`,
      );
      expect(rows).toEqual([]);
    }, 60_000);
    await expectIdle(2_000);
    expect(dispatchers.every((dispatcher) => dispatcher.alive())).toBe(true);

    // And every slot is there to be used.
    await dispatchers.pop()!.terminate();
    const { id } = await fleet.endpoint('', { url: `${sink.url}/all`, event_types: ['all'] });
    sink.set('/all', { status: 200, afterMs: 300 });
    await fleet.call('POST', `/v1/endpoints/${id}/pause`, { body: {} });
    await fleet.post(60, { type: 'all' });
    await fleet.call('POST', `/v1/endpoints/${id}/resume`);
    await eventually(async () => expect(await owed()).toBe(0), 20_000);
    expect(sink.mostOpen('/all')).toBe(8);
  });
});

async function postBytes(type: string, bytes: number): Promise<void> {
  const { status } = await fleet.call('POST', '/v1/events', {
    raw: Buffer.alloc(bytes, 'x'),
    headers: { 'relay-event-type': type, 'content-type': 'application/octet-stream' },
  });
  expect(status).toBe(202);
}
