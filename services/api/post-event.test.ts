import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { fanOutStep } from '../../lib/store/fan-outs.ts';
import { createPool } from '../../lib/store/pool.ts';
import { startTestApi, type TestApi } from '../testing/api.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';

let database: TestDatabase;
let api: TestApi;
let pool: pg.Pool;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
  api = await startTestApi(database.url, { RELAY_MAX_PAYLOAD_BYTES: '1048576' });
});
afterAll(async () => {
  await api.stop();
  await pool.end();
  await database.drop();
});

async function givenEndpoint(body: object = {}): Promise<string> {
  const made = await api.call('POST', '/v1/endpoints', {
    body: { url: 'https://sink.example.com/in', ...body },
  });
  expect(made.status).toBe(201);
  return made.json.id;
}

const post = (raw: string | Buffer, headers: Record<string, string> = {}) =>
  api.call('POST', '/v1/events', { raw, headers });

async function stored(eventId: string): Promise<{ type: string; content_type: string; payload: Buffer }> {
  const { rows } = await pool.query('select type, content_type, payload from relay.events where id = $1', [
    eventId,
  ]);
  return rows[0];
}

describe('a posted event', () => {
  it('is committed with a delivery for each endpoint that subscribes to its type', async () => {
    const type = `t${randomUUID()}`;
    const one = await givenEndpoint({ event_types: [`${type}.*`] });
    const two = await givenEndpoint({ event_types: [`${type}.made`] });
    await givenEndpoint({ event_types: [`${type}.gone`] });
    const answer = await post('{"a":1}', { 'relay-event-type': `${type}.made` });
    expect(answer.status).toBe(202);
    expect(answer.headers.get('relay-idempotent-replay')).toBeNull();
    expect(answer.json.delivery_ids).toHaveLength(2);
    const { rows } = await pool.query(
      'select endpoint_id, event_id from relay.deliveries where id = any($1)',
      [answer.json.delivery_ids],
    );
    expect(rows.map((row) => row.endpoint_id).sort()).toEqual([one, two].sort());
    expect(new Set(rows.map((row) => row.event_id))).toEqual(new Set([answer.json.event_id]));
  });

  it('is kept as the bytes that were posted', async () => {
    const odd = [
      '{ "type":"a.b", "b":12345678901234567890,"10":1e21, "2":1.0,"a":-0 ,"a":1e400, "c":0.1000 }\n',
      '{"type":"a.b","x":"\\u0000","\\u0000":{"y":{"z":"\\u0000"}}}',
      '\ufeff',
      '',
    ];
    for (const payload of [...odd.map((text) => Buffer.from(text)), Buffer.from([0, 255, 10, 13, 128])]) {
      const answer = await post(payload, { 'relay-event-type': 'bytes', 'content-type': 'text/x-odd; a=b' });
      expect(answer.status).toBe(202);
      expect(await stored(answer.json.event_id)).toEqual({
        type: 'bytes',
        content_type: 'text/x-odd; a=b',
        payload,
      });
    }
  });

  it('is sent without a content type as application/json', async () => {
    const response = await fetch(`${api.url}/v1/events`, {
      method: 'POST',
      headers: { authorization: 'Bearer relay_test-admin-key-0123456789', 'relay-event-type': 'x' },
      body: new Uint8Array([123, 125]),
    });
    const { event_id } = (await response.json()) as { event_id: string };
    expect((await stored(event_id)).content_type).toBe('application/json');
  });

  it('may be addressed to one endpoint, whatever that subscribes to', async () => {
    const target = await givenEndpoint({ event_types: ['nothing.like.it'] });
    const answer = await post('{}', { 'relay-event-type': 'x', 'relay-endpoint-id': target.toUpperCase() });
    expect(answer.status).toBe(202);
    expect(answer.json.delivery_ids).toHaveLength(1);
  });

  it('is refused when its target does not exist, is another tenant’s, is deleted or disabled', async () => {
    const tenant = (await api.call('POST', '/v1/tenants', { body: { name: 'other' } })).json.id;
    const foreign = await api.call('POST', '/v1/endpoints', {
      body: { url: 'https://sink.example.com/in' },
      headers: { 'relay-tenant-id': tenant },
    });
    const deleted = await givenEndpoint();
    await api.call('DELETE', `/v1/endpoints/${deleted}`);
    for (const target of [randomUUID(), foreign.json.id, deleted]) {
      const answer = await post('{}', { 'relay-event-type': 'x', 'relay-endpoint-id': target });
      expect([answer.status, answer.json.code]).toEqual([404, 'endpoint_not_found']);
    }
    const disabled = await givenEndpoint();
    await api.call('POST', `/v1/endpoints/${disabled}/disable`);
    const answer = await post('{}', { 'relay-event-type': 'x', 'relay-endpoint-id': disabled });
    expect([answer.status, answer.json.code]).toEqual([409, 'endpoint_disabled']);
  });
});

