import { spawn } from 'node:child_process';
import { connect, type Socket } from 'node:net';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { classify } from '../../../lib/domain/outcome.ts';
import { nameFailure } from './failures.ts';
import { sender as newSender, post, publicOnly, verdict } from './fixtures/requests.ts';
import { fixture, httpSink, httpsSink, rawSink, type Sink } from './fixtures/sinks.ts';
import type { Sender } from './sender.ts';

const open: { close(): Promise<void> }[] = [];
afterEach(async () => {
  vi.unstubAllEnvs();
  for (const each of open.splice(0).reverse()) await each.close();
});

function trustingSender(): Sender {
  const sender = newSender({ ca: fixture('ca.pem'), resolver: async () => ['127.0.0.1'] });
  open.push(sender);
  return sender;
}

const urlOf = (sink: Sink, host = 'sink.example.test') => `https://${host}:${sink.port}/`;

describe('an endpoint with a good certificate', () => {
  it('is sent to, by its name, over kept connections', async () => {
    let serverName: string | undefined;
    const sink = await httpsSink('valid', {
      SNICallback: (name, done) => {
        serverName = name;
        done(null);
      },
    });
    open.push(sink);
    const sender = trustingSender();
    expect(verdict(await post(sender, urlOf(sink)))).toBe(200);
    expect(verdict(await post(sender, urlOf(sink)))).toBe(200);
    expect(serverName).toBe('sink.example.test');
    expect(sink.hits[0]?.headers.host).toBe(`sink.example.test:${sink.port}`);
    expect(sink.connections).toBe(1);
  });

  it('is dialled once for each send that runs at the same time, however fast it answers', async () => {
    const port = await sinkProcess();
    const sender = trustingSender();
    const verdicts = new Set<number | string>();
    const worker = async () => {
      for (let i = 0; i < 200; i++)
        verdicts.add(verdict(await post(sender, `https://sink.example.test:${port}/`)));
    };
    await Promise.all(Array.from({ length: 8 }, worker));
    expect([...verdicts]).toEqual([200]);
    expect(sender.stats()).toMatchObject({ dialled: 8, idle: 8 });
  });

  it('may be a literal address that the certificate names', async () => {
    const sink = await httpsSink('valid', {}, undefined, '127.0.0.2');
    open.push(sink);
    expect(verdict(await post(trustingSender(), urlOf(sink, '127.0.0.2')))).toBe(200);
  });
});

describe('an endpoint with a bad certificate', () => {
  it.each([
    ['self-signed', 'DEPTH_ZERO_SELF_SIGNED_CERT'],
    ['expired', 'CERT_HAS_EXPIRED'],
    ['wrong-name', 'ERR_TLS_CERT_ALTNAME_INVALID'],
  ])('that is %s gets no byte of the payload, and is retried', async (certificate, code) => {
    const sink = await httpsSink(certificate);
    open.push(sink);
    const sender = trustingSender();
    const result = await post(sender, urlOf(sink));
    expect(result).toMatchObject({ kind: 'failure', failure: 'tls', requestSent: false });
    expect(result.kind === 'failure' && result.detail).toContain(code);
    expect(classify(result)).toEqual({ class: 'retryable' });
    expect(sink.hits).toEqual([]);
    expect(sender.stats()).toMatchObject({ busy: 0, idle: 0 });
  });

  it('from an authority that is not trusted is refused by the usual list', async () => {
    const sink = await httpsSink('valid');
    const sender = newSender({ resolver: async () => ['127.0.0.1'] });
    open.push(sink, sender);
    expect(await post(sender, urlOf(sink))).toMatchObject({ failure: 'tls', requestSent: false });
  });

  it('is not saved by an environment that turns checking off', async () => {
    vi.stubEnv('NODE_TLS_REJECT_UNAUTHORIZED', '0');
    const sink = await httpsSink('self-signed');
    open.push(sink);
    expect(verdict(await post(trustingSender(), urlOf(sink)))).toBe('tls');
    expect(sink.hits).toEqual([]);
  });

  it('does not spoil a good one that shares its name', async () => {
    const [bad, good] = [await httpsSink('expired'), await httpsSink('valid')];
    open.push(bad, good);
    const sender = trustingSender();
    for (const [sink, expected] of [
      [good, 200],
      [bad, 'tls'],
      [good, 200],
      [bad, 'tls'],
    ] as const) {
      expect(verdict(await post(sender, urlOf(sink)))).toBe(expected);
    }
  });
});

