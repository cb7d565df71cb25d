import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { z } from 'zod';
import { readEndpointConfigs } from '../../lib/store/endpoint-config.ts';
import { createPool } from '../../lib/store/pool.ts';
import { openSecret } from '../../lib/store/secret-box.ts';
import { type Answer, startTestApi, type TestApi } from '../testing/api.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { givenDead, givenDelivery, givenSucceeded } from '../testing/given-deliveries.ts';
import * as shapes from './routes/shapes.ts';

let database: TestDatabase;
let pool: pg.Pool;
let api: TestApi;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
  api = await startTestApi(database.url);
});
afterAll(async () => {
  await api.stop();
  await pool.end();
  await database.drop();
});

const URL_OF_SINK = 'https://sink.example.com/in';
const STANDARD_SECRET = `whsec_${Buffer.alloc(32, 7).toString('base64')}`;

const create = (body: object = {}) =>
  api.call('POST', '/v1/endpoints', { body: { url: URL_OF_SINK, ...body } });
const change = (id: string, body: object) => api.call('PATCH', `/v1/endpoints/${id}`, { body });

async function givenEndpoint(body: object = {}) {
  const made = await create(body);
  expect(made.status).toBe(201);
  return made.json;
}

/** An answer is what its documentation says: no field more, none less. */
function expectShape(shape: z.ZodType, answer: Answer): void {
  const parsed = shape.safeParse(answer.json);
  expect(parsed.error?.issues ?? []).toEqual([]);
}

const refusal = (answer: Answer) => ({
  status: answer.status,
  code: answer.json.code,
  fields: answer.json.errors?.map((error: { field: string }) => error.field),
});

async function openedSecrets(id: string) {
  const config = (await readEndpointConfigs(pool, [id])).get(id)!;
  const open = (sealed: Buffer | null) => sealed && openSecret(api.config.secretKeys, id, sealed);
  return [open(config.secret), open(config.previousSecret)];
}

