import { afterEach, describe, expect, it, vi } from 'vitest';
import { sender as newSender, post, verdict } from './fixtures/requests.ts';
import { type Answer, answerOk, httpSink, rawSink, type Sink } from './fixtures/sinks.ts';
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
  return { sink, sender, url: `http://127.0.0.1:${sink.port}/` };
}

const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

describe('a connection', () => {
  it('is used again, one request at a time', async () => {
    const { sink, sender, url } = await given((_, response) => setTimeout(() => response.end('ok'), 5));
    for (let i = 0; i < 10; i++) await post(sender, url);
    expect(sink.connections).toBe(1);
    for (let round = 0; round < 3; round++) {
      await Promise.all(Array.from({ length: 8 }, () => post(sender, url)));
    }
    expect(sink.connections).toBe(8);
    expect(sender.stats()).toMatchObject({ busy: 0, idle: 8, origins: 1, dialled: 8 });
  });

  it.each([
    ['says so', ['connection', 'close']],
    ['says so among other things', ['connection', 'x-hop, Close']],
    ['keeps it for less than it would take to notice', ['keep-alive', 'timeout=1']],
  ])('is not used again when the server %s', async (_, header) => {
    const { sink, sender, url } = await given((_, response) => response.writeHead(200, header).end('ok'));
    for (let i = 0; i < 3; i++) expect(verdict(await post(sender, url))).toBe(200);
    expect(sink.connections).toBe(3);
    await vi.waitFor(() => expect(sink.open.size).toBe(0));
    expect(sender.stats()).toMatchObject({ busy: 0, idle: 0, origins: 0 });
  });

  it('of an HTTP/1.0 server is not used again', async () => {
    const sink = await rawSink((socket) =>
      socket.once('data', () => socket.end('HTTP/1.0 200 OK\r\n\r\nfine')),
    );
    const sender = newSender();
    open.push(sink, sender);
    for (let i = 0; i < 3; i++) {
      const result = await post(sender, `http://127.0.0.1:${sink.port}/`);
      expect(result.kind === 'response' && result.snippet.toString()).toBe('fine');
    }
    expect(sink.connections).toBe(3);
  });

  it('is not used again when the answer came before the request was written', async () => {
    const sink = await rawSink((socket) => {
      socket.once('data', () => {
        socket.write('HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n');
        socket.pause();
      });
    });
    const sender = newSender();
    open.push(sink, sender);
    const body = Buffer.alloc(32 * 1024 * 1024);
    expect(verdict(await post(sender, `http://127.0.0.1:${sink.port}/`, { body }))).toBe(413);
    expect(sender.stats()).toMatchObject({ busy: 0, idle: 0 });
  });

  it('that the server closed while it was idle is noticed, and not written to', async () => {
    const { sink, sender, url } = await given();
    await post(sender, url);
    for (const socket of sink.open) socket.end();
    await vi.waitFor(() => expect(sender.stats()).toMatchObject({ idle: 0, origins: 0 }));
    expect(verdict(await post(sender, url))).toBe(200);
    expect([sink.connections, sink.hits.length]).toEqual([2, 2]);
  });

  it('on which unasked bytes arrive while it is idle never gives them to the next request', async () => {
    const sink = await rawSink((socket) => {
      socket.once('data', () => {
        socket.write('HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok');
        setTimeout(() => socket.write('HTTP/1.1 503 Planted\r\ncontent-length: 0\r\n\r\n'), 10);
      });
    });
    const sender = newSender();
    open.push(sink, sender);
    const url = `http://127.0.0.1:${sink.port}/`;
    expect(verdict(await post(sender, url))).toBe(200);
    await vi.waitFor(() => expect(sender.stats().idle).toBe(0));
    expect(verdict(await post(sender, url))).toBe(200);
  });

  it('is closed after the time it may be idle', async () => {
    const { sink, sender, url } = await given(undefined, { clientMaxIdleMs: 300 });
    await post(sender, url);
    expect(sender.stats().idle).toBe(1);
    await vi.waitFor(() => expect([sink.open.size, sender.stats().idle]).toEqual([0, 0]), { timeout: 2_000 });
  });
});

