import type pg from 'pg';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { createPool } from '../../lib/store/pool.ts';
import { ADMIN_KEY, startTestApi, type TestApi } from '../testing/api.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { RawClient } from '../testing/raw-http.ts';

const LIMIT = 100_000;
let database: TestDatabase;
let pool: pg.Pool;
let api: TestApi;
const clients: RawClient[] = [];

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
  api = await startTestApi(database.url, {
    RELAY_MAX_PAYLOAD_BYTES: String(LIMIT),
    RELAY_BODY_TIMEOUT_SECS: '1',
  });
});
afterEach(() => {
  for (const client of clients.splice(0)) client.end();
});
afterAll(async () => {
  await api.stop();
  await pool.end();
  await database.drop();
});

function open(): RawClient {
  const client = new RawClient(api.url);
  clients.push(client);
  return client;
}

const head = (
  lines: string[],
  { key = ADMIN_KEY, path = '/v1/events' }: { key?: string | null; path?: string } = {},
) =>
  [
    `POST ${path} HTTP/1.1`,
    'host: relay',
    'relay-event-type: raw',
    ...(key === null ? [] : [`authorization: Bearer ${key}`]),
    ...lines,
    '',
    '',
  ].join('\r\n');

async function countEvents(): Promise<number> {
  const { rows } = await pool.query('select count(*)::int as n from relay.events');
  return rows[0].n;
}

describe('a body that is too large', () => {
  it('is refused by its declared length, before a byte of it is read', async () => {
    const client = open().send(head([`content-length: ${LIMIT + 1}`]));
    await client.expect(/^HTTP\/1\.1 413 .*"code":"payload_too_large".*"field":"body"/s);
    await client.closed;
  });

  it('passes at the limit itself, declared or in chunks', async () => {
    const exact = Buffer.alloc(LIMIT, 'x');
    const declared = open()
      .send(head([`content-length: ${LIMIT}`]))
      .send(exact);
    await declared.expect(/^HTTP\/1\.1 202 /);
    const chunked = open()
      .send(head(['transfer-encoding: chunked']))
      .send(`${LIMIT.toString(16)}\r\n`)
      .send(exact)
      .send('\r\n0\r\n\r\n');
    await chunked.expect(/^HTTP\/1\.1 202 /);
  });

  it('of 50 MB in chunks is answered 413, and not read to its end (case O-26)', async () => {
    const client = open().send(head(['transfer-encoding: chunked']));
    const chunk = Buffer.concat([Buffer.from('10000\r\n'), Buffer.alloc(65_536, 'x'), Buffer.from('\r\n')]);
    for (let sent = 0; sent < 50_000_000 && !client.isClosed; sent += chunk.length) {
      if (!client.socket.write(chunk)) {
        await Promise.race([new Promise((resolve) => client.socket.once('drain', resolve)), client.closed]);
      }
    }
    await client.closed;
    expect(client.received).toMatch(/^HTTP\/1\.1 413 /);
    // What the two kernels hold counts as sent; the rest of the 50 MB was never taken.
    expect(client.socket.bytesWritten - client.socket.writableLength).toBeLessThan(20_000_000);
  });

  it('of a management route is refused likewise', async () => {
    const client = open().send(
      head(['content-type: application/json', 'content-length: 65537'], { path: '/v1/endpoints' }),
    );
    await client.expect(/^HTTP\/1\.1 413 /);
  });
});

describe('a request without a key', () => {
  it('is answered 401 before its body is read, however large', async () => {
    for (const path of ['/v1/events', '/v1/endpoints']) {
      for (const size of ['content-length: 50000000', 'transfer-encoding: chunked', 'content-length: 5']) {
        const client = open().send(head([size], { key: null, path }));
        await client.expect(/^HTTP\/1\.1 401 .*"code":"unauthorized"/s);
      }
    }
  });

  it('keeps its connection when its body is small', async () => {
    const client = open().send(head(['content-length: 2'], { key: null }));
    await client.expect(/^HTTP\/1\.1 401 /);
    client
      .send('{}')
      .send(head(['content-length: 2']))
      .send('{}');
    await client.expect(/HTTP\/1\.1 202 /);
  });
});