describe('an endpoint whose TLS fails otherwise', () => {
  it('because it asks for our certificate gets no payload that it acts on, and is retried', async () => {
    const sink = await httpsSink('valid', {
      requestCert: true,
      rejectUnauthorized: true,
      ca: fixture('ca.pem'),
    });
    open.push(sink);
    const result = await post(trustingSender(), urlOf(sink));
    // Node's server hangs up without the alert that others send.
    expect(['tls', 'reset']).toContain(verdict(result));
    expect(classify(result)).toEqual({ class: 'retryable' });
    expect(sink.hits).toEqual([]);
  });

  it('because it asks for our certificate is a TLS failure where it says so, which TLS 1.3 does after the handshake', () => {
    const error = Object.assign(new Error('alert'), { code: 'ERR_SSL_TLSV13_ALERT_CERTIFICATE_REQUIRED' });
    expect(nameFailure(error, { phase: 'open', error: null })).toMatchObject({
      failure: 'tls',
      detail: expect.stringContaining(error.code),
    });
  });

  it('because it speaks no TLS is a TLS failure, and nothing is sent in the clear', async () => {
    const sink = await httpSink();
    open.push(sink);
    expect(await post(trustingSender(), urlOf(sink))).toMatchObject({ failure: 'tls', requestSent: false });
    expect(sink.hits).toEqual([]);
  });

  it.each([
    ['sends an alert', Buffer.from([0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 0x28])],
    ['hangs up', null],
  ])('because it %s in the handshake is a TLS failure', async (_, answer) => {
    let received = Buffer.alloc(0);
    const sink = await rawSink((socket) =>
      socket.on('data', (chunk) => {
        received = Buffer.concat([received, chunk]);
        if (answer === null) socket.destroy();
        else socket.end(answer);
      }),
    );
    open.push(sink);
    expect(await post(trustingSender(), urlOf(sink))).toMatchObject({ failure: 'tls', requestSent: false });
    expect(received.includes('hello')).toBe(false);
  });

  it('because it breaks off after the handshake says what broke, not merely that it was closed', async () => {
    let toClient: Socket | undefined;
    const sink = await httpsSink('valid', {}, () =>
      toClient?.end('this is no TLS record, and the connection ends'),
    );
    const proxy = await rawSink((socket) => {
      toClient = socket;
      const upstream = connect(sink.port, '127.0.0.1').on('error', () => {});
      socket.pipe(upstream);
      upstream.pipe(socket, { end: false });
      socket.on('close', () => upstream.destroy());
    });
    open.push(sink, proxy);
    const result = await post(trustingSender(), urlOf(proxy));
    expect(result).toMatchObject({
      failure: 'tls',
      requestSent: true,
      detail: expect.stringContaining('ERR_SSL'),
    });
  });

  it('offers HTTP/1.1 only', async () => {
    const sink = await httpsSink('valid', { ALPNProtocols: ['h2'] });
    open.push(sink);
    expect(verdict(await post(trustingSender(), urlOf(sink)))).toBe('tls');
  });
});

describe('a forbidden address', () => {
  it('is not even told the name that was wanted', async () => {
    let received = 0;
    const canary = await rawSink((socket) => socket.on('data', (chunk) => (received += chunk.length)));
    let judged = 0;
    // Allowed when resolved, forbidden when it answers: as if the connection had gone elsewhere.
    const sender = newSender({
      policy: publicOnly,
      resolver: async () => ['127.0.0.1'],
      isAllowedAddress: () => judged++ === 0,
    });
    open.push(canary, sender);
    expect(await post(sender, urlOf(canary))).toMatchObject({ failure: 'refused', requestSent: false });
    await vi.waitFor(() => expect([canary.connections, canary.open.size]).toEqual([1, 0]));
    expect(received).toBe(0);
  });
});

/** A TLS sink of its own, which answers while this process still writes; in one process that never happens. */
async function sinkProcess(): Promise<number> {
  const program = `
    const [key, cert] = JSON.parse(process.argv[1]);
    require('node:https').createServer({ key, cert }, (request, response) => {
      request.resume().on('end', () => response.writeHead(200, { 'content-length': 2 }).end('ok'));
    }).listen(0, '127.0.0.1', function () { console.log(this.address().port) })`;
  const identity = JSON.stringify([String(fixture('server-key.pem')), String(fixture('valid.pem'))]);
  const child = spawn(process.execPath, ['-e', program, identity], { stdio: ['ignore', 'pipe', 'inherit'] });
  const exited = new Promise((resolve) => child.once('exit', resolve));
  open.push({
    close: async () => {
      child.kill();
      await exited;
    },
  });
  return Number(await new Promise((resolve) => child.stdout.once('data', resolve)));
}
