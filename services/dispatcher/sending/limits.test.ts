import { spawn } from 'node:child_process';
import net, { type Socket } from 'node:net';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { sender as newSender, post, verdict } from './fixtures/requests.ts';
import { httpSink, rawSink } from './fixtures/sinks.ts';
import type { Sender } from './sender.ts';

const open: { close(): Promise<void> }[] = [];
afterEach(async () => {
  for (const each of open.splice(0).reverse()) await each.close();
});

/** The tick of the timer wheel and a busy machine. */
const MARGIN_MS = 1_500;

async function given(
  onSocket: (socket: Socket) => void,
): Promise<{ sender: Sender; url: string; connections: () => number }> {
  const sink = await rawSink(onSocket);
  const sender = newSender();
  open.push(sink, sender);
  return { sender, url: `http://127.0.0.1:${sink.port}/`, connections: () => sink.connections };
}

/** Writes the parts one after the other, then the last one again and again, until it is hung up on. */
function drip(everyMs: number, ...parts: string[]): (socket: Socket) => void {
  return (socket) => {
    let next = 0;
    const timer = setInterval(() => {
      socket.write(parts[next] ?? '');
      next = Math.min(next + 1, parts.length - 1);
    }, everyMs);
    socket.on('close', () => clearInterval(timer));
  };
}

async function timed<T>(start: () => Promise<T>): Promise<{ result: T; tookMs: number }> {
  const startedAt = performance.now();
  return { result: await start(), tookMs: performance.now() - startedAt };
}

function expectBetween(tookMs: number, limitMs: number): void {
  expect(tookMs).toBeGreaterThanOrEqual(limitMs);
  expect(tookMs).toBeLessThan(limitMs + MARGIN_MS);
}

describe('the total deadline', () => {
  const limits = { totalMs: 600, connectTimeoutMs: 5_000, idleTimeoutMs: 5_000 };

  it.each([
    ['accepts and never answers', () => {}],
    ['drips its header', drip(50, 'HTTP/1.1 200 OK\r\nx-drip: ', 'a')],
    ['announces without end', drip(50, 'HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n')],
    ['drips new headers', drip(50, 'HTTP/1.1 200 OK\r\n', 'x-more: a\r\n')],
  ])('ends an endpoint that %s', async (_, behaviour) => {
    const { sender, url } = await given(behaviour);
    const { result, tookMs } = await timed(() => post(sender, url, limits));
    expect(result).toMatchObject({ kind: 'failure', failure: 'timeout', requestSent: true });
    expectBetween(tookMs, 600);
    expect(sender.stats()).toMatchObject({ busy: 0, idle: 0 });
  });

  it.each([
    ['200', 'HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n', 200],
    ['500', 'HTTP/1.1 500 Oh\r\ncontent-length: 1000\r\n\r\n', 500],
  ])('ends a body that drips after a %s, whose status stands', async (_, head, status) => {
    const { sender, url } = await given(drip(50, head, 'x'));
    const { result, tookMs } = await timed(() => post(sender, url, limits));
    expect(verdict(result)).toBe(status);
    expect(result.kind === 'response' && result.snippet.toString()).toMatch(/^x{3,12}$/);
    expectBetween(tookMs, 600);
    expect(sender.stats()).toMatchObject({ busy: 0, idle: 0 });
  });

  it('does not end what is in time', async () => {
    const { sender, url } = await given(
      drip(100, 'HTTP/1.1 200 OK\r\n', 'content-length: 2\r\n\r\n', 'o', 'k'),
    );
    expect(verdict(await post(sender, url, { ...limits, totalMs: 5_000 }))).toBe(200);
  });

  it('that has passed already sends nothing', async () => {
    const { sender, url, connections } = await given(() => {});
    expect(await post(sender, url, { totalMs: 0 })).toMatchObject({ failure: 'timeout', requestSent: false });
    expect(connections()).toBe(0);
  });

  it.each(['a new connection', 'a kept connection'])(
    'that passed while the process was frozen sends nothing on %s',
    async (which) => {
      const sink = await httpSink();
      const sender = newSender();
      open.push(sink, sender);
      const url = `http://127.0.0.1:${sink.port}/`;
      if (which === 'a kept connection') expect(verdict(await post(sender, url))).toBe(200);
      const before = sink.hits.length;
      const sending = post(sender, url, { totalMs: 100 });
      const thawsAt = performance.now() + 150;
      while (performance.now() < thawsAt);
      expect(await sending).toMatchObject({ kind: 'failure', failure: 'timeout', requestSent: false });
      await post(sender, url);
      expect(sink.hits.length - before).toBe(1);
    },
  );
});

describe('the idle limit', () => {
  const limits = { totalMs: 5_000, connectTimeoutMs: 5_000, idleTimeoutMs: 500 };

  it('ends an endpoint that falls silent before it answers', async () => {
    const { sender, url } = await given(() => {});
    const { result, tookMs } = await timed(() => post(sender, url, limits));
    expect(result).toMatchObject({
      failure: 'timeout',
      requestSent: true,
      detail: 'nothing was received for 500 ms',
    });
    expectBetween(tookMs, 500);
  });

  it('counts from the last sign of life', async () => {
    const { sender, url } = await given((socket) => {
      const parts = ['HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n', 'a', 'b', 'c'];
      for (const [i, part] of parts.entries()) setTimeout(() => socket.write(part), 300 * (i + 1));
    });
    const { result, tookMs } = await timed(() => post(sender, url, limits));
    expect(verdict(result)).toBe(200);
    expect(result.kind === 'response' && result.snippet.toString()).toBe('abc');
    expectBetween(tookMs, 1_700);
  });
});

