import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { verificationKey, verifySignature } from '../receiver/signatures.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';
import { type Fleet, startFleet } from '../testing/fleet.ts';
import { createTestRedis } from '../testing/redis.ts';
import { type ScriptedSink, type SunkRequest, startScriptedSink } from '../testing/scripted-sink.ts';

let database: TestDatabase;
let fleet: Fleet;
let sink: ScriptedSink;
let hearer: { id: string; secret: string };

beforeAll(async () => {
  [database, sink] = await Promise.all([createTestDatabase(), startScriptedSink()]);
  fleet = await startFleet({
    databaseUrl: database.url,
    redisUrl: createTestRedis().url,
    env: { RELAY_BREAKER_COOLDOWN_SECS: '1', RELAY_BREAKER_MAX_COOLDOWN_SECS: '1' },
  });
  await Promise.all([fleet.start('api'), fleet.start('dispatcher'), fleet.start('reconciler')]);
  sink.script('/hearer', { status: 200 });
  hearer = await fleet.endpoint('', {
    url: `${sink.url}/hearer`,
    event_types: null,
    operational_events: ['*'],
  });
});
afterAll(async () => {
  await fleet.stop();
  await sink.close();
  await database.drop();
});

async function endpointAt(path: string) {
  const type = `t.${path.slice(1)}`;
  const retry_policy = { max_attempts: 20, base_ms: 100, factor: 1, cap_ms: 1_000 };
  const { id } = await fleet.endpoint('', { url: sink.url + path, event_types: [type], retry_policy });
  return { id, type };
}

interface News {
  type: string;
  data: Record<string, unknown>;
}

/** What the hearer was told of one endpoint, in the order in which it happened: requests may overtake each other. */
function toldOf(endpointId: string): News[] {
  return sink
    .requests('/hearer')
    .filter((request) => request.body.includes(endpointId))
    .sort((a, b) => (idOf(a) < idOf(b) ? -1 : 1))
    .map((request) => JSON.parse(request.body.toString('utf8')) as News);
}

const idOf = (request: SunkRequest) => request.headers['relay-delivery-id'] ?? '';
const typesOf = (endpointId: string) => toldOf(endpointId).map((news) => news.type);

describe('an endpoint that answers 410', { timeout: 60_000 }, () => {
  it('is disabled, and who subscribes is told of it and of the delivery by signed webhooks', async () => {
    const { id, type } = await endpointAt('/gone');
    sink.script('/gone', { status: 410 });
    const { deliveryIds } = await fleet.post(1, { type });
    await eventually(
      () => expect(typesOf(id).sort()).toEqual(['delivery.dead', 'endpoint.disabled']),
      15_000,
    );
    const told = Object.fromEntries(toldOf(id).map((news) => [news.type, news.data]));
    expect(told['endpoint.disabled']).toEqual({ endpoint_id: id, reason: 'gone' });
    expect(told['delivery.dead']).toMatchObject({
      count: 1,
      reasons: { gone: 1 },
      deliveries: [{ delivery_id: deliveryIds[0], event_type: type, reason: 'gone', last_http_status: 410 }],
    });
    for (const request of sink.requests('/hearer')) {
      expect(request.headers['relay-event-type']).toMatch(/^~(endpoint\.disabled|delivery\.dead)$/);
      const verdict = verifySignature(request.headers, request.body, {
        keys: [verificationKey(hearer.secret)],
        nowSeconds: Math.floor(request.atMs / 1000),
        toleranceSeconds: 300,
        headerPrefix: 'relay',
      });
      expect(verdict).toEqual({ ok: true, scheme: 'relay' });
    }
  });
});

describe('a breaker that opens and closes', { timeout: 60_000 }, () => {
  it('is told of once each, however many probes there were', async () => {
    const { id, type } = await endpointAt('/flaky');
    sink.script('/flaky', { status: 500 });
    const { deliveryIds } = await fleet.post(5, { type });
    await eventually(async () => {
      const { json } = await fleet.call('GET', `/v1/endpoints/${id}`);
      expect(json.breaker.trips).toBeGreaterThanOrEqual(2);
    }, 20_000);
    sink.script('/flaky', { status: 200 });
    await eventually(async () => {
      for (const delivery of deliveryIds) {
        const { json } = await fleet.call('GET', `/v1/deliveries/${delivery}`);
        expect(json.delivery.status).toBe('succeeded');
      }
    }, 30_000);
    await eventually(() => expect(typesOf(id)).toEqual(['endpoint.opened', 'endpoint.recovered']), 15_000);
    expect(toldOf(id)[1]?.data).toEqual({ endpoint_id: id, by: 'probe' });
  });
});

describe('a replay that is done', { timeout: 60_000 }, () => {
  it('is told of with its counts', async () => {
    const { id, type } = await endpointAt('/dead');
    sink.script('/dead', { status: 404 }, { status: 404 }, { status: 200 });
    await fleet.post(2, { type });
    await eventually(() => {
      const counts = toldOf(id).map((news) => Number(news.data.count));
      expect(counts.reduce((sum, count) => sum + count, 0)).toBe(2);
    }, 15_000);
    const job = await fleet.call('POST', '/v1/replays', { body: { filter: { endpoint_id: id } } });
    expect(job.status).toBe(202);
    const finished = () => toldOf(job.json.id).filter((news) => news.type === 'replay.finished');
    await eventually(() => expect(finished()).toHaveLength(1), 20_000);
    expect(sink.requests('/dead').length).toBe(4);
  });
});

describe('an endpoint that hears of itself and fails', { timeout: 60_000 }, () => {
  it('makes no loop: nothing is told of what could not be told', async () => {
    sink.script('/deaf', { status: 404 });
    const { id } = await fleet.endpoint('', {
      url: `${sink.url}/deaf`,
      event_types: null,
      operational_events: ['*'],
      retry_policy: { max_attempts: 1 },
    });
    const other = await endpointAt('/switched');
    await fleet.call('POST', `/v1/endpoints/${other.id}/disable`);
    await eventually(async () => {
      const { json } = await fleet.call('GET', `/v1/endpoints/${id}/deliveries`);
      expect(json.items.map((one: { status: string }) => one.status)).toEqual(['dead']);
    }, 15_000);
    await eventually(() => expect(typesOf(other.id)).toEqual(['endpoint.disabled']), 15_000);
    expect(sink.requests('/hearer').filter((request) => request.body.includes(id))).toEqual([]);
    expect(sink.requests('/deaf')).toHaveLength(1);
  });
});
