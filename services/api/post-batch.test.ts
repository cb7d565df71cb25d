import { randomUUID } from 'node:crypto';
import fc from 'fast-check';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createPool } from '../../lib/store/pool.ts';
import { ADMIN_KEY, startTestApi, type TestApi } from '../testing/api.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { RawClient } from '../testing/raw-http.ts';
import { BatchShape } from './routes/posting.ts';

const JSON_ARRAY = 'application/json';
const NDJSON = 'application/x-ndjson';
let database: TestDatabase;
let api: TestApi;
let pool: pg.Pool;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 3, applicationName: 'test' });
  api = await startTestApi(database.url);
});
afterAll(async () => {
  await api.stop();
  await pool.end();
  await database.drop();
});

const post = (raw: string | Buffer, type = JSON_ARRAY, headers: Record<string, string> = {}) =>
  api.call('POST', '/v1/events/batch', { raw, headers: { 'content-type': type, ...headers } });
const postAll = (items: readonly unknown[]) => post(JSON.stringify(items));

async function stored(ids: readonly string[]) {
  const { rows } = await pool.query<{ id: string; type: string; content_type: string; payload: Buffer }>(
    'select id, type, content_type, payload from relay.events where id = any($1)',
    [ids],
  );
  const byId = new Map(rows.map((row) => [row.id, row]));
  return ids.map((id) => byId.get(id)!);
}

async function countEvents(): Promise<number> {
  return (await pool.query('select count(*)::int as n from relay.events')).rows[0].n;
}

async function givenEndpoint(body: object = {}, headers: Record<string, string> = {}): Promise<string> {
  const made = await api.call('POST', '/v1/endpoints', {
    body: { url: 'https://sink.example.com/in', event_types: ['nothing'], ...body },
    headers,
  });
  expect(made.status).toBe(201);
  return made.json.id;
}

const event = (changes: object = {}) => ({ type: 'a.b', payload: { n: 1 }, ...changes });
const times = <T>(count: number, make: (n: number) => T) => Array.from({ length: count }, (_, n) => make(n));

/** Payloads that no program prints as they stand here. */
const ODD = [
  '{ "b":12345678901234567890,"10":1e21, "2":1.0,"a":-0 ,"a":1e400, "c":0.1000 }',
  '{"x":"\\u0000","\\u0000":{"y":{"z":"\\u0000"}}}',
  '{"half":"\\ud83d","é":"😀 \u2028"}',
  '"text"',
  '-0',
  'null',
  '[ ]',
];

