import {
  createServer,
  type IncomingMessage,
  type OutgoingHttpHeader,
  type OutgoingHttpHeaders,
  type Server,
  ServerResponse,
} from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type { Bind } from '../../lib/config/env.ts';
import { pause } from '../../lib/runtime/pause.ts';
import { createApp } from './app.ts';
import type { ApiContext } from './context.ts';
import { Problem, type ProblemCode, problemBody } from './http/problem.ts';
import { requestIdOf } from './http/request-id.ts';
import { refuse } from './http/respond.ts';
import { batchHandler } from './post-batch.ts';
import { postEvent } from './post-event.ts';
import { postMessage } from './post-message.ts';
import { routes } from './routes.ts';

/** Longer than the 60 s for which the usual proxies keep idle connections: the side that sends requests should be the one to close. */
const KEEP_ALIVE_MS = 75_000;
const HEADERS_TIMEOUT_MS = 10_000;
const MAX_HEADER_BYTES = 16_384;
/** What finds the queue of new connections full waits for seconds; the usual 511 are fewer than a fleet of producers opens at once. */
const BACKLOG = 4_096;
const HOT_PATH = '/v1/events';
const BATCH_PATH = '/v1/events/batch';
const MESSAGE_PATH = '/v1/messages';

export interface DrainOptions {
  /** How long to go on serving, each answer with `connection: close`, before the door is shut, ms. */
  lameDuckMs: number;
  /** When what is still open is cut, ms from the beginning. */
  deadlineMs: number;
}

/** The API's HTTP server: what takes events in front, express behind it. */
export class ApiServer {
  readonly #context: ApiContext;
  readonly #server: Server;
  #draining = false;

  constructor(context: ApiContext) {
    this.#context = context;
    const app = createApp(context, routes);
    const postBatch = batchHandler(context);
    const Response = responseClass(() => this.#draining);
    // Express gives each response a prototype of its own, which would hide the class.
    Object.assign((app as unknown as { response: object }).response, {
      writeHead: Response.prototype.writeHead,
    });
    this.#server = createServer(
      {
        ServerResponse: Response,
        maxHeaderSize: MAX_HEADER_BYTES,
        keepAliveTimeout: KEEP_ALIVE_MS,
        headersTimeout: Math.min(HEADERS_TIMEOUT_MS, context.config.bodyTimeoutMs),
        // From the first byte of a request to its last: this is what ends a body that stalls (see `answerBroken`).
        requestTimeout: context.config.bodyTimeoutMs,
        connectionsCheckingInterval: 1_000,
      },
      serve,
    );
    function serve(request: IncomingMessage, response: ServerResponse): void {
      if (request.method !== 'POST') app(request, response);
      else if (isAt(HOT_PATH, request.url)) void postEvent(context, request, response);
      else if (isAt(BATCH_PATH, request.url)) void postBatch(request, response);
      else if (isAt(MESSAGE_PATH, request.url)) void postMessage(context, request, response);
      else app(request, response);
    }
    // A client that waits for "100 Continue" is told to go on by `readBody`, after everything else was judged.
    this.#server.on('checkContinue', serve);
    this.#server.on('checkExpectation', refuseExpectation);
    this.#server.on('clientError', answerBroken);
  }

  /** Begins to listen; resolves to the address that was really taken. */
  async listen(bind: Bind): Promise<Bind> {
    await new Promise<void>((resolve, reject) => {
      this.#server.once('error', reject);
      this.#server.listen({ ...bind, backlog: BACKLOG }, () => {
        this.#server.off('error', reject);
        resolve();
      });
    });
    const { address, port } = this.#server.address() as AddressInfo;
    return { host: address, port };
  }

  /**
   * Stops in an order that fails no request: readiness says no, and every answer closes its connection, so that clients and proxies
   * move on by themselves; then the door is shut and idle connections go; then what is open is waited for. Closing idle connections first
   * would reset requests that are on their way.
   */
  async drain(options: DrainOptions): Promise<void> {
    const startedAt = performance.now();
    this.#draining = true;
    this.#context.readiness.drain();
    await pause(Math.min(options.lameDuckMs, options.deadlineMs));
    // Connections that the kernel made and nobody accepted yet are reset when the door is shut. Right after a turn of the event loop
    // there are none.
    await new Promise((resolve) => setImmediate(resolve));
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()));
    // A connection whose last request is answered later is idle only then.
    const sweep = setInterval(() => this.#server.closeIdleConnections(), 100);
    const left = options.deadlineMs - (performance.now() - startedAt);
    const cut = setTimeout(() => this.#server.closeAllConnections(), Math.max(0, left));
    await closed;
    clearTimeout(cut);
    clearInterval(sweep);
  }
}

type Headers = OutgoingHttpHeaders | OutgoingHttpHeader[];

/** Responses that ask their client to close the connection while the process drains, also when their request came before. */
function responseClass(isDraining: () => boolean): typeof ServerResponse {
  return class extends ServerResponse {
    override writeHead(status: number, reason?: string | Headers, headers?: Headers): this {
      if (isDraining()) this.shouldKeepAlive = false;
      return typeof reason === 'string'
        ? super.writeHead(status, reason, headers)
        : super.writeHead(status, reason ?? headers);
    }
  } as typeof ServerResponse;
}

function isAt(path: string, url: string | undefined): boolean {
  return url === path || (url?.startsWith(path) === true && url[path.length] === '?');
}

function refuseExpectation(request: IncomingMessage, response: ServerResponse): void {
  const problem = new Problem('expectation_failed', 'the only expectation that can be met is 100-continue');
  refuse(request, response, problem, requestIdOf(request));
}

/** What the parser could not read, or waited for in vain: there is no response object to answer it with, so the bytes are written here. */
function answerBroken(error: NodeJS.ErrnoException, socket: Duplex): void {
  const begun = (socket as Socket & { _httpMessage?: ServerResponse })._httpMessage?.headersSent === true;
  if (begun || !socket.writable || error.code === 'ECONNRESET') {
    socket.destroy();
    return;
  }
  const { code, detail } = brokenAs(error.code);
  const problem = new Problem(code, detail);
  const requestId = crypto.randomUUID();
  const body = problemBody(problem, requestId);
  socket.end(
    `HTTP/1.1 ${problem.status} Refused\r\nconnection: close\r\ncontent-type: application/problem+json\r\n` +
      `x-request-id: ${requestId}\r\ncontent-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
    () => socket.destroy(),
  );
}

function brokenAs(code: string | undefined): { code: ProblemCode; detail: string } {
  switch (code) {
    case 'ERR_HTTP_REQUEST_TIMEOUT':
      return { code: 'request_timeout', detail: 'the request did not arrive in time' };
    case 'HPE_HEADER_OVERFLOW':
      return { code: 'headers_too_large', detail: `headers may have ${MAX_HEADER_BYTES} bytes in all` };
    default:
      return { code: 'invalid_request', detail: 'this is not a request of HTTP/1.1' };
  }
}
