import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import type { Socket } from 'node:net';
import { gzipSync } from 'node:zlib';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { classify } from '../../../lib/domain/outcome.ts';
import { anywhere, sender as newSender, post, verdict } from './fixtures/requests.ts';
import { type Answer, httpSink, rawSink, type Sink } from './fixtures/sinks.ts';
import type { Sender, SenderOptions } from './sender.ts';

const open: { close(): Promise<void> }[] = [];
afterEach(async () => {
  for (const each of open.splice(0).reverse()) await each.close();
});

async function given(
  answer?: Answer,
  options: Partial<SenderOptions> = {},
): Promise<{ sink: Sink; sender: Sender; url: string }> {
  const sink = await httpSink(answer);
  const sender = newSender(options);
  open.push(sink, sender);
  return { sink, sender, url: `http://127.0.0.1:${sink.port}/hooks` };
}

/** The sender's own end of the next connection, by undici's diagnostics. */
function socketOfNextConnection(): Promise<Socket> {
  return new Promise((resolve) => {
    const listener = (message: unknown) => {
      unsubscribe('undici:client:connected', listener);
      resolve((message as { socket: Socket }).socket);
    };
    subscribe('undici:client:connected', listener);
  });
}

describe('a request', () => {
  it('arrives with its bytes, its headers and its path as they were given', async () => {
    const { sink, sender, url } = await given();
    const body = Buffer.from(
      '{ "b":1,"10":12345678901234567890,"2":1e400 ,"a":-0,"a":0.1000}\r\n\0\xff',
      'latin1',
    );
    const headers = [
      'content-type',
      'application/x-odd',
      'Relay-Delivery-Id',
      'd-1',
      'X-Custom',
      'a, b; c="ä"',
    ];
    await post(sender, `${url}/a%20b/ü?x=1&y=%zz`, { body, headers });
    expect(sink.hits).toHaveLength(1);
    const [hit] = sink.hits;
    expect(hit?.method).toBe('POST');
    expect(hit?.url).toBe('/hooks/a%20b/%C3%BC?x=1&y=%zz');
    expect(hit?.body.equals(body)).toBe(true);
    expect(hit?.headers).toEqual({
      host: `127.0.0.1:${sink.port}`,
      connection: 'keep-alive',
      'content-type': 'application/x-odd',
      'relay-delivery-id': 'd-1',
      'x-custom': 'a, b; c="ä"',
      'content-length': String(body.length),
    });
  });

  it('may have an empty body', async () => {
    const { sink, sender, url } = await given();
    expect(verdict(await post(sender, url, { body: Buffer.alloc(0) }))).toBe(200);
    expect(sink.hits[0]?.headers['content-length']).toBe('0');
  });

  it('may be large, and is not cut', async () => {
    const { sink, sender, url } = await given();
    const body = Buffer.alloc(8 * 1024 * 1024, 'x');
    expect(verdict(await post(sender, url, { body }))).toBe(200);
    expect(sink.hits[0]?.body.equals(body)).toBe(true);
  });

  it.each([
    ['a line break in a value', ['x-note', 'a\r\nx-injected: 1']],
    ['a bare line feed', ['x-note', 'a\nb']],
    ['a NUL', ['x-note', 'a\0b']],
    ['a character outside Latin-1', ['x-note', '🎉']],
    ['a space in a name', ['x note', 'a']],
    ['a colon in a name', ['x:note', 'a']],
    ['an empty name', ['', 'a']],
    ['a transfer-encoding of its own', ['transfer-encoding', 'chunked']],
    ['an expectation', ['expect', '100-continue']],
  ])('with %s among its headers is refused for good and never sent', async (_, headers) => {
    const { sink, sender, url } = await given();
    const result = await post(sender, url, { headers });
    expect(result).toMatchObject({ kind: 'failure', failure: 'refused', requestSent: false });
    expect(classify(result)).toEqual({ class: 'permanent', reason: 'refused' });
    expect(sink.hits).toEqual([]);
    expect(verdict(await post(sender, url))).toBe(200);
  });

  it('ignores the proxies of the environment', async () => {
    const proxy = await httpSink();
    open.push(proxy);
    for (const name of ['HTTP_PROXY', 'http_proxy', 'HTTPS_PROXY', 'ALL_PROXY']) {
      vi.stubEnv(name, `http://127.0.0.1:${proxy.port}`);
    }
    const { sink, sender, url } = await given();
    expect(verdict(await post(sender, url))).toBe(200);
    vi.unstubAllEnvs();
    expect([proxy.connections, sink.hits.length]).toEqual([0, 1]);
  });
});

