import { createHmac } from 'node:crypto';
import { once } from 'node:events';
import { connect } from 'node:net';
import { request as rawRequest } from 'undici';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { type ReceivedDelivery, type Receiver, startReceiver } from './server.ts';

let receiver: Receiver;
let deliveries: ReceivedDelivery[];

beforeEach(async () => {
  deliveries = [];
  receiver = await startReceiver({ onDelivery: (delivery) => deliveries.push(delivery) });
});
afterEach(() => receiver.close(100));

let nextId = 0;
/** Posts as Relay would; a fresh delivery unless an id is given. */
async function deliver(
  path: string,
  options: { id?: string; body?: string; headers?: Record<string, string> } = {},
) {
  nextId += 1;
  const { statusCode, headers, body } = await rawRequest(receiver.url + path, {
    method: 'POST',
    body: options.body ?? '{}',
    headers: {
      'relay-delivery-id': options.id ?? `delivery-${nextId}`,
      'relay-event-id': `event-${nextId}`,
      'relay-event-type': 'order.created',
      'relay-attempt': '1',
      ...options.headers,
    },
  });
  return { status: statusCode, headers, text: await body.text() };
}

async function get(path: string): Promise<{ status: number; json: Record<string, unknown> }> {
  const response = await fetch(receiver.url + path);
  return { status: response.status, json: (await response.json()) as Record<string, unknown> };
}

const post = (path: string, body = '') => fetch(receiver.url + path, { method: 'POST', body });

function signed(body: string, secret = 'whsec_test'): Record<string, string> {
  const timestamp = String(Math.floor(Date.now() / 1000));
  const digest = createHmac('sha256', secret).update(`${timestamp}.${body}`).digest('hex');
  return { 'relay-timestamp': timestamp, 'relay-signature': `v1=${digest}` };
}

/** Reads a raw answer until it holds what is waited for. */
async function rawUntil(path: string, wanted: RegExp): Promise<string> {
  const socket = connect(receiver.port, '127.0.0.1');
  socket.write(`POST ${path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nrelay-delivery-id: raw\r\n\r\n`);
  let seen = '';
  for await (const chunk of socket) {
    seen += String(chunk);
    if (wanted.test(seen)) break;
  }
  socket.destroy();
  return seen;
}

describe('POST /verify', () => {
  it('answers 200 to a good signature over the raw bytes', async () => {
    const body = '{ "b":1, "a":1e400 }';
    expect(await deliver('/verify', { body, headers: signed(body) })).toMatchObject({ status: 200 });
    expect(receiver.counts()).toMatchObject({ verified: 1, rejected: 0, delivered: 1 });
  });

  it('answers 401 with the reason to anything else', async () => {
    expect(await deliver('/verify')).toMatchObject({ status: 401, text: 'missing_signature' });
    const tampered = await deliver('/verify', { body: '[]', headers: signed('{}') });
    expect(tampered).toMatchObject({ status: 401, text: 'signature_mismatch' });
    expect(receiver.counts()).toMatchObject({ verified: 0, rejected: 2, delivered: 0, requests: 2 });
  });

  it('verifies with the secrets set last, one a line', async () => {
    expect((await post('/secret', 'whsec_old\n\nwhsec_new\n')).status).toBe(200);
    for (const secret of ['whsec_old', 'whsec_new']) {
      expect(await deliver('/verify', { headers: signed('{}', secret) })).toMatchObject({ status: 200 });
    }
    expect(await deliver('/verify', { headers: signed('{}') })).toMatchObject({ status: 401 });
    expect((await post('/secret', ' \n')).status).toBe(400);
  });
});