describe('a body that does not come', () => {
  it('is answered 408 once its time is over, and its connection closed', async () => {
    const before = await countEvents();
    for (const path of ['/v1/events', '/v1/endpoints']) {
      const startedAt = performance.now();
      const client = open()
        .send(head(['content-length: 50'], { path }))
        .send('{"typ');
      await client.expect(/^HTTP\/1\.1 408 .*"code":"request_timeout"/s);
      await client.closed;
      expect(performance.now() - startedAt).toBeGreaterThan(900);
      expect(performance.now() - startedAt).toBeLessThan(4_000);
    }
    expect(await countEvents()).toBe(before);
  });

  it('costs nothing but its connection when the client goes away', async () => {
    const before = await countEvents();
    const client = open()
      .send(head(['content-length: 50']))
      .send('{"typ');
    await new Promise((resolve) => client.socket.once('connect', resolve));
    client.end();
    await client.closed;
    expect((await api.call('POST', '/v1/events', { raw: '{"type":"x"}' })).status).toBe(202);
    expect(await countEvents()).toBe(before + 1);
  });

  it('holds up nobody: two hundred stalled clients beside one that posts', async () => {
    for (let n = 0; n < 200; n++)
      open()
        .send(head(['content-length: 50']))
        .send('{');
    const answers = await Promise.all(
      Array.from({ length: 20 }, () => api.call('POST', '/v1/events', { raw: '{"type":"x"}' })),
    );
    expect(new Set(answers.map((answer) => answer.status))).toEqual(new Set([202]));
  });
});

describe('headers that do not come, or do not fit', () => {
  it('are answered 408', async () => {
    const client = open().send('POST /v1/events HTTP/1.1\r\nhost: rel');
    await client.expect(/^HTTP\/1\.1 408 .*"code":"request_timeout"/s);
    await client.closed;
  });

  it('are answered 431 when there are too many', async () => {
    const client = open().send(head([`x-large: ${'x'.repeat(20_000)}`]));
    await client.expect(/^HTTP\/1\.1 431 .*"code":"headers_too_large"/s);
  });
});

describe('a client that asks before it sends', () => {
  it('is told to go on once everything else was judged', async () => {
    const client = open().send(head(['expect: 100-continue', 'content-length: 2']));
    await client.expect(/^HTTP\/1\.1 100 Continue\r\n\r\n/);
    client.send('{}');
    await client.expect(/HTTP\/1\.1 202 /);
    const other = open().send(
      head(['expect: 100-continue', 'content-type: application/json', 'content-length: 2'], {
        path: '/v1/endpoints',
      }),
    );
    await other.expect(/^HTTP\/1\.1 100 Continue\r\n\r\n/);
    other.send('{}');
    await other.expect(/HTTP\/1\.1 400 .*"field":"url"/s);
  });

  it('is refused without being told to go on', async () => {
    const noKey = open().send(head(['expect: 100-continue', 'content-length: 2'], { key: null }));
    await noKey.expect(/^HTTP\/1\.1 401 /);
    const tooLarge = open().send(head(['expect: 100-continue', `content-length: ${LIMIT + 1}`]));
    await tooLarge.expect(/^HTTP\/1\.1 413 /);
    const badHeader = open().send(
      head(['expect: 100-continue', 'content-length: 2', 'relay-endpoint-id: x']),
    );
    await badHeader.expect(/^HTTP\/1\.1 400 /);
    for (const client of [noKey, tooLarge, badHeader]) expect(client.received).not.toContain('100 Continue');
  });

  it('for something else is answered 417', async () => {
    const client = open().send(head(['expect: a-miracle', 'content-length: 2']));
    await client.expect(/^HTTP\/1\.1 417 .*"code":"expectation_failed"/s);
  });
});

describe('what is not HTTP', () => {
  it.each([
    ['noise', '\x16\x03\x01\x02\x00\x01\x00\r\n\r\n'],
    ['a space in the path', 'GET /a b HTTP/1.1\r\nhost: x\r\n\r\n'],
    ['two lengths', head(['content-length: 2', 'content-length: 3'])],
    ['a length and chunks', head(['content-length: 2', 'transfer-encoding: chunked'])],
    ['a NUL in a header', head(['idempotency-key: a\0b', 'content-length: 2'])],
    ['a bad chunk', `${head(['transfer-encoding: chunked'])}zz\r\n`],
  ])('is answered 400 and closed: %s', async (_, bytes) => {
    const client = open().send(bytes);
    await client.expect(/^HTTP\/1\.1 400 .*"code":"invalid_request"/s);
    await client.closed;
  });
});

describe('strangers', () => {
  it('cannot grow the metrics by made-up paths and methods (case O-28)', async () => {
    const series = async () => {
      const { text } = await api.call('GET', '/metrics', { key: null });
      return text.split('\n').filter((line) => line !== '' && !line.startsWith('#')).length;
    };
    await api.call('GET', '/made-up', { key: null });
    const before = await series();
    for (let n = 0; n < 300; n++) {
      const method = ['GET', 'PUT', 'DELETE'][n % 3]!;
      expect((await api.call(method, `/made-up/${n}`, { key: null })).status).toBe(404);
    }
    expect(await series()).toBeLessThanOrEqual(before + 2);
  });
});