describe('a server that closes after each answer without notice', () => {
  it('gets each request once, and every one arrives', async () => {
    const { sink, sender, url } = await given((hit, response) => {
      answerOk(hit, response);
      response.socket?.end();
    });
    const verdicts: (number | string)[] = [];
    for (let i = 0; i < 100; i++) {
      verdicts.push(verdict(await post(sender, url)));
      await pause(5);
    }
    expect(verdicts.filter((each) => each === 200)).toHaveLength(100);
    expect(sink.hits).toHaveLength(100);
  });

  it('loses few requests under pressure, for it is found out, and none is written twice', async () => {
    const { sink, sender, url } = await given((hit, response) => {
      answerOk(hit, response);
      response.socket?.end();
    });
    const workers = Array.from({ length: 20 }, async (_, worker) => {
      const mine: (number | string)[] = [];
      for (let i = 0; i < 50; i++) {
        mine.push(verdict(await post(sender, url, { headers: ['relay-delivery-id', `${worker}-${i}`] })));
      }
      return mine;
    });
    const all = (await Promise.all(workers)).flat();
    const resets = all.filter((each) => each === 'reset').length;
    expect(all.filter((each) => each === 200).length + resets).toBe(1_000);
    // Without remembering, every second request would be one.
    expect(resets).toBeLessThanOrEqual(40);
    const seen = sink.hits.map((hit) => hit.headers['relay-delivery-id']);
    expect(new Set(seen).size).toBe(seen.length);
  });

  it('is told to close after the second time', async () => {
    const { sink, sender, url } = await given((hit, response) => {
      answerOk(hit, response);
      response.socket?.end();
    });
    for (let i = 0; i < 4; i++) {
      await post(sender, url);
      await vi.waitFor(() => expect(sender.stats().idle).toBe(0));
    }
    const told = sink.hits.map((hit) => hit.headers.connection);
    expect(told).toEqual(['keep-alive', 'keep-alive', 'close', 'close']);
  });

  it('is not mistaken for one that is merely sent to rarely, whose connections we let time out', async () => {
    const { sink, sender, url } = await given(undefined, { clientMaxIdleMs: 50 });
    for (let i = 0; i < 4; i++) {
      await post(sender, url);
      await vi.waitFor(() => expect(sender.stats().idle).toBe(0));
    }
    expect(sink.hits.map((hit) => hit.headers.connection)).toEqual(Array(4).fill('keep-alive'));
  });

  it('is not mistaken for one that restarts now and then', async () => {
    let restarting = false;
    const { sink, sender, url } = await given((hit, response) => {
      answerOk(hit, response);
      if (restarting) response.socket?.end();
    });
    for (let i = 0; i < 4; i++) {
      restarting = true;
      await post(sender, url);
      await vi.waitFor(() => expect(sender.stats().idle).toBe(0));
      restarting = false;
      await post(sender, url);
      await post(sender, url);
      for (const socket of sink.open) socket.end();
      await vi.waitFor(() => expect(sender.stats().idle).toBe(0));
    }
    expect(sink.hits.every((hit) => hit.headers.connection === 'keep-alive')).toBe(true);
    expect(sink.connections).toBe(8);
  });
});

describe('idle connections', () => {
  it('are bounded over all origins, and those idle for longest go first', async () => {
    const sinks = await Promise.all(Array.from({ length: 12 }, () => httpSink()));
    const sender = newSender({ maxIdleClients: 4 });
    open.push(...sinks, sender);
    for (const sink of sinks) await post(sender, `http://127.0.0.1:${sink.port}/`);
    await vi.waitFor(() =>
      expect(sinks.map((sink) => sink.open.size)).toEqual([0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1]),
    );
    expect(sender.stats()).toMatchObject({ idle: 4, origins: 4 });
  });

  it('of 2,000 sends to 500 names leave neither sockets nor memory behind', async () => {
    const { sink, sender } = await given(undefined, {
      maxIdleClients: 50,
      clientMaxIdleMs: 500,
      resolver: async () => ['127.0.0.1'],
    });
    const round = async (sends: number) => {
      const verdicts = new Map<number | string, number>();
      let [next, mostIdle] = [0, 0];
      const worker = async () => {
        for (let i = next++; i < sends; i = next++) {
          const each = verdict(
            await post(sender, `http://name-${i % 500}.example.test:${sink.port}/`, { totalMs: 30_000 }),
          );
          verdicts.set(each, (verdicts.get(each) ?? 0) + 1);
          mostIdle = Math.max(mostIdle, sender.stats().idle);
        }
      };
      await Promise.all(Array.from({ length: 20 }, worker));
      expect([...verdicts]).toEqual([[200, sends]]);
      expect(mostIdle).toBe(50);
      await vi.waitFor(() => expect(sender.stats()).toMatchObject({ idle: 0, busy: 0, origins: 0 }), {
        timeout: 10_000,
      });
      await vi.waitFor(() => expect(sink.open.size).toBe(0), { timeout: 10_000 });
      sink.hits.length = 0;
    };
    await round(1_000);
    const before = await settledHeap();
    await round(2_000);
    expect((await settledHeap()) - before).toBeLessThan(4 * 1024 * 1024);
  }, 120_000);
});

describe('closing the sender', () => {
  it('ends idle connections and sends under way, and takes no more', async () => {
    const { sink, sender, url } = await given((hit, response) => {
      if (hit.url === '/fast') answerOk(hit, response);
    });
    await post(sender, `${url}fast`);
    const hanging = post(sender, url);
    await vi.waitFor(() => expect(sink.hits).toHaveLength(2));
    await sender.close();
    expect(await hanging).toMatchObject({ kind: 'failure', failure: 'other', requestSent: true });
    expect(verdict(await post(sender, url))).toBe('other');
    await vi.waitFor(() => expect(sink.open.size).toBe(0));
    expect(sender.stats()).toMatchObject({ idle: 0, busy: 0, origins: 0 });
  });

  it('ends a dial that has not been answered', async () => {
    const sender = newSender({ resolver: () => new Promise(() => {}) });
    const dialling = post(sender, 'http://silent.example.test/');
    await sender.close();
    expect(await dialling).toMatchObject({ kind: 'failure', failure: 'other', requestSent: false });
  });
});

/** Heap after collection, where the collector can be asked; elsewhere after it had time. */
async function settledHeap(): Promise<number> {
  const { setFlagsFromString } = await import('node:v8');
  const { runInNewContext } = await import('node:vm');
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  for (let i = 0; i < 3; i++) {
    await pause(50);
    collect();
  }
  return process.memoryUsage().heapUsed;
}
