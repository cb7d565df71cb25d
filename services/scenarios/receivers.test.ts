import { gzipSync } from 'node:zlib';
import { Webhook } from 'standardwebhooks';
import { Webhook as SvixWebhook } from 'svix';
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

beforeAll(async () => {
  [database, sink] = await Promise.all([createTestDatabase(), startScriptedSink()]);
  fleet = await startFleet({ databaseUrl: database.url, redisUrl: createTestRedis().url });
  await Promise.all([fleet.start('api'), fleet.start('dispatcher'), fleet.start('reconciler')]);
});
afterAll(async () => {
  await fleet.stop();
  await sink.close();
  await database.drop();
});

/** Retries at once, so that what is waited for in a test is only what a receiver asked for. */
const QUICK = { retry_policy: { max_attempts: 5, base_ms: 100, factor: 1, cap_ms: 1_000 } };
/** A retry that comes at least a second later, so that its timestamp must differ. */
const LATER = { status: 503, headers: { 'retry-after': '1' } };

async function endpointAt(path: string, settings: Record<string, unknown> = {}) {
  const type = `t.${path.slice(1)}`;
  const endpoint = await fleet.endpoint('', {
    url: sink.url + path,
    event_types: [type],
    ...QUICK,
    ...settings,
  });
  return { ...endpoint, type, path };
}

async function post(type: string, raw: string | Buffer): Promise<string> {
  const { status, json, text } = await fleet.call('POST', '/v1/events', {
    raw,
    headers: { 'relay-event-type': type, 'content-type': 'application/json' },
  });
  expect([status, text]).toEqual([202, expect.any(String)]);
  return json.delivery_ids[0];
}

/** A delivery as the API shows it, once it has come to `status`. */
async function becomes(id: string, status: string) {
  return eventually(async () => {
    const { json } = await fleet.call('GET', `/v1/deliveries/${id}`);
    expect(json.delivery.status).toBe(status);
    return json;
  }, 15_000);
}

const replay = (id: string) => fleet.call('POST', `/v1/deliveries/${id}/replay`);

const ODD_JSON =
  '{"b":1, "10":2,"2":3,\t"a":[12345678901234567890,1e21,1.0,-0,1e400,0.1000],\n"b":"twice","z":"\\u0000"}';

describe('the body of an event (O-13)', { timeout: 40_000 }, () => {
  it('is the posted bytes on a retry, on the attempt that fails for good and on a replay, and verifies each time', async () => {
    const endpoint = await endpointAt('/bytes');
    sink.script('/bytes', { status: 503 }, { status: 404 }, { status: 200 });
    const id = await post(endpoint.type, ODD_JSON);
    await becomes(id, 'dead');
    expect((await replay(id)).status).toBe(202);
    await becomes(id, 'succeeded');
    const requests = sink.requests('/bytes');
    expect(requests.map((request) => request.body.toString('utf8'))).toEqual([ODD_JSON, ODD_JSON, ODD_JSON]);
    for (const request of requests)
      expect(verdict(request, endpoint.secret)).toEqual({ ok: true, scheme: 'relay' });
  });

  it('may be no text at all', async () => {
    const endpoint = await endpointAt('/binary');
    sink.script('/binary', { status: 200 });
    const bytes = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte));
    await becomes(await post(endpoint.type, bytes), 'succeeded');
    expect(sink.requests('/binary')[0]?.body.equals(bytes)).toBe(true);
  });
});

/** The judgement of a receiver that knows the protocol from its documentation. */
function verdict(request: SunkRequest, secret: string) {
  return verifySignature(request.headers, request.body, {
    keys: [verificationKey(secret)],
    nowSeconds: Math.floor(request.atMs / 1000),
    toleranceSeconds: 300,
    headerPrefix: 'relay',
  });
}

describe('the attempts of one delivery (O-14)', { timeout: 40_000 }, () => {
  it('carry one id and each a fresh timestamp, on retries that a reconciler announced and on a replay', async () => {
    const endpoint = await endpointAt('/fresh');
    sink.script('/fresh', LATER, LATER, { status: 404 }, LATER, { status: 200 });
    const id = await post(endpoint.type, '{}');
    await becomes(id, 'dead');
    await replay(id);
    await becomes(id, 'succeeded');
    const requests = sink.requests('/fresh');
    expect(requests.map(({ headers }) => headers['relay-delivery-id'])).toEqual(Array(5).fill(id));
    expect(requests.map(({ headers }) => headers['relay-attempt'])).toEqual(['1', '2', '3', '4', '5']);
    for (const { headers, atMs } of requests) {
      expect(Math.abs(Number(headers['relay-timestamp']) * 1000 - atMs)).toBeLessThan(3_000);
    }
    const signatures = requests.map(({ headers }) => headers['relay-signature']);
    // The third may share its second with the second, and the fourth with the third; the pauses of a second may not.
    expect(new Set([signatures[0], signatures[1], signatures[2]]).size).toBe(3);
    expect(signatures[4]).not.toBe(signatures[3]);
  });
});

