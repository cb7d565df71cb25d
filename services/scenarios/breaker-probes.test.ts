import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createPool } from '../../lib/store/pool.ts';
import {
  type DnsAnswer,
  type NameServer,
  startNameServer,
} from '../dispatcher/sending/fixtures/name-server.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';
import { type Fleet, type FleetProcess, startFleet } from '../testing/fleet.ts';
import { healthRow } from '../testing/given-health.ts';
import { createTestRedis } from '../testing/redis.ts';
import { type SwitchedSink, startSwitchedSink } from '../testing/switched-sink.ts';

const COOLDOWN_MS = 2_000;
const REQUEST_TIMEOUT_MS = 3_000;
/** A probe must have reported by then: a second's wait in the process, the request, and five seconds to record it. */
const PROBE_MS = 1_000 + REQUEST_TIMEOUT_MS + 5_000;
/** What a slot's wake-up, a claim and a send may add on a busy machine. */
const MARGIN_MS = 4_000;
/** What failed is not sent again while a test runs. */
const NO_RETRY = { retry_policy: { max_attempts: 5, base_ms: 600_000, factor: 1, cap_ms: 600_000 } };
const QUICK_RETRY = { retry_policy: { max_attempts: 50, base_ms: 1_000, factor: 1, cap_ms: 1_000 } };

/** Has a process ask this name server, and nobody else: the hosts file would answer in its place. */
function askingOnly({ server }: NameServer): Record<string, string> {
  const preload = `
    import dns, { Resolver } from 'node:dns/promises';
    import { syncBuiltinESMExports } from 'node:module';
    for (const query of ['resolve4', 'resolve6']) {
      const real = Resolver.prototype[query];
      Resolver.prototype[query] = function (...args) {
        if (!this.pointed) this.setServers(['${server}']);
        this.pointed = true;
        return real.apply(this, args);
      };
    }
    dns.lookup = async () => [];
    syncBuiltinESMExports();`;
  return { NODE_OPTIONS: `--import data:text/javascript,${encodeURIComponent(preload)}` };
}

let database: TestDatabase;
let pool: pg.Pool;
let sink: SwitchedSink;
let names: NameServer;
let answer: DnsAnswer = ['127.0.0.1'];
let fleet: Fleet;
const dispatchers: FleetProcess[] = [];

beforeAll(async () => {
  [database, sink] = await Promise.all([createTestDatabase(), startSwitchedSink()]);
  names = await startNameServer(() => answer);
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
  const env = {
    RELAY_REQUEST_TIMEOUT_SECS: String(REQUEST_TIMEOUT_MS / 1_000),
    RELAY_CONNECT_TIMEOUT_SECS: String(REQUEST_TIMEOUT_MS / 1_000),
    RELAY_READ_TIMEOUT_SECS: String(REQUEST_TIMEOUT_MS / 1_000),
    RELAY_LEASE_TTL_SECS: '10',
    RELAY_BREAKER_COOLDOWN_SECS: String(COOLDOWN_MS / 1_000),
    RELAY_BREAKER_MAX_COOLDOWN_SECS: String(COOLDOWN_MS / 1_000),
  };
  fleet = await startFleet({ databaseUrl: database.url, redisUrl: createTestRedis().url, env });
  const starting = [1, 2, 3].map(() => fleet.start('dispatcher', askingOnly(names)));
  await Promise.all([fleet.start('api'), fleet.start('reconciler')]);
  dispatchers.push(...(await Promise.all(starting)));
});
afterAll(async () => {
  await fleet.stop();
  await Promise.all([sink.close(), names.close(), pool.end()]);
  await database.drop();
});

async function endpointAt(path: string) {
  const type = `t.${path.slice(1)}`;
  const url = new URL(path, sink.url);
  // A name of its own: a kept connection of the same origin would need no name server.
  url.hostname = `${path.slice(1)}.example`;
  const { id } = await fleet.endpoint('', {
    url: url.href,
    event_types: [type],
    rate_per_second: 20,
    burst: 20,
    ...NO_RETRY,
  });
  return { id, type, path };
}