describe('a response', () => {
  it('is reported with its status, times and first bytes', async () => {
    const { sender, url } = await given((_, response) => {
      response.statusCode = 418;
      setTimeout(() => {
        response.write('one,');
        setTimeout(() => response.end('two'), 60);
      }, 30);
    });
    const result = await post(sender, url);
    if (result.kind !== 'response') throw new Error(result.detail);
    expect(result).toMatchObject({ status: 418, retryAfter: [] });
    expect(result.snippet.toString()).toBe('one,two');
    expect(result.firstByteMs).toBeGreaterThan(25);
    expect(result.durationMs).toBeGreaterThan(85);
    expect(result.durationMs).toBeGreaterThan(result.firstByteMs);
  });

  it.each([200, 201, 202, 204, 205, 299, 300, 304, 400, 404, 410, 429, 500, 503, 599, 600, 999])(
    'of status %i is an answer like any other',
    async (status) => {
      const { sender, url } = await given((_, response) => response.writeHead(status).end());
      expect(verdict(await post(sender, url))).toBe(status);
    },
  );

  it.each([301, 302, 303, 307, 308])('of status %i is not followed', async (status) => {
    const elsewhere = await httpSink();
    open.push(elsewhere);
    const location = `http://127.0.0.1:${elsewhere.port}/`;
    const { sink, sender, url } = await given((_, response) =>
      response.writeHead(status, { location }).end(),
    );
    expect(verdict(await post(sender, url))).toBe(status);
    expect([sink.hits.length, elsewhere.connections]).toEqual([1, 0]);
  });

  it.each([429, 503])('of status %i tells every Retry-After it carries', async (status) => {
    const { sender, url } = await given((_, response) => {
      response.writeHead(status, ['Retry-After', '60', 'x-retry-after', '9', 'RETRY-AFTER', 'soon']).end();
    });
    expect(await post(sender, url)).toMatchObject({ status, retryAfter: ['60', 'soon'] });
  });

  it('after announcements (102, 103) is the last one', async () => {
    const { sender, url } = await given((_, response) => {
      response.writeProcessing();
      response.writeEarlyHints({ link: '</a>; rel=preload' });
      response.writeHead(201).end('made');
    });
    expect(verdict(await post(sender, url))).toBe(201);
  });

  it('is not decompressed', async () => {
    const bomb = gzipSync(Buffer.alloc(50 * 1024 * 1024));
    const { sender, url } = await given(
      (_, response) => response.writeHead(200, { 'content-encoding': 'gzip' }).end(bomb),
      { maxResponseBytes: 65_536 },
    );
    const result = await post(sender, url);
    expect(result.kind === 'response' && result.snippet.equals(bomb.subarray(0, 65_536))).toBe(true);
  });

  it.each([
    ['random bytes', Buffer.from([0, 255, 0, 254, 128, 7])],
    ['gzip without saying so', gzipSync('{"ok":true}')],
    ['Latin-1', Buffer.from('caf\xe9', 'latin1')],
    ['nothing', Buffer.alloc(0)],
  ])('whose body is %s is a success with these bytes', async (_, bytes) => {
    const { sink, sender, url } = await given((_, response) => {
      response.writeHead(200, { 'content-type': 'application/json' }).end(bytes);
    });
    const result = await post(sender, url);
    expect(result.kind === 'response' && result.snippet.equals(bytes)).toBe(true);
    expect(sink.hits).toHaveLength(1);
  });
});

describe('a body longer than the limit', () => {
  const bodyBytes = 64 * 1024 * 1024;

  it('is cut, and neither read to its end nor paid for', async () => {
    let written = 0;
    const sink = await rawSink((socket) => {
      socket.once('data', () => {
        socket.write(`HTTP/1.1 200 OK\r\ncontent-length: ${bodyBytes}\r\n\r\n`);
        const more = () => {
          while (written < bodyBytes && !socket.destroyed) {
            written += 16_384;
            if (!socket.write(Buffer.alloc(16_384, 'b'))) return socket.once('drain', more);
          }
        };
        more();
      });
    });
    const sender = newSender();
    open.push(sink, sender);
    const ours = socketOfNextConnection();
    const result = await post(sender, `http://127.0.0.1:${sink.port}/`);
    expect(result.kind === 'response' && result.snippet.equals(Buffer.alloc(2048, 'b'))).toBe(true);
    await vi.waitFor(() => expect(sink.open.size).toBe(0));
    // One read of the socket and what was under way beside it; the rest stayed in the kernel.
    expect((await ours).bytesRead).toBeLessThan(256 * 1024);
    expect(written).toBeLessThan(bodyBytes);
    expect(sender.stats()).toMatchObject({ idle: 0, busy: 0, dialled: 1 });
  });

  it('of exactly the limit is read to its end and the connection kept', async () => {
    const { sink, sender, url } = await given((_, response) => response.end('x'.repeat(2048)));
    const result = await post(sender, url);
    expect(result.kind === 'response' && result.snippet.length).toBe(2048);
    await post(sender, url);
    expect(sink.connections).toBe(1);
  });

  it('may be cut to nothing at all', async () => {
    const { sender, url } = await given(undefined, { maxResponseBytes: 0 });
    const result = await post(sender, url);
    expect(result.kind === 'response' && result.snippet.length).toBe(0);
  });
});