describe('a delivery under the standard scheme', { timeout: 40_000 }, () => {
  it('satisfies the official packages, and during a rotation those who know either secret', async () => {
    const endpoint = await endpointAt('/official', { signing_scheme: 'standard' });
    sink.script('/official', { status: 200 });
    await becomes(await post(endpoint.type, '{"n":1}'), 'succeeded');
    const rotated = await fleet.call('POST', `/v1/endpoints/${endpoint.id}/rotate-secret`);
    expect(rotated.status).toBe(200);
    const id = await post(endpoint.type, '{"n":2}');
    await becomes(id, 'succeeded');

    const [before, during] = sink.requests('/official');
    expect(officialPayload(before!, endpoint.secret)).toEqual([{ n: 1 }, { n: 1 }]);
    expect(officialPayload(during!, endpoint.secret)).toEqual([{ n: 2 }, { n: 2 }]);
    expect(officialPayload(during!, rotated.json.secret)).toEqual([{ n: 2 }, { n: 2 }]);
    expect(during?.headers['webhook-id']).toBe(id);
    expect(() => officialPayload(before!, rotated.json.secret)).toThrow('No matching signature');
    const tampered = { ...during!, body: Buffer.from('{"n":3}') };
    expect(() => officialPayload(tampered, endpoint.secret)).toThrow('No matching signature');
  });
});

function officialPayload({ body, headers }: SunkRequest, secret: string): unknown[] {
  return [new Webhook(secret), new SvixWebhook(secret)].map((webhook) => webhook.verify(body, headers));
}

const UNSTORABLE: Record<string, { headers: Record<string, string>; body: Buffer }> = {
  '/null-bytes': { headers: {}, body: Buffer.from([0x6f, 0x6b, 0x00, 0xff, 0xfe, 0x00, 0x80]) },
  '/gzip': { headers: {}, body: gzipSync('a body that says it is not compressed'.repeat(20)) },
  '/latin1': {
    headers: { 'content-type': 'text/plain; charset=latin1' },
    body: Buffer.from('r\xe9ponse', 'latin1'),
  },
  '/html': {
    headers: { 'content-type': 'application/json' },
    body: Buffer.from('<html>\ud83d not json</html>'),
  },
  '/empty': { headers: { 'content-type': 'application/json' }, body: Buffer.alloc(0) },
};

describe('an answer whose body cannot be stored as it is (O-10)', { timeout: 40_000 }, () => {
  it.each(Object.keys(UNSTORABLE))(
    '%s is a delivery all the same: sent once, and its log reads as JSON',
    async (path) => {
      const endpoint = await endpointAt(path);
      sink.script(path, { status: 200, ...UNSTORABLE[path] });
      const { attempts } = await becomes(await post(endpoint.type, '{}'), 'succeeded');
      expect(attempts).toMatchObject([{ seq: 1, http_status: 200, outcome_class: 'success' }]);
      expect(attempts[0].response_snippet ?? '').not.toContain('\0');
      expect(sink.requests(path).length).toBe(1);
    },
  );
});

describe('a replay by hand (O-20)', { timeout: 40_000 }, () => {
  it('sends each time it is asked to, numbers on without gap, and can fail and be asked for again', async () => {
    const endpoint = await endpointAt('/replayed');
    sink.script('/replayed', { status: 404 }, { status: 404 }, { status: 410 }, { status: 200 });
    const id = await post(endpoint.type, '{}');
    await becomes(id, 'dead');
    expect((await replay(id)).status).toBe(202);
    const failed = await becomes(id, 'dead');
    expect(failed.delivery).toMatchObject({ generation: 2, sends: 2, dead_reason: 'permanent_failure' });

    const bulk = await fleet.call('POST', '/v1/dlq/replay', { body: { endpoint_id: endpoint.id } });
    expect(bulk.json).toMatchObject({ replayed: 1, delivery_ids: [id] });
    expect((await becomes(id, 'dead')).delivery.dead_reason).toBe('gone');
    // 410 disables the endpoint too; a replay waits until somebody enables it.
    await eventually(async () => {
      expect((await fleet.call('GET', `/v1/endpoints/${endpoint.id}`)).json.enabled).toBe(false);
    });
    await fleet.call('POST', `/v1/endpoints/${endpoint.id}/enable`);
    expect((await replay(id)).status).toBe(202);
    const { delivery, attempts } = await becomes(id, 'succeeded');
    expect(delivery).toMatchObject({ generation: 4, sends: 4, attempt: 1 });
    expect(attempts.map(({ send_no }: { send_no: number }) => send_no)).toEqual([1, 2, 3, 4]);
    expect(sink.requests('/replayed').length).toBe(4);
  });

  it('is refused for what is still owed: the automatic retry is the one that sends', async () => {
    const endpoint = await endpointAt('/owed');
    sink.script('/owed', LATER, { status: 200 });
    const id = await post(endpoint.type, '{}');
    await eventually(() => expect(sink.requests('/owed').length).toBe(1));
    const refused = await replay(id);
    expect([refused.status, refused.json.code]).toEqual([409, 'not_dead']);
    await becomes(id, 'succeeded');
    expect((await replay(id)).status).toBe(409);
    expect(sink.requests('/owed').length).toBe(2);
  });
});