describe('the type of a posted event', () => {
  it('is that of the header, else the top-level string `type` of a JSON body', async () => {
    const cases: [string, string | null, string][] = [
      ['{"type":"from.body"}', null, 'from.body'],
      ['{"type":"from.body"}', 'from.header', 'from.header'],
      ['{"type":"from.body"}', '', 'from.body'],
      ['not json at all', 'from.header', 'from.header'],
      ['{"__proto__":{"type":"no"},"type":"own"}', null, 'own'],
    ];
    for (const [body, header, type] of cases) {
      const answer = await post(body, header === null ? {} : { 'relay-event-type': header });
      expect(answer.status).toBe(202);
      expect((await stored(answer.json.event_id)).type).toBe(type);
    }
  });

  it.each([
    ['no type', '{"kind":"x"}', null, 'type'],
    ['a type that is inherited only', '{"__proto__":{"type":"x"}}', null, 'type'],
    ['a type below the top', '{"a":{"type":"x"}}', null, 'type'],
    ['a type that is a number', '{"type":1}', null, 'type'],
    ['an array', '[{"type":"x"}]', null, 'type'],
    ['null', 'null', null, 'type'],
    ['no JSON', '{"type":"x"', null, 'type'],
    ['an empty body', '', null, 'type'],
    ['a control character', '{"type":"a\\u0000b"}', null, 'type'],
    ['a line break', '{"type":"a\\nb"}', null, 'type'],
    ['a space', '{"type":"a b"}', null, 'type'],
    ['129 characters', JSON.stringify({ type: 'x'.repeat(129) }), null, 'type'],
    ['a bad header', '{"type":"x"}', 'a b', 'relay-event-type'],
    ['a long header', '{"type":"x"}', 'x'.repeat(129), 'relay-event-type'],
  ])('is refused with the field and its rule: %s', async (_, body, header, field) => {
    const answer = await post(body, header === null ? {} : { 'relay-event-type': header });
    expect([answer.status, answer.json.code, answer.json.errors[0].field]).toEqual([
      400,
      'invalid_request',
      field,
    ]);
    expect(answer.json.errors[0].rule).not.toBe('');
  });

  it('is found in bodies nested as deep as the size allows, and a deep one without it is a 400', async () => {
    for (const depth of [5_000, 20_000, 200_000]) {
      const deep = '['.repeat(depth) + ']'.repeat(depth);
      const accepted = await post(`{"x":${deep},"type":"deep"}`);
      expect(accepted.status).toBe(202);
      expect((await stored(accepted.json.event_id)).payload.length).toBe(2 * depth + 20);
      expect((await post(deep)).status).toBe(400);
      expect((await post('['.repeat(depth))).status).toBe(400);
    }
  });
});

describe('headers of a posted event', () => {
  it.each([
    ['idempotency-key', 'with a space', 'has space'],
    ['idempotency-key', 'too long', 'x'.repeat(256)],
    ['relay-endpoint-id', 'no uuid', 'not-a-uuid'],
    ['relay-tenant-id', 'no uuid', 'not-a-uuid'],
    ['content-type', 'too long', 'x'.repeat(256)],
    ['content-type', 'not ASCII', 'text/\u00e9'],
    ['relay-deliver-at', 'no moment', 'tomorrow'],
    ['relay-deliver-at', 'without a zone', '2026-12-01T12:00:00'],
    ['relay-deliver-at', 'over a year ahead', new Date(Date.now() + 367 * 86_400_000).toISOString()],
    ['relay-expires-at', 'no moment', ''],
    ['relay-expires-at', 'in the past', new Date(Date.now() - 60_000).toISOString()],
  ])('%s %s is a 400 that names it', async (name, _, value) => {
    const answer = await post('{"type":"x"}', { [name]: value });
    expect(answer.status).toBe(400);
    expect(answer.json.errors).toEqual([{ field: name, rule: expect.stringMatching(/./) }]);
  });

  it('refuse an encoded body, which would be sent on as what it is not', async () => {
    const answer = await post(Buffer.from([1]), { 'content-encoding': 'gzip', 'relay-event-type': 'x' });
    expect([answer.status, answer.json.code]).toEqual([415, 'unsupported_media_type']);
  });

  it('take no query parameters', async () => {
    const answer = await api.call('POST', '/v1/events?type=x', { raw: '{"type":"x"}' });
    expect([answer.status, answer.json.errors[0].field]).toEqual([400, 'query']);
  });
});