describe('a batch', () => {
  it('is committed whole, each payload as the bytes that were posted, in either form', async () => {
    const items = ODD.map((payload, n) => ` {"type":"odd.${n}", "payload" :\t${payload}  }`);
    for (const [body, type] of [
      [`[${items.join('\r\n,')}]`, JSON_ARRAY],
      [`${items.join('\n')}`, NDJSON],
      [`\n${items.join('\r\n\r\n')}\r\n \n`, 'Application/NDJSON; charset=utf-8'],
      [`\ufeff[${items.join(',')}]\n`, 'application/json; charset=utf-8'],
    ] as const) {
      const answer = await post(body, type);
      expect([answer.status, answer.json.accepted]).toEqual([202, ODD.length]);
      expect(BatchShape.safeParse(answer.json).error).toBeUndefined();
      const rows = await stored(answer.json.results.map((result: { event_id: string }) => result.event_id));
      expect(rows.map((row) => [row.type, row.content_type, row.payload.toString()])).toEqual(
        ODD.map((payload, n) => [`odd.${n}`, 'application/json', payload]),
      );
    }
  });

  it('of a thousand is one commit, and answered in order', async () => {
    const type = `thousand.${randomUUID()}`;
    const answer = await post(
      times(1_000, (n) => JSON.stringify(event({ type, payload: n }))).join('\n'),
      NDJSON,
    );
    expect([answer.status, answer.json.accepted]).toEqual([202, 1_000]);
    const rows = await stored(answer.json.results.map((result: { event_id: string }) => result.event_id));
    expect(rows.map((row) => row.payload.toString())).toEqual(times(1_000, String));
    const { rows: commits } = await pool.query(
      'select count(distinct xmin::text)::int as n from relay.events where type = $1',
      [type],
    );
    expect(commits).toEqual([{ n: 1 }]);
  });

  it('is fanned out and addressed like single events', async () => {
    const type = `fan.${randomUUID()}`;
    await givenEndpoint({ event_types: [type] });
    await givenEndpoint({ event_types: [type] });
    const target = await givenEndpoint();
    const answer = await postAll([event({ type }), event({ type: 'x', endpoint_id: target.toUpperCase() })]);
    expect(
      answer.json.results.map((result: { delivery_ids: string[] }) => result.delivery_ids.length),
    ).toEqual([2, 1]);
    const [id] = answer.json.results[1].delivery_ids;
    const { rows } = await pool.query('select endpoint_id from relay.deliveries where id = $1', [id]);
    expect(rows).toEqual([{ endpoint_id: target }]);
  });

  it('takes bytes that are no JSON as base64, and a content type of their own', async () => {
    const bytes = Buffer.from([0, 255, 10, 13, 128]);
    const answer = await postAll([
      { type: 'x', payload_base64: bytes.toString('base64'), content_type: 'application/octet-stream' },
      { type: 'x', payload_base64: '', content_type: 'text/plain' },
      { type: 'x', payload: [1], content_type: 'application/cloudevents+json' },
    ]);
    expect(answer.status).toBe(202);
    const rows = await stored(answer.json.results.map((result: { event_id: string }) => result.event_id));
    expect(rows.map((row) => [row.content_type, row.payload.toString('hex')])).toEqual([
      ['application/octet-stream', '00ff0a0d80'],
      ['text/plain', ''],
      ['application/cloudevents+json', Buffer.from('[1]').toString('hex')],
    ]);
  });

  it('may be put off, and given an end, event by event', async () => {
    const later = new Date(Date.now() + 3_600_000).toISOString();
    const end = new Date(Date.now() + 7_200_000).toISOString();
    const answer = await postAll([
      event({ deliver_at: later, expires_at: end }),
      event({ deliver_at: end, expires_at: later }),
      event({ expires_at: '2026-01-01T00:00:00Z' }),
      event({ deliver_at: '2999-01-01T00:00:00Z' }),
      event({ deliver_at: '2026-02-30T00:00:00Z' }),
    ]);
    expect(answer.json.results.map((result: { field?: string }) => result.field)).toEqual([
      undefined,
      'expires_at',
      'expires_at',
      'deliver_at',
      'deliver_at',
    ]);
    const { rows } = await pool.query('select deliver_at, expires_at from relay.events where id = $1', [
      answer.json.results[0].event_id,
    ]);
    expect(rows).toEqual([{ deliver_at: new Date(later), expires_at: new Date(end) }]);
  });

  it('keeps any JSON as it was printed, whatever else stands beside it', async () => {
    const given = fc.array(fc.record({ payload: fc.jsonValue(), indent: fc.nat(3), lines: fc.boolean() }), {
      minLength: 1,
      maxLength: 20,
    });
    await fc.assert(
      fc.asyncProperty(given, async (payloads) => {
        const printed = payloads.map(({ payload, indent }) => JSON.stringify(payload, null, indent));
        const answer = await post(`[${printed.map((text) => `{"payload":${text},"type":"any"}`)}]`);
        expect(answer.status).toBe(202);
        const rows = await stored(answer.json.results.map((result: { event_id: string }) => result.event_id));
        expect(rows.map((row) => row.payload.toString())).toEqual(printed);
      }),
      { numRuns: 15 },
    );
  });
});