/** Opens the endpoint's breaker with five deliveries that are not sent again, and leaves no connection to it. */
async function openBreaker({ id, type, path }: { id: string; type: string; path: string }): Promise<void> {
  sink.set(path, { status: 500, headers: { connection: 'close' } });
  await fleet.post(5, { type });
  await eventually(async () => expect((await healthRow(pool, id)).trips).toBe(1));
  expect(sink.arrivals(path).length).toBe(5);
  expect((await fleet.call('PATCH', `/v1/endpoints/${id}`, { body: QUICK_RETRY })).status).toBe(200);
}

const nothingOwed = (ids: readonly string[], withinMs: number) =>
  eventually(async () => {
    const { rows } = await pool.query('select from relay.queue where delivery_id = any($1::uuid[])', [ids]);
    expect(rows.length).toBe(0);
  }, withinMs);

/** The dispatcher that holds the delivery by which it probes the endpoint. */
async function prober(endpointId: string): Promise<FleetProcess> {
  const { rows } = await pool.query<{ claimed_by: number }>(
    `select q.claimed_by from relay.queue q
     where q.endpoint_id = $1 and q.claim_token = (select breaker_probe from relay.endpoints where id = $1) limit 1`,
    [endpointId],
  );
  const found = dispatchers.find((process) =>
    process.log().some((line) => line.msg === 'dispatcher started' && line.number === rows[0]?.claimed_by),
  );
  if (!found) throw new Error('nobody probes');
  return found;
}

describe('a dispatcher killed while its probe hangs', { timeout: 60_000 }, () => {
  it('leaves the breaker half-open no longer than a probe may take: another probes, and all is delivered', async () => {
    const at = await endpointAt('/killed');
    await openBreaker(at);
    sink.set(at.path, 'hold');
    const { deliveryIds } = await fleet.post(20, { type: at.type });
    const { atMs: probedAt } = await eventually(() => {
      expect(sink.arrivals(at.path).length).toBe(6);
      return sink.arrivals(at.path)[5]!;
    }, COOLDOWN_MS + MARGIN_MS);
    const doomed = await eventually(() => prober(at.id), 2_000);
    await doomed.kill();
    sink.set(at.path, { status: 200 });
    expect(await healthRow(pool, at.id)).toMatchObject({ state: 'half_open', trips: 1 });
    await eventually(async () => expect((await healthRow(pool, at.id)).state).toBe('closed'), 20_000);
    const next = sink.arrivals(at.path)[6]!;
    // Not before the deadline either: until then the probe may still be on its way.
    expect(next.atMs - probedAt).toBeGreaterThan(PROBE_MS - MARGIN_MS);
    expect(next.atMs - probedAt).toBeLessThan(PROBE_MS + MARGIN_MS);
    // What the dead one held comes back when its lease has ended.
    await nothingOwed(deliveryIds, 30_000);
    dispatchers.push(await fleet.start('dispatcher', askingOnly(names)));
  });
});

describe('a name that cannot be resolved while its endpoint is probed', { timeout: 60_000 }, () => {
  it.each<DnsAnswer>(['SERVFAIL', 'NXDOMAIN', 'silence'])(
    '(%s) says nothing of the endpoint, and sticks nothing',
    async (outage) => {
      const at = await endpointAt(`/outage-${String(outage).toLowerCase()}`);
      answer = ['127.0.0.1'];
      await openBreaker(at);
      answer = outage;
      const { deliveryIds } = await fleet.post(20, { type: at.type });
      const probes = () =>
        pool.query(
          `select from relay.delivery_attempts where delivery_id = any($1::uuid[]) and error like 'dns:%'`,
          [deliveryIds],
        );
      const overdue: number[] = [];
      await eventually(async () => {
        const { state, until_in, trips } = await healthRow(pool, at.id);
        expect(['open', 'half_open']).toContain(state);
        if (state === 'half_open') overdue.push(-until_in!);
        expect(trips).toBe(1);
        expect((await probes()).rows.length).toBeGreaterThanOrEqual(2);
      }, 25_000);
      // No probe was past its time, and each undecided one was followed by the next after a cooldown.
      expect(Math.max(...overdue, 0)).toBeLessThan(1_000);
      expect(sink.arrivals(at.path).length).toBe(5);
      answer = ['127.0.0.1'];
      sink.set(at.path, { status: 200 });
      await nothingOwed(deliveryIds, COOLDOWN_MS + 20_000);
      expect(await healthRow(pool, at.id)).toMatchObject({ state: 'closed', trips: 1 });
    },
  );
});