describe('registering an endpoint', () => {
  it('answers every field, with the defaults and a new secret that is shown once', async () => {
    const answer = await create();
    expectShape(shapes.NewEndpointShape, answer);
    expect(answer.json).toMatchObject({
      url: URL_OF_SINK,
      event_types: [],
      description: '',
      enabled: true,
      signing_scheme: 'relay',
      rate_per_second: 10,
      burst: 20,
      max_in_flight: 8,
      retry_policy: null,
      timeouts: null,
      version: 1,
      secret: expect.stringMatching(/^whsec_[A-Za-z0-9+/]{43}=$/),
    });
    const { id, secret } = answer.json;
    expect(await openedSecrets(id)).toEqual([secret, null]);
    for (const path of [`/v1/endpoints/${id}`, '/v1/endpoints?limit=500']) {
      const shown = await api.call('GET', path);
      expect(shown.text).not.toContain(secret.slice(6));
      expect(shown.text).not.toContain('"secret"');
    }
  });

  it('takes every setting', async () => {
    const settings = {
      transport: 'http',
      event_types: ['order.*', 'user.made'],
      description: 'größer 🚀',
      signing_scheme: 'standard',
      secret: STANDARD_SECRET,
      rate_per_second: 0.5,
      burst: 1,
      max_in_flight: 1,
      retry_policy: { max_attempts: 3, cap_ms: 60_000 },
      timeouts: { request_ms: 5_000, connect_ms: 1_000 },
    };
    const answer = await create(settings);
    expect(answer.status).toBe(201);
    expect(answer.json).toMatchObject(settings);
    expect(await openedSecrets(answer.json.id)).toEqual([STANDARD_SECRET, null]);
  });

  it.each<[string, object, string]>([
    ['no url', { url: undefined }, 'url'],
    ['an empty url', { url: '' }, 'url'],
    ['a url that is no text', { url: 5 }, 'url'],
    ['an unknown field', { colour: 'red' }, 'colour'],
    ['an unknown field below', { retry_policy: { tries: 3 } }, 'retry_policy.tries'],
    ['a bad pattern', { event_types: ['ok', 'a b'] }, 'event_types.1'],
    ['a pattern with a star inside', { event_types: ['a.*.b'] }, 'event_types.0'],
    ['too many patterns', { event_types: Array.from({ length: 201 }, (_, n) => `t${n}`) }, 'event_types'],
    ['a NUL in the description', { description: 'a\0b' }, 'description'],
    ['half a surrogate', { description: 'a\ud800b' }, 'description'],
    ['a long description', { description: 'x'.repeat(1001) }, 'description'],
    ['an unknown scheme', { signing_scheme: 'md5' }, 'signing_scheme'],
    ['a short secret', { secret: 'short' }, 'secret'],
    [
      'a secret unfit for its scheme',
      { secret: 'long-enough-but-plain', signing_scheme: 'standard' },
      'secret',
    ],
    ['a rate of nothing', { rate_per_second: 0 }, 'rate_per_second'],
    ['a negative rate', { rate_per_second: -1 }, 'rate_per_second'],
    ['a rate in text', { rate_per_second: '10' }, 'rate_per_second'],
    ['a burst below one', { burst: 0.5 }, 'burst'],
    ['half a request in flight', { max_in_flight: 1.5 }, 'max_in_flight'],
    ['too many in flight', { max_in_flight: 10_001 }, 'max_in_flight'],
    ['no attempt', { retry_policy: { max_attempts: 0 } }, 'retry_policy.max_attempts'],
    ['a cap below the base', { retry_policy: { base_ms: 5_000, cap_ms: 1_000 } }, 'retry_policy.cap_ms'],
    ['a cap below the default base', { retry_policy: { cap_ms: 1_000 } }, 'retry_policy.cap_ms'],
    ['a retry policy in text', { retry_policy: 'often' }, 'retry_policy'],
    ['a timeout above the configured one', { timeouts: { request_ms: 10_001 } }, 'timeouts.request_ms'],
    ['an idle limit above the configured one', { timeouts: { idle_ms: 5_001 } }, 'timeouts.idle_ms'],
    ['another transport', { transport: 'carrier-pigeon' }, 'transport'],
  ])('refuses %s, naming the field', async (_, body, field) => {
    expect(refusal(await create(body))).toEqual({ status: 400, code: 'invalid_request', fields: [field] });
  });

  it('names everything that is wrong at once', async () => {
    const answer = await create({ burst: 0, max_in_flight: 0, nonsense: 1 });
    expect(refusal(answer).fields.sort()).toEqual(['burst', 'max_in_flight', 'nonsense']);
  });

  it.each([
    ['http://sink.example.com/in', /https/],
    ['https://sink.example.com:8443/in', /port 8443/],
    ['https://127.0.0.1/in', /not public/],
    ['https://[::ffff:a9fe:a9fe]/', /not public/],
    ['https://2130706433/', /not public/],
    ['https://localhost./', /local/],
    ['ftp://sink.example.com/', /https/],
    ['https://sink.example.com/#part', /fragment/],
    ['not a url', /parsed/],
    ['https://user:p%40ss@sink.example.com/in', /header/],
  ])('refuses to send to %s, with the rule and without the URL', async (url, rule) => {
    const existing = (await givenEndpoint()).id;
    for (const answer of [await create({ url }), await change(existing, { url })]) {
      expect(refusal(answer)).toEqual({ status: 422, code: 'endpoint_refused', fields: ['url'] });
      expect(answer.json.errors[0].rule).toMatch(rule);
      expect(answer.text).not.toMatch(/p%40ss|p@ss/);
    }
    expect((await api.call('GET', `/v1/endpoints/${existing}`)).json.version).toBe(1);
  });

  it('stores the URL as it will be dialled', async () => {
    expect((await givenEndpoint({ url: 'HTTPS://Sink.Example.com:443/a/../in' })).url).toBe(URL_OF_SINK);
  });

  it.each([
    ['broken JSON', '{"url":', 'application/json', 400],
    ['JSON that is not UTF-8', Buffer.from([0x22, 0xff, 0x22]), 'application/json', 400],
    ['a list', '[]', 'application/json', 400],
    ['null', 'null', 'application/json', 400],
    ['nothing', '', 'application/json', 400],
    ['a form', 'url=x', 'application/x-www-form-urlencoded', 415],
    ['200,000 brackets, within the size of a body', '['.repeat(60_000), 'application/json', 400],
    ['too much', `{"description":"${'x'.repeat(70_000)}"}`, 'application/json', 413],
  ])('refuses a body of %s', async (_, raw, type, status) => {
    const answer = await api.call('POST', '/v1/endpoints', { raw, headers: { 'content-type': type } });
    expect(answer.status).toBe(status);
    expectShape(shapes.ProblemShape, answer);
    expect(answer.headers.get('content-type')).toBe('application/problem+json');
  });
});

