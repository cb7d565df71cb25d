import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from 'node:http';
import { type Problem, problemBody } from './problem.ts';

/** Answers with JSON that is already printed. */
export function sendJson(
  response: ServerResponse,
  status: number,
  body: string,
  headers: OutgoingHttpHeaders,
): void {
  headers['content-type'] = 'application/json; charset=utf-8';
  headers['content-length'] = Buffer.byteLength(body);
  response.writeHead(status, headers).end(body);
}

export function sendProblem(response: ServerResponse, problem: Problem, requestId: string): void {
  const body = problemBody(problem, requestId);
  response.writeHead(problem.status, problemHeaders(problem, body, requestId)).end(body);
}

function problemHeaders(problem: Problem, body: string, requestId: string): OutgoingHttpHeaders {
  return {
    ...problem.headers,
    'content-type': 'application/problem+json',
    'content-length': Buffer.byteLength(body),
    'x-request-id': requestId,
  };
}

/** A body up to this size is read to its end and dropped, so that the connection lives on. */
const CHEAP_REST_BYTES = 65_536;
/** Past that, this much more is read, or this long is waited, before the connection is closed. */
const LINGER_BYTES = 262_144;
const LINGER_MS = 1_000;

/**
 * Answers a request whose body was not, or not wholly, read. A long rest is not read: but a connection closed on bytes that nobody took
 * is reset, and the reset can overtake the answer. So the answer goes out whole, a little more is read and dropped, and then the
 * connection is closed.
 */
export function refuse(
  request: IncomingMessage,
  response: ServerResponse,
  problem: Problem,
  requestId: string,
): void {
  if (restIsCheap(request)) {
    sendProblem(response, problem, requestId);
    return;
  }
  const body = problemBody(problem, requestId);
  response.writeHead(problem.status, {
    ...problemHeaders(problem, body, requestId),
    connection: 'close',
  });
  response.write(body);
  dropRest(request, () => response.end());
}

function restIsCheap(request: IncomingMessage): boolean {
  if (request.complete) return true;
  // A client that waits for "100 Continue" may send its body or not: only a new connection is unambiguous.
  if (request.headers.expect !== undefined || request.headers['transfer-encoding'] !== undefined)
    return false;
  return Number(request.headers['content-length'] ?? 0) <= CHEAP_REST_BYTES;
}

function dropRest(request: IncomingMessage, done: () => void): void {
  let dropped = 0;
  const timer = setTimeout(finish, LINGER_MS);
  function finish(): void {
    clearTimeout(timer);
    request.removeAllListeners('data');
    request.pause();
    done();
  }
  request.on('data', (chunk: Buffer) => {
    dropped += chunk.length;
    if (dropped > LINGER_BYTES) finish();
  });
  request.once('end', finish);
  request.once('close', finish);
}