describe('POST /sink', () => {
  it('answers 200 and counts without reading the body', async () => {
    expect(await deliver('/sink?endpoint=3', { body: 'x'.repeat(100_000) })).toMatchObject({ status: 200 });
    expect(deliveries[0]).toMatchObject({ url: '/sink?endpoint=3', status: 200, body: null, attempt: 1 });
  });

  it('does not count a request that was never sent in full', async () => {
    const socket = connect(receiver.port, '127.0.0.1');
    socket.write(
      'POST /sink HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\nrelay-delivery-id: half\r\n\r\nhalf',
    );
    await deliver('/sink');
    socket.destroy();
    await deliver('/sink');
    expect(receiver.find('half')).toBeNull();
    expect(receiver.counts().requests).toBe(2);
  });

  it('closes the connection behind its answer with hangup=1', async () => {
    const socket = connect(receiver.port, '127.0.0.1');
    socket.write('POST /sink?hangup=1 HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n');
    let answer = '';
    socket.on('data', (chunk) => {
      answer += String(chunk);
    });
    await once(socket, 'end');
    expect(answer).toMatch(/^HTTP\/1\.1 200 /);
    expect(answer.toLowerCase()).not.toContain('connection: close');
  });
});

describe('POST /always/{status}', () => {
  it.each([200, 204, 304, 404, 410, 500, 503, 599, 999])('answers %i', async (status) => {
    expect(await deliver(`/always/${status}`)).toMatchObject({ status });
  });

  it.each(['/always/100', '/always/20', '/always/abc', '/always/'])('does not know %s', async (path) => {
    expect(await deliver(path)).toMatchObject({ status: 404 });
    expect(receiver.counts().requests).toBe(0);
  });
});

describe('POST /slow', () => {
  it('answers after the milliseconds asked for', async () => {
    const started = performance.now();
    expect(await deliver('/slow?ms=80')).toMatchObject({ status: 200 });
    expect(performance.now() - started).toBeGreaterThan(75);
  });

  it('counts no success for a sender that gave up', async () => {
    const socket = connect(receiver.port, '127.0.0.1');
    socket.write(
      'POST /slow?ms=60000 HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nrelay-delivery-id: d\r\n\r\n',
    );
    await vi.waitFor(() => expect(receiver.find('d')).not.toBeNull());
    socket.destroy();
    await vi.waitFor(() => expect(deliveries).toHaveLength(1));
    expect(deliveries[0]).toMatchObject({ deliveryId: 'd', status: 0 });
    expect(receiver.counts()).toMatchObject({ requests: 1, delivered: 0 });
  });
});

describe('POST /flaky', () => {
  async function failures(path: string, requests: number): Promise<boolean[]> {
    const failed: boolean[] = [];
    for (let n = 0; n < requests; n += 1) failed.push((await deliver(path)).status === 500);
    return failed;
  }

  it.each([0, 1, 10, 50, 90, 100])('fails exactly %i of a hundred', async (pct) => {
    expect((await failures(`/flaky?pct=${pct}`, 100)).filter(Boolean)).toHaveLength(pct);
  });

  it('fails the same requests each time, and each URL has a sequence of its own', async () => {
    const first = await failures('/flaky?pct=50&endpoint=1', 6);
    expect(first).toEqual([false, true, false, true, false, true]);
    expect(await failures('/flaky?pct=50&endpoint=2', 6)).toEqual(first);
  });
});

describe('POST /429', () => {
  it('passes the header on as given', async () => {
    expect(await deliver('/429?retry_after=10')).toMatchObject({
      status: 429,
      headers: { 'retry-after': '10' },
    });
    expect((await deliver('/429?retry_after=soon')).headers['retry-after']).toBe('soon');
    expect((await deliver('/429?retry_after=1&retry_after=2&status=503')).headers['retry-after']).toEqual([
      '1',
      '2',
    ]);
    expect((await deliver('/429')).headers['retry-after']).toBeUndefined();
  });
});

describe('POST /bigbody', () => {
  it('answers 500 with as much as was asked for', async () => {
    const answer = await deliver('/bigbody?kb=300');
    expect(answer.status).toBe(500);
    expect(answer.text).toHaveLength(300 * 1024);
    expect(await deliver('/bigbody?kb=1&status=200')).toMatchObject({ status: 200 });
  });
});