describe('the times of a posted event', () => {
  const at = (ms: number) => new Date(Date.now() + ms).toISOString();
  const timed = (headers: Record<string, string>) => post('{}', { 'relay-event-type': 'timed', ...headers });

  async function queued(eventId: string): Promise<{ due_in: number; expires_at: Date | null }> {
    const { rows } = await pool.query(
      `select date_part('epoch', due_at - now()) * 1000 as due_in, expires_at from relay.queue where event_id = $1`,
      [eventId],
    );
    return rows[0];
  }

  it('put it off and give it an end, which the event, its deliveries and their explanation show', async () => {
    await givenEndpoint({ event_types: ['timed'] });
    const [deliverAt, expiresAt] = [at(600_000), at(1_200_000)];
    const answer = await timed({ 'relay-deliver-at': deliverAt, 'relay-expires-at': expiresAt });
    expect(answer.status).toBe(202);
    const event = (await api.call('GET', `/v1/events/${answer.json.event_id}`)).json.event;
    expect([event.deliver_at, event.expires_at]).toEqual([deliverAt, expiresAt]);
    const [deliveryId] = answer.json.delivery_ids;
    const { json: explained } = await api.call('GET', `/v1/deliveries/${deliveryId}/explain`);
    expect(explained.gate.reason).toBe('scheduled');
    expect(explained.next_attempt_at).toBe(deliverAt);
    expect(explained.queue.expires_at).toBe(expiresAt);
  });

  it('are read with any offset; a moment that has passed means at once', async () => {
    const { json } = await timed({ 'relay-deliver-at': '2020-02-29T23:00:00.5+05:30' });
    expect((await queued(json.event_id)).due_in).toBeLessThanOrEqual(0);
    const event = (await api.call('GET', `/v1/events/${json.event_id}`)).json.event;
    expect(event.deliver_at).toBe('2020-02-29T17:30:00.500Z');
  });

  it('must leave a moment between them', async () => {
    const answer = await timed({ 'relay-deliver-at': at(60_000), 'relay-expires-at': at(59_000) });
    expect([answer.status, answer.json.errors[0].field]).toEqual([400, 'relay-expires-at']);
  });

  it('are part of a request under an idempotency key', async () => {
    const expires = at(600_000);
    const key = { 'idempotency-key': randomUUID() };
    const first = await timed({ ...key, 'relay-expires-at': expires });
    const again = await timed({ ...key, 'relay-expires-at': expires });
    expect(again.text).toBe(first.text);
    for (const headers of [{}, { 'relay-expires-at': at(900_000) }, { 'relay-deliver-at': expires }]) {
      const other = await timed({ ...key, ...headers });
      expect([other.status, other.json.code]).toEqual([409, 'idempotency_conflict']);
    }
  });

  it('that have come to their end do not keep a repeated request from its answer', async () => {
    const headers = { 'idempotency-key': randomUUID(), 'relay-expires-at': at(1_500) };
    const first = await timed(headers);
    expect(first.status).toBe(202);
    await eventually(async () => {
      const late = await timed({ 'relay-expires-at': headers['relay-expires-at'] });
      expect(late.status).toBe(400);
    });
    expect((await timed(headers)).text).toBe(first.text);
  });
});