describe('changing an endpoint', () => {
  it('changes what is named and nothing else', async () => {
    const endpoint = await givenEndpoint({
      description: 'before',
      event_types: ['a.b'],
      timeouts: { idle_ms: 200 },
    });
    const answer = await change(endpoint.id, { description: 'after', timeouts: null });
    expectShape(shapes.EndpointShape, answer);
    const { secret: _, updated_at: __, ...rest } = endpoint;
    expect(answer.json).toMatchObject({ ...rest, description: 'after', timeouts: null, version: 2 });
  });

  it('of nothing is no change', async () => {
    const { id } = await givenEndpoint();
    const answer = await change(id, {});
    expect([answer.status, answer.json.version]).toEqual([200, 1]);
  });

  it('refuses unknown fields and those that nobody may set', async () => {
    const { id } = await givenEndpoint();
    for (const field of ['id', 'tenant_id', 'version', 'enabled', 'created_at', 'colour']) {
      expect(refusal(await change(id, { [field]: null })).fields).toEqual([field]);
    }
  });

  it('refuses a scheme that its secret cannot sign under', async () => {
    const { id } = await givenEndpoint({ secret: 'plain-old-secret' });
    expect(refusal(await change(id, { signing_scheme: 'standard' })).fields).toEqual(['signing_scheme']);
    const answer = await change(id, { signing_scheme: 'standard', secret: STANDARD_SECRET });
    expect([answer.status, answer.json.signing_scheme]).toEqual([200, 'standard']);
    expect(answer.text).not.toContain(STANDARD_SECRET);
  });

  it('answers 404 for what does not exist and 400 for what is no id', async () => {
    for (const [method, suffix] of [
      ['GET', ''],
      ['PATCH', ''],
      ['DELETE', ''],
      ['POST', '/enable'],
      ['POST', '/disable'],
      ['POST', '/rotate-secret'],
      ['GET', '/deliveries'],
    ] as const) {
      const options = method === 'PATCH' ? { body: { burst: 5 } } : {};
      const unknown = await api.call(method, `/v1/endpoints/${randomUUID()}${suffix}`, options);
      expect([unknown.status, unknown.json.code]).toEqual([404, 'endpoint_not_found']);
      const malformed = await api.call(method, `/v1/endpoints/42${suffix}`, options);
      expect(refusal(malformed)).toEqual({ status: 400, code: 'invalid_request', fields: ['id'] });
    }
  });
});

describe('enabling and disabling', () => {
  it('can be done twice, and says why an endpoint is disabled', async () => {
    const { id } = await givenEndpoint();
    const disabled = await api.call('POST', `/v1/endpoints/${id}/disable`);
    expectShape(shapes.EndpointShape, disabled);
    expect(disabled.json).toMatchObject({ enabled: false, disabled_reason: 'operator' });
    expect((await api.call('POST', `/v1/endpoints/${id}/disable`, { body: {} })).status).toBe(200);
    const enabled = await api.call('POST', `/v1/endpoints/${id}/enable`);
    expect(enabled.json).toMatchObject({ enabled: true, disabled_reason: null, disabled_at: null });
  });

  it('takes no fields', async () => {
    const { id } = await givenEndpoint();
    const answer = await api.call('POST', `/v1/endpoints/${id}/disable`, { body: { reason: 'x' } });
    expect(refusal(answer).fields).toEqual(['reason']);
  });
});

describe('rotating a secret', () => {
  it('shows the new one once, and until when the old one signs beside it', async () => {
    const endpoint = await givenEndpoint();
    const answer = await api.call('POST', `/v1/endpoints/${endpoint.id}/rotate-secret`);
    expectShape(shapes.RotationShape, answer);
    expect(answer.json.secret).not.toBe(endpoint.secret);
    expect(await openedSecrets(endpoint.id)).toEqual([answer.json.secret, endpoint.secret]);
    const overlapMs = Date.parse(answer.json.previous_secret_expires_at) - Date.now();
    expect(overlapMs).toBeGreaterThan(86_300_000);
    expect(overlapMs).toBeLessThan(86_500_000);
    const again = await api.call('POST', `/v1/endpoints/${endpoint.id}/rotate-secret`, {
      body: { secret: 'brought-along' },
    });
    expect(again.json.secret).toBe('brought-along');
    expect(await openedSecrets(endpoint.id)).toEqual(['brought-along', answer.json.secret]);
    const shown = await api.call('GET', `/v1/endpoints/${endpoint.id}`);
    expect(shown.json.previous_secret_expires_at).toBe(again.json.previous_secret_expires_at);
  });

  it('refuses a secret that cannot sign', async () => {
    const { id } = await givenEndpoint();
    const answer = await api.call('POST', `/v1/endpoints/${id}/rotate-secret`, { body: { secret: 'a b' } });
    expect(refusal(answer).fields).toEqual(['secret']);
  });
});