describe('an event of a batch that breaks a rule', () => {
  const bad: [string, unknown, string][] = [
    ['no object', 7, 'item'],
    ['an empty object', {}, 'type'],
    ['no payload', { type: 'x' }, 'payload'],
    ['two payloads', { type: 'x', payload: 1, payload_base64: 'AA==', content_type: 'a/b' }, 'payload'],
    ['a bad type', event({ type: 'a b' }), 'type'],
    ['a type that is a number', event({ type: 1 }), 'type'],
    ['a reserved type', event({ type: '~endpoint.disabled' }), 'type'],
    ['a key with a space', event({ idempotency_key: 'a b' }), 'idempotency_key'],
    ['a key that is a number', event({ idempotency_key: 1 }), 'idempotency_key'],
    ['half a character in its key', event({ idempotency_key: '\ud83d' }), 'idempotency_key'],
    ['U+0000 in its key', event({ idempotency_key: 'a\0b' }), 'idempotency_key'],
    ['a target that is no uuid', event({ endpoint_id: 'x' }), 'endpoint_id'],
    ['base64 without a content type', { type: 'x', payload_base64: 'AA==' }, 'content_type'],
    ['base64 that is none', { type: 'x', payload_base64: 'A', content_type: 'a/b' }, 'payload_base64'],
    ['base64 that is sloppy', { type: 'x', payload_base64: 'AB==', content_type: 'a/b' }, 'payload_base64'],
    ['a content type with a line break', event({ content_type: 'a/b\r\nx: y' }), 'content_type'],
    ['a moment without a zone', event({ deliver_at: '2026-12-01T12:00:00' }), 'deliver_at'],
    ['a field that there is not', event({ Payload: 1 }), 'Payload'],
    ['a kind that there is not', event({ kind: 'sms' }), 'kind'],
  ];

  it.each([JSON_ARRAY, NDJSON])('fails alone, naming what is wrong: %s', async (type) => {
    const items = bad.flatMap(([, item]) => [item, event()]).map((item) => JSON.stringify(item));
    const answer = await post(type === NDJSON ? items.join('\n') : `[${items.join(',')}]`, type);
    expect([answer.status, answer.json.accepted]).toEqual([207, bad.length]);
    expect(BatchShape.safeParse(answer.json).error).toBeUndefined();
    const seen = answer.json.results.map((result: { status: number; code?: string; field?: string }) =>
      result.status === 202 ? 202 : [result.status, result.code, result.field],
    );
    expect(seen).toEqual(bad.flatMap(([, , field]) => [[400, 'invalid_request', field], 202]));
  });

  it('fails alone when a name stands twice, however it is spelt, or means something to a program', async () => {
    const items = [
      '{"type":"x","payload":1,"type":"y"}',
      '{"type":"x","payload":1,"\\u0074ype":"y"}',
      '{"type":"x","payload":1,"__proto__":{"a":1}}',
      '{"t\\u0079pe":"x","payload":1}',
      '{"type":"x","payload":{"a":1,"a":2,"__proto__":3}}',
    ];
    const answer = await post(`[${items.join(',')}]`);
    expect(answer.json.results.map((result: { field?: string }) => result.field)).toEqual([
      'type',
      'type',
      '__proto__',
      undefined,
      undefined,
    ]);
  });

  it('fails alone when it is too large, or not in UTF-8', async () => {
    const limit = api.config.maxPayloadBytes;
    const fits = `"${'x'.repeat(limit - 2)}"`;
    const body = Buffer.concat([
      Buffer.from(
        `[{"type":"x","payload":${fits}},{"type":"x","payload":${fits.replace('x', 'xx')}},{"type":"x","payload":"`,
      ),
      Buffer.from([0xff]),
      Buffer.from('"},{"type":"x","payload":"\xc3\xa9"}]', 'latin1'),
    ]);
    const answer = await post(body);
    expect(
      answer.json.results.map(({ code, field }: { code?: string; field?: string }) => [code, field]),
    ).toEqual([
      [undefined, undefined],
      ['payload_too_large', 'payload'],
      ['invalid_request', 'item'],
      [undefined, undefined],
    ]);
  });

  it('fails alone when it is nested deeper than it may be long, and is kept when it is not (case O-26)', async () => {
    const deep = (depth: number) => `{"type":"deep","payload":${'['.repeat(depth)}${']'.repeat(depth)}}`;
    for (const [open, close, type] of [
      ['[', ']', JSON_ARRAY],
      ['', '', NDJSON],
    ] as const) {
      const items = [deep(200_000), deep(100_000), JSON.stringify(event())];
      const answer = await post(`${open}${items.join(type === NDJSON ? '\n' : ',')}${close}`, type);
      expect(answer.json.results.map((result: { status: number }) => result.status)).toEqual([413, 202, 202]);
      const [row] = await stored([answer.json.results[1].event_id]);
      expect(row!.payload.length).toBe(200_000);
    }
  });

  it('fails alone when its target is not there, another tenant’s, deleted or disabled', async () => {
    const tenant = (await api.call('POST', '/v1/tenants', { body: { name: 'other' } })).json.id;
    const [foreign, deleted, disabled, good] = await Promise.all([
      givenEndpoint({}, { 'relay-tenant-id': tenant }),
      givenEndpoint(),
      givenEndpoint(),
      givenEndpoint(),
    ]);
    await api.call('DELETE', `/v1/endpoints/${deleted}`);
    await api.call('POST', `/v1/endpoints/${disabled}/disable`);
    const targets = [randomUUID(), foreign, deleted, disabled, good];
    const answer = await postAll(targets.map((endpoint_id) => event({ endpoint_id })));
    expect(answer.status).toBe(207);
    expect(
      answer.json.results.map(({ status, code }: { status: number; code?: string }) => [status, code]),
    ).toEqual([
      [404, 'endpoint_not_found'],
      [404, 'endpoint_not_found'],
      [404, 'endpoint_not_found'],
      [409, 'endpoint_disabled'],
      [202, undefined],
    ]);
    expect(answer.json.results[0].detail).toBe(answer.json.results[1].detail);
  });

  it('of NDJSON may even be no JSON', async () => {
    const lines = [
      '{"type":"x","payload":1}',
      '{"type":"x","payload":',
      'x',
      '{"type":"x","payload":2},',
      '[]',
    ];
    const answer = await post([...lines, '{"type":"x","payload":3}'].join('\n'), NDJSON);
    expect(answer.json.results.map((result: { status: number }) => result.status)).toEqual([
      202, 400, 400, 400, 400, 202,
    ]);
  });
});