describe('an event that matches very many endpoints', () => {
  it('is answered with its first deliveries and the number of all, with the same bytes each time', async () => {
    const tenant = (await api.call('POST', '/v1/tenants', { body: { name: 'wide' } })).json.id;
    await pool.query(
      `with made as (
         insert into relay.endpoints (tenant_id, url, secret)
         select $1, 'https://sink.example.com/in', '\\x00' from generate_series(1, 1003) returning id
       )
       insert into relay.subscriptions (tenant_id, pattern, endpoint_id) select $1, '*', id from made`,
      [tenant],
    );
    const headers = {
      'relay-tenant-id': tenant,
      'relay-event-type': 'wide',
      'idempotency-key': randomUUID(),
    };
    const first = await post('{}', headers);
    expect(first.status).toBe(202);
    expect(first.json.delivery_ids).toHaveLength(1_000);
    expect(first.json.fan_out).toEqual({ state: 'continues', matched: 1_003 });
    const client = await pool.connect();
    while (await fanOutStep(client, first.json.event_id, 2));
    client.release();
    const again = await post('{}', headers);
    expect(again.text).toBe(first.text);
    const { rows } = await pool.query('select count(*)::int as n from relay.deliveries where event_id = $1', [
      first.json.event_id,
    ]);
    expect(rows[0].n).toBe(1_003);
  });
});

describe('an idempotency key', () => {
  it('gets the same bytes again for the same request, and a 409 for another', async () => {
    const endpoint = await givenEndpoint();
    const key = randomUUID();
    const headers = { 'idempotency-key': key, 'relay-event-type': 'once' };
    const first = await post('{"n":1}', headers);
    const again = await post('{"n":1}', headers);
    expect([first.status, again.status]).toEqual([202, 202]);
    expect(again.text).toBe(first.text);
    expect(first.headers.get('relay-idempotent-replay')).toBe('false');
    expect(again.headers.get('relay-idempotent-replay')).toBe('true');
    const others: [string, Record<string, string>][] = [
      ['{"n":2}', headers],
      ['{"n":1}', { ...headers, 'relay-event-type': 'other' }],
      ['{"n":1}', { ...headers, 'relay-endpoint-id': endpoint }],
    ];
    for (const [body, changed] of others) {
      const other = await post(body, changed);
      expect([other.status, other.json.code]).toEqual([409, 'idempotency_conflict']);
    }
  });

  it('makes one event of a hundred requests at once, with equal bodies and no 5xx', async () => {
    const headers = { 'idempotency-key': randomUUID(), 'relay-event-type': 'once' };
    const answers = await Promise.all(Array.from({ length: 100 }, () => post('{"n":1}', headers)));
    expect(new Set(answers.map((answer) => answer.status))).toEqual(new Set([202]));
    expect(new Set(answers.map((answer) => answer.text)).size).toBe(1);
    expect(
      answers.filter((answer) => answer.headers.get('relay-idempotent-replay') === 'false'),
    ).toHaveLength(1);
  });

  it('is one over several APIs: one event for each key, no 5xx (case O-19)', async () => {
    const others = await Promise.all([startTestApi(database.url), startTestApi(database.url)]);
    try {
      const apis = [api, ...others];
      const endpoint = await givenEndpoint({ event_types: ['only.o19'] });
      const keys = Array.from({ length: 20 }, () => randomUUID());
      const answers = await Promise.all(
        keys.flatMap((key) =>
          Array.from({ length: 15 }, async (_, n) => {
            const answer = await apis[n % 3]!.call('POST', '/v1/events', {
              raw: '{"type":"only.o19"}',
              headers: { 'idempotency-key': key },
            });
            return { key, answer };
          }),
        ),
      );
      for (const key of keys) {
        const own = answers.filter((one) => one.key === key).map((one) => one.answer);
        const accepted = own.filter((answer) => answer.status === 202);
        expect(accepted.length).toBeGreaterThan(0);
        expect(new Set(accepted.map((answer) => answer.text)).size).toBe(1);
        expect(own.filter((answer) => answer.status !== 202).map((answer) => answer.json.code)).toEqual(
          own.filter((answer) => answer.status !== 202).map(() => 'idempotency_in_progress'),
        );
      }
      const { rows } = await pool.query(
        'select count(*)::int as n from relay.deliveries where endpoint_id = $1',
        [endpoint],
      );
      expect(rows[0].n).toBe(keys.length);
    } finally {
      await Promise.all(others.map((other) => other.stop()));
    }
  });
});