describe('lists', () => {
  it('of endpoints, keys and tenants go page by page to their end', async () => {
    const tenant = (await api.call('POST', '/v1/tenants', { body: { name: 'pages' } })).json.id;
    const headers = { 'relay-tenant-id': tenant };
    for (let n = 0; n < 3; n++) {
      await api.call('POST', '/v1/endpoints', { headers, body: { url: URL_OF_SINK } });
      await api.call('POST', '/v1/keys', { headers, body: { scopes: ['read'], name: `key ${n}` } });
    }
    for (const [path, shape] of [
      ['/v1/endpoints', shapes.EndpointShape],
      ['/v1/keys', shapes.KeyShape],
      ['/v1/tenants', shapes.TenantShape],
    ] as const) {
      const seen: string[] = [];
      let cursor: string | null = null;
      do {
        const page: Answer = await api.call('GET', `${path}?limit=2${cursor ? `&cursor=${cursor}` : ''}`, {
          headers,
        });
        expectShape(shapes.pageOf(shape), page);
        expect(page.json.count).toBe(page.json.items.length);
        seen.push(...page.json.items.map((item: { id: string }) => item.id));
        cursor = page.json.next_cursor;
      } while (cursor);
      expect(new Set(seen).size).toBe(seen.length);
      expect(seen.length).toBeGreaterThanOrEqual(path === '/v1/tenants' ? 2 : 3);
    }
  });

  it.each([
    ['/v1/endpoints?limit=ten', 'limit'],
    ['/v1/endpoints?limit=-1', 'limit'],
    ['/v1/endpoints?limit=1&limit=2', 'limit'],
    ['/v1/endpoints?cursor=nonsense', 'cursor'],
    ['/v1/endpoints?colour=red', 'colour'],
    ['/v1/tenants?cursor=', 'cursor'],
    ['/v1/dlq?reason=boredom', 'reason'],
    ['/v1/dlq?endpoint_id=1', 'endpoint_id'],
    ['/v1/dlq?event_type=a%20b', 'event_type'],
    ['/v1/dlq?event_type=a%00b', 'event_type'],
    ['/v1/dlq?from=yesterday', 'from'],
    ['/v1/dlq?to=2026-12-01', 'to'],
    ['/v1/dlq?from=2026-02-30T00:00:00Z', 'from'],
    [
      `/v1/dlq?cursor=${Buffer.from(`2026-02-30 10:00:00+00|${randomUUID()}`).toString('base64url')}`,
      'cursor',
    ],
    [`/v1/dlq?cursor=${Buffer.from(`2026-12-01 10:00:00+00|1`).toString('base64url')}`, 'cursor'],
  ])('refuse %s', async (path, field) => {
    expect(refusal(await api.call('GET', path))).toEqual({
      status: 400,
      code: 'invalid_request',
      fields: [field],
    });
  });

  it('draw a limit that is out of bounds to the nearest', async () => {
    await givenEndpoint();
    await givenEndpoint();
    expect((await api.call('GET', '/v1/endpoints?limit=0')).json.count).toBe(1);
    expect((await api.call('GET', '/v1/endpoints?limit=100000')).status).toBe(200);
  });
});

