import assert from 'node:assert/strict';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { type Behaviour, behaviourOf, READS_BODY } from './behaviours.ts';
import { handleControl, sendJson } from './control.ts';
import { openExchange, type ReceivedDelivery } from './exchange.ts';
import type { SeenDelivery } from './ledger.ts';
import { createState, type ReceiverCounts, type ReceiverState } from './state.ts';
import type { Target } from './target.ts';

export type { ReceivedDelivery } from './exchange.ts';
export type { SeenDelivery } from './ledger.ts';
export type { ReceiverCounts } from './state.ts';

const MAX_BODY_BYTES = 16 * 1024 * 1024;
/** Longer than any sender keeps an idle connection, so that the sender closes first and no request meets a reset. */
const KEEP_ALIVE_MS = 75_000;
/** Two dispatchers open more connections at once than the usual queue of 511 holds, and what finds it full waits for seconds. */
const BACKLOG = 4_096;
const CLOSE_GRACE_MS = 1000;
const IDLE_CHECK_MS = 20;

export interface ReceiverOptions {
  /** `127.0.0.1` when absent. */
  host?: string;
  /** 0, or absent, takes a free one. */
  port?: number;
  /** Any of them may match. */
  secrets?: readonly string[];
  /** First part of the names of Relay's own headers, in any case. */
  headerPrefix?: string;
  /** Hand bodies to `onDelivery` from every route, not only from those that must read them. */
  keepBodies?: boolean;
  /** Called once for every delivery request, when its fate is decided. */
  onDelivery?: (delivery: ReceivedDelivery) => void;
}

export interface Receiver {
  readonly url: string;
  readonly port: number;
  counts(): ReceiverCounts;
  /** Null when no request named this delivery. */
  find(deliveryId: string): SeenDelivery | null;
  /** Deliveries in order of arrival, from position `since`. */
  deliveries(since?: number, limit?: number): SeenDelivery[];
  setSecrets(secrets: readonly string[]): void;
  /** Lets deliveries to `/toggle?name=` through, or refuses them again; the toggle without a name is `''`. */
  setToggle(name: string, on: boolean): void;
  reset(): void;
  /** Answers what is open for at most `graceMs`, then cuts what is left. */
  close(graceMs?: number): Promise<void>;
}

/** Starts a stand-in customer endpoint that misbehaves as its URLs say. Rejects when the address cannot be bound. */
export async function startReceiver(options: ReceiverOptions = {}): Promise<Receiver> {
  const state = createState({
    secrets: options.secrets ?? ['whsec_test'],
    headerPrefix: (options.headerPrefix ?? 'relay').toLowerCase(),
  });
  const server = createServer((request, response) => {
    const target = state.targets.of(request.url ?? '/');
    if (handleControl(state, target, request, response)) return;
    const behaviour = request.method === 'POST' ? behaviourOf(target.path) : null;
    if (behaviour) receive(state, options, behaviour, target, request, response);
    else refuse(request, response, target);
  });
  server.keepAliveTimeout = KEEP_ALIVE_MS;
  const host = options.host ?? '127.0.0.1';
  const port = await listen(server, host, options.port ?? 0);
  return {
    url: `http://${host.includes(':') ? `[${host}]` : host}:${port}`,
    port,
    counts: state.counts,
    find: state.ledger.find,
    deliveries: (since = 0, limit = Number.MAX_SAFE_INTEGER) => state.ledger.page(since, limit),
    setSecrets: state.setSecrets,
    setToggle: state.setToggle,
    reset: state.reset,
    close: (graceMs = CLOSE_GRACE_MS) => close(server, graceMs),
  };
}

function receive(
  state: ReceiverState,
  options: ReceiverOptions,
  behaviour: Behaviour,
  target: Target,
  request: IncomingMessage,
  response: ServerResponse,
): void {
  const atMs = Date.now();
  const decide = (body: Buffer | null) => {
    target.hits += 1;
    behaviour(openExchange(state, { target, request, response, body, atMs }, options.onDelivery), state);
  };
  if (options.keepBodies || READS_BODY.has(target.path)) {
    readBody(request, response, decide);
  } else {
    // Counted only when read in full: a sender killed half-way through a request has delivered nothing.
    request.on('end', () => decide(null));
    request.resume();
  }
}

function readBody(request: IncomingMessage, response: ServerResponse, done: (body: Buffer) => void): void {
  const chunks: Buffer[] = [];
  let bytes = 0;
  request.on('data', (chunk: Buffer) => {
    bytes += chunk.length;
    if (bytes <= MAX_BODY_BYTES) chunks.push(chunk);
  });
  request.on('end', () => {
    if (bytes > MAX_BODY_BYTES) sendJson(response, 413, { error: `at most ${MAX_BODY_BYTES} bytes` });
    else done(Buffer.concat(chunks));
  });
}

function refuse(request: IncomingMessage, response: ServerResponse, target: Target): void {
  request.resume();
  sendJson(response, 404, { error: `no such route: ${request.method} ${target.path}` });
}

async function listen(server: Server, host: string, port: number): Promise<number> {
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen({ port, host, backlog: BACKLOG }, () => {
      server.off('error', reject);
      resolve();
    });
  });
  const address = server.address();
  assert(address !== null && typeof address !== 'string');
  return address.port;
}

async function close(server: Server, graceMs: number): Promise<void> {
  const closed = new Promise<void>((resolve) => server.close(() => resolve()));
  // A connection that answers its last request now turns idle only afterwards, hence again and again.
  const idle = setInterval(() => server.closeIdleConnections(), IDLE_CHECK_MS);
  const cut = setTimeout(() => server.closeAllConnections(), graceMs);
  await closed;
  clearInterval(idle);
  clearTimeout(cut);
}