describe('the connect limit', () => {
  it('ends a dial that nobody answers, and closes the half-open socket', async () => {
    const hole = await blackHole();
    open.push(hole);
    const sender = newSender();
    open.push(sender);
    const limits = { totalMs: 5_000, connectTimeoutMs: 400, idleTimeoutMs: 5_000 };
    const { result, tookMs } = await timed(() => post(sender, `http://127.0.0.1:${hole.port}/`, limits));
    expect(result).toMatchObject({ kind: 'failure', failure: 'timeout', requestSent: false });
    expectBetween(tookMs, 400);
    await vi.waitFor(() => expect(socketsTo(hole.port)).toBe(0));
  });

  it('ends a TLS handshake that stands still', async () => {
    const { sender, url } = await given(() => {});
    const limits = { totalMs: 5_000, connectTimeoutMs: 400, idleTimeoutMs: 5_000 };
    const { result, tookMs } = await timed(() => post(sender, url.replace('http:', 'https:'), limits));
    expect(result).toMatchObject({
      failure: 'timeout',
      requestSent: false,
      detail: expect.stringContaining('securing'),
    });
    expectBetween(tookMs, 400);
  });

  it('ends a name that does not resolve, as trouble with DNS', async () => {
    const sender = newSender({ resolver: () => new Promise(() => {}) });
    open.push(sender);
    const limits = { totalMs: 5_000, connectTimeoutMs: 300, idleTimeoutMs: 5_000 };
    const { result, tookMs } = await timed(() => post(sender, 'http://silent.example.test/', limits));
    expect(result).toMatchObject({ kind: 'failure', failure: 'dns', requestSent: false });
    expectBetween(tookMs, 300);
  });
});

describe('fifty hanging endpoints', () => {
  it('end in time and leave five healthy ones as fast as they were', async () => {
    const behaviours = [
      drip(100, 'HTTP/1.1 200 OK\r\nx-drip: ', 'a'),
      drip(100, 'HTTP/1.1 200 OK\r\n\r\n', 'x'),
      () => {},
    ];
    const hanging = await Promise.all(
      Array.from({ length: 50 }, (_, i) => rawSink(behaviours[i % 3] ?? (() => {}))),
    );
    const healthy = await Promise.all(Array.from({ length: 5 }, () => httpSink()));
    const sender = newSender();
    open.push(...hanging, ...healthy, sender);
    const urlOf = ({ port }: { port: number }) => `http://127.0.0.1:${port}/`;
    await Promise.all(healthy.map((sink) => post(sender, urlOf(sink))));

    const slow = hanging.map((sink) => timed(() => post(sender, urlOf(sink), { totalMs: 1_000 })));
    const latencies: number[] = [];
    for (let round = 0; round < 20; round++) {
      const answers = await Promise.all(healthy.map((sink) => timed(() => post(sender, urlOf(sink)))));
      expect(answers.map(({ result }) => verdict(result))).toEqual([200, 200, 200, 200, 200]);
      latencies.push(...answers.map(({ tookMs }) => tookMs));
    }
    latencies.sort((a, b) => a - b);
    expect(latencies[Math.floor(latencies.length * 0.9)]).toBeLessThan(400);
    for (const { result, tookMs } of await Promise.all(slow)) {
      expect([200, 'timeout']).toContain(verdict(result));
      expectBetween(tookMs, 1_000);
    }
    expect(sender.stats()).toMatchObject({ busy: 0, idle: 5 });
  });
});

/** Sockets of this process to a port, as the kernel counts them by way of Node's own list of handles. */
function socketsTo(port: number): number {
  const handles = (process as unknown as { _getActiveHandles(): object[] })._getActiveHandles();
  return handles.filter((each) => each instanceof net.Socket && each.remotePort === port && each.connecting)
    .length;
}

/** A port whose accept queue is full and whose process is stopped: the kernel drops every further SYN. */
async function blackHole(): Promise<{ port: number; close(): Promise<void> }> {
  const program = `require('node:net').createServer().listen({ port: 0, host: '127.0.0.1', backlog: 1 }, function () {
    console.log(this.address().port) })`;
  const child = spawn(process.execPath, ['-e', program], { stdio: ['ignore', 'pipe', 'inherit'] });
  const exited = new Promise((resolve) => child.once('exit', resolve));
  const port = Number(await new Promise((resolve) => child.stdout.once('data', resolve)));
  child.kill('SIGSTOP');
  const fillers: Socket[] = [];
  for (let full = false; !full; ) {
    const socket = net.connect({ port, host: '127.0.0.1' }).on('error', () => {});
    fillers.push(socket);
    full = await Promise.race([
      new Promise<boolean>((resolve) => socket.once('connect', () => resolve(false))),
      new Promise<boolean>((resolve) => setTimeout(() => resolve(true), 200)),
    ]);
  }
  return {
    port,
    close: async () => {
      for (const socket of fillers) socket.destroy();
      child.kill('SIGKILL');
      await exited;
    },
  };
}