describe('events and deliveries', () => {
  it('are shown with their log', async () => {
    const { id: endpointId } = await givenEndpoint();
    const { eventId, deliveryId } = await givenDelivery(pool, { endpointId });
    const pending = await api.call('GET', `/v1/deliveries/${deliveryId}`);
    expectShape(shapes.DeliveryDetailShape, pending);
    expect(pending.json).toMatchObject({
      delivery: { id: deliveryId, status: 'pending', attempt: 0, event_type: 'order.paid' },
      attempts: [],
      attempts_truncated: false,
    });
    await givenSucceeded(pool, deliveryId);
    const done = await api.call('GET', `/v1/deliveries/${deliveryId}`);
    expectShape(shapes.DeliveryDetailShape, done);
    expect(done.json.delivery).toMatchObject({ status: 'succeeded', attempt: 1, last_http_status: 200 });
    expect(done.json.attempts).toMatchObject([{ seq: 1, outcome_class: 'success', response_snippet: 'ok' }]);
    const event = await api.call('GET', `/v1/events/${eventId}`);
    expectShape(shapes.EventDetailShape, event);
    expect(event.json.deliveries).toMatchObject([{ id: deliveryId, status: 'succeeded' }]);
    const history = await api.call('GET', `/v1/endpoints/${endpointId}/deliveries?status=succeeded`);
    expectShape(shapes.pageOf(shapes.DeliveryShape), history);
    expect(history.json).toMatchObject({ count: 1, next_cursor: null, items: [{ id: deliveryId }] });
  });

  it('of a deleted endpoint stay readable', async () => {
    const { id: endpointId } = await givenEndpoint();
    await givenDelivery(pool, { endpointId });
    await api.call('DELETE', `/v1/endpoints/${endpointId}`);
    expect((await api.call('GET', `/v1/endpoints/${endpointId}/deliveries`)).json.count).toBe(1);
  });

  it('are refused with the rule when a status or an id is wrong', async () => {
    const { id } = await givenEndpoint();
    expect(refusal(await api.call('GET', `/v1/endpoints/${id}/deliveries?status=lost`)).fields).toEqual([
      'status',
    ]);
    for (const path of ['/v1/deliveries/1', '/v1/events/1']) {
      expect(refusal(await api.call('GET', path)).fields).toEqual(['id']);
    }
    const unknown = await api.call('GET', `/v1/deliveries/${randomUUID()}`);
    expect([unknown.status, unknown.json.code]).toEqual([404, 'delivery_not_found']);
    const event = await api.call('GET', `/v1/events/${randomUUID()}`);
    expect([event.status, event.json.code]).toEqual([404, 'event_not_found']);
  });
});