describe('an answer that is no HTTP response', () => {
  it.each([
    ['garbage', 'hello there\r\n\r\n', 'protocol'],
    ['a bare 100 that nobody asked for', 'HTTP/1.1 100 Continue\r\n\r\n', 'protocol'],
    [
      'a change of protocol',
      'HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n',
      'protocol',
    ],
    ['two lengths', 'HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nokk', 'protocol'],
    [
      'a length and chunks',
      'HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n',
      'protocol',
    ],
    [
      'endless headers',
      `HTTP/1.1 200 OK\r\n${'x-long: '.concat('y'.repeat(1_000), '\r\n').repeat(200)}`,
      'protocol',
    ],
    ['half a status line and the end', 'HTTP/1.1 20', 'reset'],
    ['the end', '', 'reset'],
  ])('but %s is a failure, retried', async (_, answer, failure) => {
    const sink = await rawSink((socket) => socket.once('data', () => socket.end(answer)));
    const sender = newSender();
    open.push(sink, sender);
    const result = await post(sender, `http://127.0.0.1:${sink.port}/`);
    expect(result).toMatchObject({ kind: 'failure', failure, requestSent: true });
    expect(classify(result)).toEqual({ class: 'retryable' });
    expect(sender.stats()).toMatchObject({ busy: 0, idle: 0 });
  });

  it('but a broken connection is a reset', async () => {
    const sink = await rawSink((socket) => socket.once('data', () => socket.resetAndDestroy()));
    const sender = newSender();
    open.push(sink, sender);
    expect(await post(sender, `http://127.0.0.1:${sink.port}/`)).toMatchObject({
      failure: 'reset',
      requestSent: true,
    });
    expect(sink.connections).toBe(1);
  });

  it('but nobody listening is a failure to connect', async () => {
    const sink = await rawSink(() => {});
    await sink.close();
    const sender = newSender();
    open.push(sender);
    const result = await post(sender, `http://127.0.0.1:${sink.port}/`);
    expect(result).toMatchObject({ kind: 'failure', failure: 'connect', requestSent: false });
  });
});

describe('a response that breaks off', () => {
  it.each([
    ['shorter than announced', 'HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\npart'],
    [
      'in the middle of its chunks',
      'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\npart\r\n5\r\nno',
    ],
    ['with a bad chunk', 'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\npart\r\nzzz\r\n'],
  ])('%s after its headers is still the answer', async (_, answer) => {
    const sink = await rawSink((socket) => socket.once('data', () => socket.end(answer)));
    const sender = newSender();
    open.push(sink, sender);
    const result = await post(sender, `http://127.0.0.1:${sink.port}/`);
    expect(verdict(result)).toBe(200);
    expect(result.kind === 'response' && result.snippet.toString()).toMatch(/^part/);
    expect(sender.stats()).toMatchObject({ busy: 0, idle: 0 });
  });
});

describe('what a failure says', () => {
  it('contains neither the URL nor what it holds', async () => {
    const sink = await rawSink((socket) => socket.end('hunter2 hunter2\r\n\r\n'));
    const sender = newSender({ resolver: async () => ['127.0.0.1'] });
    open.push(sink, sender);
    const results = [
      await post(sender, `http://127.0.0.1:${sink.port}/hunter2?token=hunter2`),
      await post(sender, `http://hunter2.example.test:${sink.port}/`),
      await post(sender, 'http://user:hunter2@127.0.0.1:1/'),
      await post(sender, 'http://127.0.0.1:1/hunter2'),
      await post(sender, `http://127.0.0.1:${sink.port}/`, { headers: ['x-token', 'hunter2\n'] }),
      await post(newSender({ policy: { ...anywhere, requireHttps: true } }), 'http://127.0.0.1/hunter2'),
    ];
    for (const result of results) {
      expect(result.kind).toBe('failure');
      expect(JSON.stringify(result)).not.toContain('hunter2');
      expect(result.kind === 'failure' && result.detail.length).toBeGreaterThan(5);
    }
  });
});