describe('a body that is no batch', () => {
  it.each([
    ['is no JSON', '[{"type":"x","payload":1},{]', JSON_ARRAY, 400, 'invalid_request'],
    ['ends too soon', '[{"type":"x","payload":1}', JSON_ARRAY, 400, 'invalid_request'],
    ['ends with a comma', '[{"type":"x","payload":1},]', JSON_ARRAY, 400, 'invalid_request'],
    ['is an object', '{"type":"x","payload":1}', JSON_ARRAY, 400, 'invalid_request'],
    [
      'is NDJSON by another name',
      '{"type":"x","payload":1}\n{"type":"x","payload":1}',
      JSON_ARRAY,
      400,
      'invalid_request',
    ],
    ['is empty', '', JSON_ARRAY, 400, 'invalid_request'],
    ['is an empty array', '[]', JSON_ARRAY, 400, 'invalid_request'],
    ['has only empty lines', '\n \r\n', NDJSON, 400, 'invalid_request'],
    ['is 200,000 brackets', '['.repeat(200_000), JSON_ARRAY, 400, 'invalid_request'],
    ['is of another type', '[{"type":"x","payload":1}]', 'text/plain', 415, 'unsupported_media_type'],
    [
      'holds 1,001 events',
      `[${times(1_001, () => '{"type":"x","payload":1}')}]`,
      JSON_ARRAY,
      413,
      'payload_too_large',
    ],
    [
      'has 1,001 lines',
      times(1_001, () => '{"type":"x","payload":1}\n').join(''),
      NDJSON,
      413,
      'payload_too_large',
    ],
    ['is larger than 8 MiB', `[${' '.repeat(8 * 1024 * 1024)}]`, JSON_ARRAY, 413, 'payload_too_large'],
  ])('stores nothing when it %s', async (_, body, type, status, code) => {
    const before = await countEvents();
    const answer = await post(body, type);
    expect([answer.status, answer.json.code, answer.headers.get('content-type')]).toEqual([
      status,
      code,
      'application/problem+json',
    ]);
    expect(await countEvents()).toBe(before);
  });

  it('is refused for headers that say something of one event', async () => {
    for (const name of ['relay-event-type', 'idempotency-key', 'relay-endpoint-id', 'relay-deliver-at']) {
      const answer = await post('[{"type":"x","payload":1}]', JSON_ARRAY, { [name]: 'x' });
      expect([answer.status, answer.json.errors[0].field]).toEqual([400, name]);
    }
    const packed = await post('[]', JSON_ARRAY, { 'content-encoding': 'gzip' });
    expect(packed.status).toBe(415);
    expect((await api.call('POST', '/v1/events/batch?x=1', { raw: '[]' })).json.errors[0].field).toBe(
      'query',
    );
  });

  it('is not read without a key, nor to its end once it is refused', async () => {
    const head = (key: string | null, lines: string[]) =>
      [
        'POST /v1/events/batch HTTP/1.1',
        'host: relay',
        'content-type: application/json',
        ...(key === null ? [] : [`authorization: Bearer ${key}`]),
        ...lines,
        '\r\n',
      ].join('\r\n');
    const stranger = new RawClient(api.url).send(head(null, ['content-length: 8000000']));
    await stranger.expect(/^HTTP\/1\.1 401 /);
    stranger.end();
    const large = new RawClient(api.url).send(head(ADMIN_KEY, ['content-length: 8388609']));
    await large.expect(/^HTTP\/1\.1 413 /);
    large.end();
    const broken = new RawClient(api.url)
      .send(head(ADMIN_KEY, ['content-length: 8000000']))
      .send('[{"type":}');
    await broken.expect(/^HTTP\/1\.1 400 .*byte 9, in item 0/s);
    await broken.closed;
  });

  it('that nobody sends to its end costs nothing but its connection', async () => {
    const before = await countEvents();
    const client = new RawClient(api.url).send(
      `POST /v1/events/batch HTTP/1.1\r\nhost: relay\r\nauthorization: Bearer ${ADMIN_KEY}\r\n` +
        'content-type: application/json\r\ncontent-length: 500000\r\n\r\n[{"type":"x","payload":1},',
    );
    await new Promise((resolve) => client.socket.once('connect', resolve));
    client.end();
    await client.closed;
    expect((await postAll([event()])).status).toBe(202);
    expect(await countEvents()).toBe(before + 1);
  });
});