describe('replay', () => {
  async function givenDeadDelivery(
    type = 'order.paid',
    reason: 'gone' | 'permanent_failure' = 'permanent_failure',
  ) {
    const { id: endpointId } = await givenEndpoint();
    const { deliveryId } = await givenDelivery(pool, { endpointId, type });
    await givenDead(pool, deliveryId, reason);
    return { endpointId, deliveryId };
  }

  it('of a dead delivery makes it pending again, under its id, with its history (case O-20)', async () => {
    const { deliveryId } = await givenDeadDelivery();
    const answer = await api.call('POST', `/v1/deliveries/${deliveryId}/replay`);
    expect(answer.status).toBe(202);
    expectShape(shapes.SingleReplayShape, answer);
    const after = await api.call('GET', `/v1/deliveries/${deliveryId}`);
    expect(after.json.delivery).toMatchObject({ status: 'pending', generation: 2, attempt: 0, sends: 1 });
    expect(after.json.attempts).toHaveLength(1);
    // It is owed now: its own attempt comes, and a second replay would not add to it.
    const again = await api.call('POST', `/v1/deliveries/${deliveryId}/replay`);
    expect([again.status, again.json.code]).toEqual([409, 'not_dead']);
    await givenDead(pool, deliveryId);
    expect((await api.call('POST', `/v1/deliveries/${deliveryId}/replay`)).status).toBe(202);
    const third = await api.call('GET', `/v1/deliveries/${deliveryId}`);
    expect(third.json.attempts.map((attempt: { seq: number }) => attempt.seq)).toEqual([1, 2]);
    expect(third.json.delivery.generation).toBe(3);
  });

  it('is refused for what is not dead, does not exist, or has nowhere to go', async () => {
    const { id: endpointId } = await givenEndpoint();
    const { deliveryId } = await givenDelivery(pool, { endpointId });
    const pending = await api.call('POST', `/v1/deliveries/${deliveryId}/replay`);
    expect([pending.status, pending.json.code]).toEqual([409, 'not_dead']);
    const unknown = await api.call('POST', `/v1/deliveries/${randomUUID()}/replay`);
    expect([unknown.status, unknown.json.code]).toEqual([404, 'delivery_not_found']);
    const dead = await givenDeadDelivery();
    await api.call('DELETE', `/v1/endpoints/${dead.endpointId}`);
    const nowhere = await api.call('POST', `/v1/deliveries/${dead.deliveryId}/replay`);
    expect([nowhere.status, nowhere.json.code]).toEqual([409, 'endpoint_deleted']);
  });

  it('in bulk takes what the filters name, from query and body, oldest first, up to the limit', async () => {
    const type = `t${randomUUID()}`;
    const dead = [
      await givenDeadDelivery(type),
      await givenDeadDelivery(type),
      await givenDeadDelivery(type, 'gone'),
    ];
    const ids = dead.map((one) => one.deliveryId);
    const listed = await api.call('GET', `/v1/dlq?event_type=${type}`);
    expectShape(shapes.pageOf(shapes.DeadLetterShape), listed);
    expect(listed.json.items.map((one: { delivery_id: string }) => one.delivery_id)).toEqual(
      ids.toReversed(),
    );

    const one = await api.call('POST', `/v1/dlq/replay?event_type=${type}&reason=permanent_failure&limit=1`);
    expect(one.status).toBe(202);
    expectShape(shapes.ReplayShape, one);
    expect(one.json).toEqual({ replayed: 1, skipped: 0, limit: 1, delivery_ids: [ids[0]] });

    await api.call('DELETE', `/v1/endpoints/${dead[1]!.endpointId}`);
    const rest = await api.call('POST', '/v1/dlq/replay', { body: { event_type: type } });
    expect(rest.json).toEqual({ replayed: 1, skipped: 1, limit: 100, delivery_ids: [ids[2]] });

    const none = await api.call('POST', '/v1/dlq/replay', { body: { event_type: 'nobody.has.it' } });
    expect(none.json).toMatchObject({ replayed: 0, skipped: 0 });
    const drawn = await api.call('POST', '/v1/dlq/replay', {
      body: { event_type: 'nobody.has.it', limit: 9_999 },
    });
    expect(drawn.json.limit).toBe(500);
  });

  it('in bulk refuses filters that it does not know', async () => {
    for (const [path, body, field] of [
      ['/v1/dlq/replay', { reason: 'boredom' }, 'reason'],
      ['/v1/dlq/replay', { limit: 'all' }, 'limit'],
      ['/v1/dlq/replay', { limit: 1.5 }, 'limit'],
      ['/v1/dlq/replay', { endpoint: randomUUID() }, 'endpoint'],
      ['/v1/dlq/replay?reason=boredom', {}, 'reason'],
    ] as const) {
      expect(refusal(await api.call('POST', path, { body })).fields).toEqual([field]);
    }
  });
});

describe('what is no route', () => {
  it.each([
    ['GET', '/', 404],
    ['GET', '/v1/nothing', 404],
    ['GET', '/V1/endpoints', 404],
    ['GET', '/v1/endpoints/', 404],
    ['POST', '/v1/events/', 404],
    ['DELETE', '/v1/events', 405],
    ['PUT', '/v1/endpoints', 405],
    ['OPTIONS', '/v1/endpoints', 405],
    ['DELETE', '/healthz', 405],
    ['GET', '/v1/endpoints/%zz', 400],
  ])('%s %s answers %i, as a problem', async (method, path, status) => {
    const answer = await api.call(method, path);
    expect(answer.status).toBe(status);
    expectShape(shapes.ProblemShape, answer);
    if (status === 405) expect(answer.headers.get('allow')).toMatch(/^[A-Z, ]+$/);
  });
});

describe('every answer', () => {
  it('carries the id of its request: the sender’s when it is sane, else a new one', async () => {
    for (const [method, path, raw] of [
      ['GET', '/v1/endpoints', undefined],
      ['POST', '/v1/events', '{"type":"x"}'],
      ['POST', '/v1/events', '{}'],
      ['GET', '/nothing', undefined],
    ] as const) {
      const options = raw === undefined ? {} : { raw };
      const own = await api.call(method, path, { ...options, headers: { 'x-request-id': 'req-1.a:b' } });
      expect(own.headers.get('x-request-id')).toBe('req-1.a:b');
      if (own.status >= 400) expect(own.json.request_id).toBe('req-1.a:b');
      for (const insane of ['a b', 'x'.repeat(129), '"quoted"']) {
        const other = await api.call(method, path, { ...options, headers: { 'x-request-id': insane } });
        expect(other.headers.get('x-request-id')).toMatch(/^[0-9a-f-]{36}$/);
      }
    }
  });
});
