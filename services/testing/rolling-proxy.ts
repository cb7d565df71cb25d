import { Agent, createServer, type IncomingMessage, request, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

export interface RollingProxy {
  url: string;
  close(): Promise<void>;
}

const PROBE_EVERY_MS = 100;

/**
 * A proxy as they stand before an API: it keeps connections to its upstreams, asks them for readiness, takes those that are ready in
 * turn, and goes on to the next only when a connection could not be made. A request that was written is never written twice.
 */
export async function startRollingProxy(upstreams: readonly string[]): Promise<RollingProxy> {
  const agent = new Agent({ keepAlive: true });
  let ready = [...upstreams];
  let turn = 0;
  const probe = setInterval(() => {
    void Promise.all(upstreams.map(isReady)).then((answers) => {
      ready = upstreams.filter((_, place) => answers[place]);
    });
  }, PROBE_EVERY_MS);
  const server = createServer((incoming, outgoing) => {
    const chunks: Buffer[] = [];
    incoming.on('data', (chunk: Buffer) => chunks.push(chunk));
    incoming.on('end', () => {
      turn += 1;
      forward(incoming, outgoing, Buffer.concat(chunks), turn, ready.length);
    });
  });

  function forward(
    incoming: IncomingMessage,
    outgoing: ServerResponse,
    body: Buffer,
    from: number,
    tries: number,
  ): void {
    const upstream = new URL(incoming.url ?? '/', ready[from % ready.length]);
    const onward = request(
      upstream,
      { method: incoming.method, headers: incoming.headers, agent },
      (answer) => {
        const { connection: _, ...headers } = answer.headers;
        outgoing.writeHead(answer.statusCode ?? 502, headers);
        answer.pipe(outgoing);
      },
    );
    onward.on('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'ECONNREFUSED' && tries > 1) forward(incoming, outgoing, body, from + 1, tries - 1);
      else outgoing.writeHead(502).end(String(error.code));
    });
    onward.end(body);
  }

  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    close: () =>
      new Promise((resolve) => {
        clearInterval(probe);
        agent.destroy();
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

async function isReady(url: string): Promise<boolean> {
  try {
    return (await fetch(`${url}/readyz`, { signal: AbortSignal.timeout(1_000) })).ok;
  } catch {
    return false;
  }
}
