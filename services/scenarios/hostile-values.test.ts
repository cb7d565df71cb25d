import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { parseSecretKeys } from '../../lib/config/secret-keys.ts';
import { headerColumns } from '../../lib/store/endpoint-headers.ts';
import { createPool } from '../../lib/store/pool.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';
import { type Fleet, startFleet } from '../testing/fleet.ts';
import { createTestRedis } from '../testing/redis.ts';
import { type ScriptedSink, startScriptedSink } from '../testing/scripted-sink.ts';

let database: TestDatabase;
let pool: pg.Pool;
let fleet: Fleet;
let sink: ScriptedSink;

beforeAll(async () => {
  [database, sink] = await Promise.all([createTestDatabase(), startScriptedSink()]);
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
  fleet = await startFleet({ databaseUrl: database.url, redisUrl: createTestRedis().url });
  await Promise.all([fleet.start('api'), fleet.start('dispatcher'), fleet.start('reconciler')]);
});
afterAll(async () => {
  await fleet.stop();
  await sink.close();
  await pool.end();
  await database.drop();
});

async function endpointAt(path: string, settings: Record<string, unknown> = {}) {
  const type = `t.${path.slice(1)}`;
  const retry_policy = { max_attempts: 3, base_ms: 100, factor: 1, cap_ms: 1_000 };
  const { id } = await fleet.endpoint('', {
    url: sink.url + path,
    event_types: [type],
    retry_policy,
    ...settings,
  });
  return { id, type };
}

async function post(raw: string, type: string): Promise<string> {
  const { status, json } = await fleet.call('POST', '/v1/events', {
    raw,
    headers: { 'relay-event-type': type },
  });
  expect(status).toBe(202);
  return json.delivery_ids[0];
}

async function becomes(id: string, status: string) {
  return eventually(async () => {
    const { json } = await fleet.call('GET', `/v1/deliveries/${id}`);
    expect(json.delivery.status).toBe(status);
    return json;
  }, 15_000);
}

describe('U+0000 in a payload (O-09)', { timeout: 60_000 }, () => {
  it.each([
    ['in a value', '{"a":"x\\u0000y"}'],
    ['in a key', '{"\\u0000":1}'],
    ['three levels down', '{"a":[{"b":{"c\\u0000":"\\u0000"}}]}'],
    ['as the byte itself', '{"a":"\0"}'],
  ])('%s is delivered as it was posted, and can be found, listed and replayed', async (where, raw) => {
    const path = `/nul-${where.replaceAll(' ', '-')}`;
    const { id, type } = await endpointAt(path);
    sink.script(path, { status: 404 }, { status: 200 });
    const delivery = await post(raw, type);
    const { delivery: dead } = await becomes(delivery, 'dead');

    const payload = await fleet.call('GET', `/v1/events/${dead.event_id}/payload`);
    expect(payload.text).toBe(raw);
    for (const list of [
      `/v1/dlq?endpoint_id=${id}&event_type=${type}`,
      `/v1/endpoints/${id}/deliveries?status=dead`,
      `/v1/events?type=${type}`,
    ]) {
      const page = await fleet.call('GET', list);
      expect([list, page.status, page.json.count]).toEqual([list, 200, 1]);
    }
    expect((await fleet.call('POST', `/v1/deliveries/${delivery}/replay`)).status).toBe(202);
    await becomes(delivery, 'succeeded');
    expect(sink.requests(path).map((request) => request.body.toString('utf8'))).toEqual([raw, raw]);
  });

  it('is refused where it would be a name, by the place where it stands', async () => {
    const refused = await Promise.all([
      fleet.call('POST', '/v1/endpoints', { body: { url: sink.url, description: 'a\0' } }),
      fleet.call('POST', '/v1/endpoints', { body: { url: sink.url, event_types: ['a\0'] } }),
      fleet.call('POST', '/v1/messages', {
        body: {
          kind: 'webhook',
          idempotencyKey: 'a\0',
          endpointId: crypto.randomUUID(),
          event: 'a',
          body: {},
        },
      }),
    ]);
    expect(refused.map(({ status, json }) => [status, json.errors?.[0]?.field])).toEqual([
      [400, 'description'],
      [400, 'event_types.0'],
      [400, 'idempotencyKey'],
    ]);
  });
});

describe('credentials in an URL (O-17)', { timeout: 30_000 }, () => {
  it('are refused with advice, and repeated nowhere', async () => {
    const { id } = await endpointAt('/plain');
    const url = 'https://user:p%40ss-word@sink.example.com/in';
    const answers = [
      await fleet.call('POST', '/v1/endpoints', { body: { url } }),
      await fleet.call('PATCH', `/v1/endpoints/${id}`, { body: { url } }),
      await fleet.call('GET', `/v1/endpoints/${id}`),
      await fleet.call('GET', '/metrics'),
    ];
    expect(answers.map((answer) => answer.status)).toEqual([422, 422, 200, 200]);
    expect(answers[0]?.json.detail).toMatch(/header/);
    const log = JSON.stringify(fleet.processes.map((process) => process.log()));
    for (const said of [...answers.map((answer) => answer.text), log])
      expect(said).not.toMatch(/p%40ss|p@ss/);
    const { rows } = await pool.query(`select from relay.audit_log where changes::text ~ 'p%40ss|p@ss'`);
    expect(rows).toEqual([]);
  });
});

describe('a stored header that no check has seen (O-18)', { timeout: 60_000 }, () => {
  it.each([
    ['a line end', 'a\r\nX-Added: 1'],
    ['a line feed', 'a\nX-Added: 1'],
    ['a NUL', 'a\0b'],
    ['an emoji', '😀'],
  ])(
    'with %s in its value ends its deliveries for a reason, is sent to nobody, and costs its neighbours nothing',
    async (what, value) => {
      const path = `/old-${what.replaceAll(' ', '-')}`;
      const [old, neighbour] = [await endpointAt(path), await endpointAt(`${path}-neighbour`)];
      sink.script(path, { status: 200 });
      sink.script(`${path}-neighbour`, { status: 200 });
      const keys = parseSecretKeys(fleet.env.RELAY_SECRET_KEYS!);
      const { headers, header_names } = headerColumns(keys, old.id, { 'X-Old': value });
      await pool.query(
        'update relay.endpoints set headers = $2, header_names = $3, version = version + 1 where id = $1',
        [old.id, headers, header_names],
      );
      const ids = await Promise.all(Array.from({ length: 5 }, () => post('{}', old.type)));
      const others = await Promise.all(Array.from({ length: 5 }, () => post('{}', neighbour.type)));
      for (const id of others) await becomes(id, 'succeeded');
      for (const id of ids) {
        const { delivery, attempts } = await becomes(id, 'dead');
        expect(attempts.length).toBeGreaterThan(0);
        expect(attempts.length).toBeLessThanOrEqual(3);
        expect(attempts.at(-1).error).toMatch(/header/i);
        expect(delivery.dead_reason).toMatch(/permanent_failure|attempts_exhausted|refused/);
      }
      expect(sink.requests(path)).toEqual([]);
      for (const process of fleet.processes) expect(process.alive()).toBe(true);
    },
  );
});