describe('POST /trickle', () => {
  it('sends 200 at once and then a byte at a time without end', async () => {
    const seen = await rawUntil('/trickle?ms=5', /(\.[^.]*){5}$/);
    expect(seen).toMatch(/^HTTP\/1\.1 200 OK\r\n/);
    expect(receiver.find('raw')).toMatchObject({ successes: 1 });
  });

  it('never ends the header block with part=headers', async () => {
    expect(await rawUntil('/trickle?ms=5&part=headers', /x{5}/)).toMatch(/^HTTP\/1\.1 200 OK\r\nx-slow: x+$/);
    expect(receiver.find('raw')).toMatchObject({ requests: 1, successes: 0 });
  });

  it('does not keep the receiver from closing', async () => {
    const open = rawUntil('/trickle?ms=5', /never/);
    await vi.waitFor(() => expect(receiver.find('raw')).not.toBeNull());
    await receiver.close(20);
    await open.catch(() => undefined);
  });
});

describe('POST /toggle', () => {
  it('refuses until it is switched on, and again when switched off', async () => {
    expect(await deliver('/toggle')).toMatchObject({ status: 503 });
    expect((await post('/toggle?on=1')).status).toBe(200);
    expect(await deliver('/toggle')).toMatchObject({ status: 200 });
    await post('/toggle?on=0');
    expect(await deliver('/toggle')).toMatchObject({ status: 503 });
  });

  it('switches by name, from inside the process too', async () => {
    receiver.setToggle('a', true);
    expect(await deliver('/toggle?name=a')).toMatchObject({ status: 200 });
    expect(await deliver('/toggle?name=b')).toMatchObject({ status: 503 });
  });
});

describe('POST /toggle with another way of being off', () => {
  it('hangs until the sender gives up, and answers once it is on', async () => {
    const socket = connect(receiver.port, '127.0.0.1');
    socket.write(
      'POST /toggle?off=hang HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nrelay-delivery-id: held\r\n\r\n',
    );
    await vi.waitFor(() => expect(receiver.find('held')).toMatchObject({ requests: 1 }));
    expect(deliveries).toHaveLength(0);
    socket.destroy();
    await vi.waitFor(() => expect(deliveries[0]).toMatchObject({ deliveryId: 'held', status: 0 }));
    receiver.setToggle('', true);
    expect(await deliver('/toggle?off=hang')).toMatchObject({ status: 200 });
  });

  it('trickles as /trickle does', async () => {
    expect(await rawUntil('/toggle?off=trickle&ms=5&part=headers', /x{5}/)).toMatch(/x-slow: x+$/);
    receiver.setToggle('', true);
    expect(await deliver('/toggle?off=trickle&part=headers')).toMatchObject({ status: 200 });
  });
});

describe('POST /hang', () => {
  it('is counted and never answered', async () => {
    const socket = connect(receiver.port, '127.0.0.1');
    socket.write('POST /hang HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nrelay-delivery-id: h\r\n\r\n');
    await vi.waitFor(() => expect(receiver.find('h')).toMatchObject({ requests: 1, successes: 0 }));
    socket.destroy();
    await vi.waitFor(() => expect(deliveries[0]).toMatchObject({ deliveryId: 'h', status: 0 }));
  });
});

describe('POST /redirect', () => {
  it('points elsewhere', async () => {
    const answer = await deliver('/redirect?to=http%3A%2F%2F127.0.0.1%2Fsecret');
    expect(answer).toMatchObject({ status: 302, headers: { location: 'http://127.0.0.1/secret' } });
  });
});

describe('POST /drop', () => {
  it('destroys the connection after the request', async () => {
    await expect(deliver('/drop', { id: 'dropped' })).rejects.toThrow();
    expect(receiver.find('dropped')).toMatchObject({ requests: 1, successes: 0 });
  });
});

