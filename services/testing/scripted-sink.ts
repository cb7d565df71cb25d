import { createServer, type IncomingHttpHeaders } from 'node:http';
import type { AddressInfo } from 'node:net';

/** One request as it came over the wire. */
export interface SunkRequest {
  path: string;
  headers: Record<string, string>;
  body: Buffer;
  /** Date.now() when it had been read in full. */
  atMs: number;
}

export interface SunkAnswer {
  status: number;
  headers?: Record<string, string | string[]>;
  body?: string | Buffer;
  /** Leaves the request open for so long before it answers; at once when absent. */
  afterMs?: number;
}

/** Answers the requests of each path in turn by that path's script, and its last answer for ever after. */
export interface ScriptedSink {
  url: string;
  /** What the requests to a path (with its query) will be answered. */
  script(path: string, ...answers: SunkAnswer[]): void;
  /** The requests to a path so far, in order of arrival. */
  requests(path: string): SunkRequest[];
  close(): Promise<void>;
}

export async function startScriptedSink(): Promise<ScriptedSink> {
  const scripts = new Map<string, SunkAnswer[]>();
  const seen: SunkRequest[] = [];
  const server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => {
      const path = request.url ?? '/';
      const script = scripts.get(path) ?? [{ status: 404 }];
      const count = seen.filter((other) => other.path === path).length;
      const answer = script[Math.min(count, script.length - 1)]!;
      seen.push({ path, headers: flat(request.headers), body: Buffer.concat(chunks), atMs: Date.now() });
      const reply = () => response.writeHead(answer.status, answer.headers).end(answer.body);
      if (answer.afterMs === undefined) reply();
      else setTimeout(reply, answer.afterMs);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    script: (path, ...answers) => void scripts.set(path, answers),
    requests: (path) => seen.filter((request) => request.path === path),
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

function flat(headers: IncomingHttpHeaders): Record<string, string> {
  return Object.fromEntries(Object.entries(headers).map(([name, value]) => [name, String(value)]));
}
