import { createServer, type IncomingHttpHeaders, type Server } from 'node:http';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { Generator, type GeneratorPlan } from './generator.ts';

interface Received {
  headers: IncomingHttpHeaders;
  body: string;
}

let server: Server | undefined;
let generator: Generator | undefined;
afterEach(() => {
  generator?.close();
  server?.closeAllConnections();
  server?.close();
});

/** An API that answers as told; `answer` gives the status and how long it takes. */
async function apiThat(answer: (n: number) => { status: number; afterMs?: number }) {
  const received: Received[] = [];
  const listening = createServer((request, response) => {
    let body = '';
    request.on('data', (chunk) => {
      body += String(chunk);
    });
    request.on('end', () => {
      const { status, afterMs = 0 } = answer(received.push({ headers: request.headers, body }));
      const text = '{"event_id":"e","delivery_ids":["d"]}';
      setTimeout(() => response.writeHead(status, { 'content-length': text.length }).end(text), afterMs);
    });
  });
  server = listening;
  await new Promise<void>((resolve) => listening.listen(0, '127.0.0.1', resolve));
  return { url: `http://127.0.0.1:${(listening.address() as { port: number }).port}`, received };
}

function run(api: string, plan: Partial<GeneratorPlan>) {
  generator = new Generator({
    apis: [api],
    key: 'secret-key',
    connections: 4,
    load: { loop: 'closed', seconds: 10, events: 20 },
    eventTypes: ['loadtest.ping'],
    payloadBytes: 300,
    keyed: false,
    measureFromSeconds: 0,
    requestTimeoutMs: 5_000,
    ...plan,
  });
  return generator.run();
}

describe('a closed loop', () => {
  it('sends as many events as asked for, each of the size asked for and each different', async () => {
    const { url, received } = await apiThat(() => ({ status: 202 }));
    expect(await run(url, {})).toMatchObject({ sent: 20, accepted: 20, answers: { 202: 20 } });
    expect(new Set(received.map(({ body }) => body)).size).toBe(20);
    for (const { body, headers } of received) {
      expect(Buffer.byteLength(body)).toBe(300);
      expect(JSON.parse(body)).toMatchObject({ type: 'loadtest.ping' });
      expect(headers.authorization).toBe('Bearer secret-key');
      expect(headers['idempotency-key']).toBeUndefined();
    }
  });

  it('takes its event types in turn, each event of the size asked for', async () => {
    const { url, received } = await apiThat(() => ({ status: 202 }));
    await run(url, { eventTypes: ['loadtest.a', 'loadtest.longer'], connections: 1 });
    const types = received.map(({ body }) => (JSON.parse(body) as { type: string }).type);
    expect(types.slice(0, 4)).toEqual(['loadtest.a', 'loadtest.longer', 'loadtest.a', 'loadtest.longer']);
    expect(received.every(({ body }) => Buffer.byteLength(body) === 300)).toBe(true);
  });

  it('ends when its time is up', async () => {
    const { url } = await apiThat(() => ({ status: 202, afterMs: 20 }));
    const started = performance.now();
    const { accepted } = await run(url, { load: { loop: 'closed', seconds: 1, events: null } });
    expect(performance.now() - started).toBeLessThan(2_000);
    expect(accepted).toBeGreaterThan(20);
  });

  it('gives each event a key of its own when told to', async () => {
    const { url, received } = await apiThat(() => ({ status: 202 }));
    await run(url, { keyed: true });
    expect(new Set(received.map(({ headers }) => headers['idempotency-key'])).size).toBe(20);
  });
});

describe('batches', () => {
  it('hold as many events as asked for, each of the size asked for, and count by events', async () => {
    const { url, received } = await apiThat(() => ({ status: 202 }));
    const result = await run(url, { batch: 5, keyed: true, eventTypes: ['loadtest.a', 'loadtest.b'] });
    expect(result).toMatchObject({ accepted: 100, refused: 0, answers: { 202: 20 } });
    const items = received.flatMap(
      ({ body }) => JSON.parse(body) as { type: string; payload: object; idempotency_key: string }[],
    );
    expect(items).toHaveLength(100);
    expect(items.slice(0, 2).map(({ type }) => type)).toEqual(['loadtest.a', 'loadtest.b']);
    expect(new Set(items.map(({ payload }) => JSON.stringify(payload).length))).toEqual(new Set([300]));
    expect(new Set(items.map((item) => item.idempotency_key)).size).toBe(100);
  });
});

describe('what the API answers', () => {
  it('is counted by status, and only a 202 is an accepted event', async () => {
    const { url } = await apiThat((n) => ({ status: n % 4 === 0 ? 503 : 202 }));
    const result = await run(url, {});
    expect(result).toMatchObject({ accepted: 15, refused: 5, unknown: 0, answers: { 202: 15, 503: 5 } });
    expect(generator!.accepted).toHaveLength(15);
  });

  it('is unknown when it does not come in time', async () => {
    const { url } = await apiThat((n) => ({ status: 202, afterMs: n === 1 ? 60_000 : 0 }));
    const result = await run(url, { requestTimeoutMs: 300 });
    expect(result).toMatchObject({ accepted: 19, refused: 0, unknown: 1, answers: { 'lost: timeout': 1 } });
  });
});

describe('an open loop', () => {
  it('counts the wait for a slow API as latency, from the moment at which each request ought to have left', async () => {
    const { url } = await apiThat(() => ({ status: 202, afterMs: 20 }));
    // One connection answers at most 50 a second; at 100 a second the last of a second's requests waits for a second.
    const load = { loop: 'open', rate: 100, seconds: 1, rampSeconds: 0 } as const;
    const { accept, accepted } = await run(url, { connections: 1, load });
    expect(accepted).toBe(100);
    expect(accept!.max).toBeGreaterThan(900);
    expect(accept!.p50).toBeGreaterThan(300);
  });

  it('ends early when it is told that it is enough, with every request answered', async () => {
    const { url, received } = await apiThat(() => ({ status: 202, afterMs: 20 }));
    const running = run(url, { load: { loop: 'open', rate: 100, seconds: 3600, rampSeconds: 0 } });
    await vi.waitFor(() => expect(received.length).toBeGreaterThan(10));
    generator!.enough();
    const { accepted, sent, behind } = await running;
    expect(accepted).toBe(sent);
    expect(accepted).toBe(received.length);
    expect(behind).toBe(0);
  });

  it('holds its rate, and stamps intended moments on the clock of the day', async () => {
    const { url } = await apiThat(() => ({ status: 202 }));
    const before = Date.now();
    await run(url, { load: { loop: 'open', rate: 200, seconds: 1, rampSeconds: 0 } });
    const intended = generator!.accepted.map(({ intendedMs }) => intendedMs).sort((a, b) => a - b);
    expect(intended).toHaveLength(200);
    expect(intended[0]!).toBeGreaterThanOrEqual(before - 2);
    expect(intended.at(-1)! - intended[0]!).toBeGreaterThan(980);
    expect(intended.at(-1)! - intended[0]!).toBeLessThan(1010);
  });
});