describe('GET /received', () => {
  it('gives ids, counts, event ids and first arrivals, page by page', async () => {
    const before = Date.now();
    await deliver('/always/500', { id: 'a' });
    await deliver('/sink', { id: 'a' });
    await deliver('/sink', { id: 'b' });
    const { json } = await get('/received?limit=1');
    expect(json).toMatchObject({ requests: 3, deliveries: 2, delivered: 2, duplicates: 0, next: 1 });
    const [seen] = json.deliveries_seen as { first_at_ms: number }[];
    expect(seen).toMatchObject({ delivery_id: 'a', requests: 2, successes: 1 });
    expect(seen!.first_at_ms).toBeGreaterThanOrEqual(before);
    expect((await get('/received?since=1')).json).toMatchObject({
      next: 2,
      deliveries_seen: [{ delivery_id: 'b' }],
    });
    expect((await get('/received?id=b')).json).toMatchObject({ deliveries_seen: [{ delivery_id: 'b' }] });
    expect((await get('/received?id=c')).json).toMatchObject({ deliveries_seen: [] });
  });

  it('sums up without the list, and forgets after answering when told to', async () => {
    await deliver('/sink', { id: 'a' });
    await deliver('/sink', { id: 'a' });
    const { json } = await get('/received?summary=1&reset=1');
    expect(json).toMatchObject({ requests: 2, delivered: 1, duplicates: 1 });
    expect(json.deliveries_seen).toBeUndefined();
    expect(receiver.counts().requests).toBe(0);
  });

  it('knows a delivery of the standard scheme by its webhook-id', async () => {
    await rawRequest(`${receiver.url}/sink`, { method: 'POST', headers: { 'webhook-id': 'w1' } });
    expect(receiver.find('w1')).toMatchObject({ requests: 1 });
  });

  it('counts requests that name no delivery apart', async () => {
    await post('/sink', 'x');
    expect(receiver.counts()).toMatchObject({ requests: 0, unidentified: 1 });
  });
});

describe('POST /reset', () => {
  it('forgets counts, sequences and toggles, and keeps the secrets', async () => {
    receiver.setSecrets(['whsec_kept']);
    receiver.setToggle('', true);
    await deliver('/flaky?pct=50');
    await post('/reset');
    expect(receiver.counts()).toMatchObject({ requests: 0, deliveries: 0 });
    expect(await deliver('/toggle')).toMatchObject({ status: 503 });
    expect(await deliver('/flaky?pct=50')).toMatchObject({ status: 200 });
    expect(await deliver('/verify', { headers: signed('{}', 'whsec_kept') })).toMatchObject({ status: 200 });
  });
});

describe('the receiver', () => {
  it('is healthy, and knows no other route', async () => {
    expect((await get('/healthz')).status).toBe(200);
    expect((await get('/sink')).status).toBe(404);
    expect((await post('/nowhere')).status).toBe(404);
  });

  it('hands bodies over from every route when asked', async () => {
    const bodies: (Buffer | null)[] = [];
    const keeping = await startReceiver({ keepBodies: true, onDelivery: ({ body }) => bodies.push(body) });
    await fetch(`${keeping.url}/always/500`, { method: 'POST', body: 'as posted' });
    await keeping.close();
    expect(bodies.map(String)).toEqual(['as posted']);
  });

  it('answers what is open before it closes', async () => {
    const open = deliver('/slow?ms=100');
    await vi.waitFor(() => expect(receiver.counts().requests).toBe(1));
    await receiver.close(5000);
    expect(await open).toMatchObject({ status: 200 });
  });

  it('rejects when its address is taken', async () => {
    await expect(startReceiver({ port: receiver.port })).rejects.toThrow(/EADDRINUSE/);
  });

  it('knows headers under another prefix', async () => {
    const white = await startReceiver({ headerPrefix: 'Acme' });
    await fetch(`${white.url}/sink`, {
      method: 'POST',
      headers: { 'acme-delivery-id': 'd1', 'acme-event-id': 'e1' },
    });
    expect(white.find('d1')).toMatchObject({ event_id: 'e1' });
    await white.close();
  });
});
