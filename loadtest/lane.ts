import { connect, type Socket } from 'node:net';

/** Status 0 means that no answer came: what became of the request is unknown, and the text says why. */
export interface Answer {
  status: number;
  text: string;
}

export interface ParsedAnswer extends Answer {
  /** Whether the server will close the connection behind it. */
  closes: boolean;
}

/**
 * One keep-alive connection with one request at a time. A bare socket, because the generator shares the machine with what it
 * measures: a client library costs two to three times the CPU of the requests it sends.
 */
export class Lane {
  readonly #host: string;
  readonly #port: number;
  #socket: Socket | null = null;
  #received: Buffer[] = [];
  #waiting: ((answer: Answer) => void) | null = null;
  #sentAtMs = 0;

  constructor(host: string, port: number) {
    this.#host = host;
    this.#port = port;
  }

  /** Opens the connection ahead of the first request. */
  open(): void {
    this.#connection();
  }

  /** Sends whole request bytes; `done` is called exactly once. The lane must be free. */
  send(request: string, atMs: number, done: (answer: Answer) => void): void {
    this.#waiting = done;
    this.#sentAtMs = atMs;
    this.#connection().write(request, 'latin1');
  }

  /** Gives up on a request that has waited longer than `limitMs`. */
  expire(nowMs: number, limitMs: number): void {
    if (this.#waiting && nowMs - this.#sentAtMs > limitMs) this.#lost('timeout');
  }

  close(): void {
    this.#socket?.destroy();
    this.#socket = null;
  }

  #connection(): Socket {
    if (this.#socket) return this.#socket;
    const socket = connect({ host: this.#host, port: this.#port, noDelay: true });
    this.#socket = socket;
    this.#received = [];
    const gone = (why: string) => {
      if (this.#socket === socket) this.#lost(why);
    };
    socket.on('data', (chunk) => this.#read(chunk));
    socket.on('error', (error: NodeJS.ErrnoException) => gone(error.code ?? error.message));
    socket.on('close', () => gone('closed'));
    return socket;
  }

  #read(chunk: Buffer): void {
    this.#received.push(chunk);
    const answer = parseAnswer(this.#received.length === 1 ? chunk : Buffer.concat(this.#received));
    if (!answer) return;
    this.#received = [];
    if (answer.closes) this.close();
    this.#finish(answer);
  }

  #lost(why: string): void {
    this.close();
    this.#finish({ status: 0, text: why });
  }

  #finish(answer: Answer): void {
    const done = this.#waiting;
    this.#waiting = null;
    done?.(answer);
  }
}

/** Null while the answer is not whole. Throws on an answer without content-length, which Relay never gives. */
export function parseAnswer(bytes: Buffer): ParsedAnswer | null {
  const headEnd = bytes.indexOf('\r\n\r\n');
  if (headEnd < 0) return null;
  const head = bytes.toString('latin1', 0, headEnd);
  const length = /\r\ncontent-length: *(\d+)/i.exec(head)?.[1];
  if (length === undefined) throw new Error(`an answer without content-length: ${head.slice(0, 200)}`);
  const end = headEnd + 4 + Number(length);
  if (bytes.length < end) return null;
  return {
    status: Number(head.slice(9, 12)),
    text: bytes.toString('utf8', headEnd + 4, end),
    closes: /\r\nconnection: *close/i.test(head),
  };
}