describe('batches that arrive all at once', () => {
  it('take a bounded memory: past it they are refused, and taken again when some of it is free', async () => {
    const body = Buffer.alloc(7_900_000, 'x');
    const head =
      `POST /v1/events/batch HTTP/1.1\r\nhost: relay\r\nauthorization: Bearer ${ADMIN_KEY}\r\n` +
      'content-type: application/json\r\ncontent-length: 8000001\r\n\r\n[{"type":"x","payload":"';
    const clients = times(9, () => new RawClient(api.url).send(head).send(body));
    await Promise.any(clients.map((client) => client.expect(/^HTTP\/1\.1 503 .*"overloaded"/s, 20_000)));
    expect(clients.filter((client) => client.received !== '').length).toBeLessThan(3);
    for (const client of clients) client.end();
    await Promise.all(clients.map((client) => client.closed));
    await expect.poll(async () => (await postAll([event()])).status).toBe(202);
  });
});

describe('idempotency keys in a batch', () => {
  const keyed = (changes: object = {}) => ({ ...event(changes), idempotency_key: randomUUID() });

  it('make the whole batch safe to send again', async () => {
    const items = times(50, () => keyed());
    const first = await postAll(items);
    const again = await postAll(items);
    expect([first.status, again.status]).toEqual([202, 202]);
    expect(again.json.results).toEqual(
      first.json.results.map((result: object) => ({ ...result, replayed: true })),
    );
    expect(first.json.results[0]).not.toHaveProperty('replayed');
  });

  it('are those of single events', async () => {
    const item = keyed({ payload: { n: 1 } });
    const single = await api.call('POST', '/v1/events', {
      raw: '{"n":1}',
      headers: {
        'relay-event-type': 'a.b',
        'content-type': JSON_ARRAY,
        'idempotency-key': item.idempotency_key,
      },
    });
    const answer = await postAll([item, { ...item, payload: { n: 2 } }]);
    expect(answer.json.results[0]).toEqual({ status: 202, replayed: true, ...single.json });
    expect(answer.json.results[1]).toMatchObject({ status: 409, code: 'idempotency_conflict' });
  });

  it('fold what is posted twice in one batch, and refuse what asks for something else', async () => {
    const item = keyed();
    const answer = await postAll([item, event(), item, { ...item, type: 'other' }, keyed()]);
    const [first, , second, other] = answer.json.results;
    expect(second).toEqual({ ...first, replayed: true });
    expect(other).toMatchObject({ status: 409, code: 'idempotency_conflict' });
    expect(answer.json.accepted).toBe(4);
  });

  it('that an open transaction holds are in progress, for their own events alone', async () => {
    const items = times(20, () => keyed());
    const holder = await pool.connect();
    await holder.query('begin');
    await holder.query(
      `insert into relay.idempotency_keys (tenant_id, key, digest, event_id, expires_at)
       values ('00000000-0000-0000-0000-000000000001', $1, '\\x00', gen_random_uuid(), now() + interval '1 day')`,
      [items[7]!.idempotency_key],
    );
    const answer = await postAll(items);
    await holder.query('rollback');
    holder.release();
    expect(answer.json.accepted).toBe(19);
    expect(answer.json.results[7]).toMatchObject({ status: 409, code: 'idempotency_in_progress' });
  });

  it('make one event each of batches at once, through two APIs (case O-19)', async () => {
    const other = await startTestApi(database.url);
    const items = times(100, () => keyed());
    const answers = await Promise.all(
      times(8, (n) =>
        (n % 2 ? other : api).call('POST', '/v1/events/batch', { body: n % 3 ? items : items.toReversed() }),
      ),
    );
    await other.stop();
    const events = new Map<string, Set<string>>(items.map((item) => [item.idempotency_key, new Set()]));
    for (const [n, answer] of answers.entries()) {
      const sent = n % 3 ? items : items.toReversed();
      for (const [place, result] of answer.json.results.entries()) {
        if (result.status === 202) events.get(sent[place]!.idempotency_key)!.add(result.event_id);
        else expect(result.code).toBe('idempotency_in_progress');
      }
    }
    expect([...events.values()].map((ids) => ids.size)).toEqual(times(100, () => 1));
  });
});

describe('a batch that cannot be stored', () => {
  it('is answered 503 as a whole when the database is locked, and stores nothing', async () => {
    const before = await countEvents();
    const locker = await pool.connect();
    await locker.query('begin');
    await locker.query('lock table relay.events in share mode');
    const answer = await postAll([
      event(),
      { type: 'a b', payload: 1 },
      event({ idempotency_key: randomUUID() }),
    ]);
    await locker.query('rollback');
    locker.release();
    expect([answer.status, answer.json.code]).toEqual([503, 'database_unavailable']);
    expect(answer.headers.get('retry-after')).toBe('2');
    expect(await countEvents()).toBe(before);
  });

  it('is counted event by event', async () => {
    const counts = async () => {
      const text = (await api.call('GET', '/metrics')).text;
      return ['accepted', 'replayed', 'rejected'].map((outcome) =>
        Number(new RegExp(`relay_ingest_total\\{outcome="${outcome}"\\} (\\d+)`).exec(text)?.[1]),
      );
    };
    const before = await counts();
    const item = event({ idempotency_key: randomUUID() });
    await postAll([item, item, event(), 7]);
    expect((await counts()).map((count, n) => count - before[n]!)).toEqual([2, 1, 1]);
  });
});
