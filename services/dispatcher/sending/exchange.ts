import type { Dispatcher } from 'undici';
import type { SendResult } from '../../../lib/domain/send-result.ts';
import type { TimerWheel, WheelTimer } from '../../../lib/runtime/timer-wheel.ts';
import type { Connection } from './connections.ts';
import { type NamedFailure, nameFailure } from './failures.ts';
import type { OutboundRequest } from './outbound-request.ts';

export interface ExchangeOptions {
  wheel: TimerWheel;
  maxResponseBytes: number;
  /** Called once. `reusable`: the response was read to its end and the connection may carry another request. */
  finish: (result: SendResult, reusable: boolean) => void;
}

/**
 * One request and its response on one connection, as undici's bare handler: no streams, no promises and no AbortSignal,
 * which together cost more than the rest of a send.
 *
 * Three limits end it, whichever comes first: the total deadline; until the request is written, the connect limit; after
 * that, the idle limit since the last sign of life. Once status and headers have arrived the endpoint has answered, and
 * that answer stands even if the limits, the cap or a broken connection then cut the body short: a 200 whose body drips
 * for ever is a success with what was read.
 */
export class Exchange implements Dispatcher.DispatchHandler {
  readonly #request: OutboundRequest;
  readonly #connection: Connection;
  readonly #options: ExchangeOptions;
  readonly #startedAt = performance.now();
  #timer: WheelTimer | null = null;
  #lastSignAt = 0;
  #sent = false;
  #finished = false;

  #status = 0;
  #firstByteMs = 0;
  #retryAfter: readonly string[] = NONE;
  #chunks: Buffer[] | null = null;
  #size = 0;
  #closing = false;

  constructor(request: OutboundRequest, connection: Connection, options: ExchangeOptions) {
    this.#request = request;
    this.#connection = connection;
    this.#options = options;
  }

  start(): void {
    const { url, headers, body } = this.#request;
    const { client, keep } = this.#connection;
    this.#armTimer(this.#startedAt);
    client.dispatch(
      { path: url.pathname + url.search, method: 'POST', headers: headers as string[], body, reset: !keep },
      this,
    );
  }

  // --- called by undici ---

  /** Just before the request is written. */
  onConnect(abort: (error?: Error) => void): void {
    // Looked at once more: the process may have been frozen since the request was handed in, and its lease be gone.
    if (this.#finished || performance.now() >= this.#request.deadlineAt) {
      this.#expire(performance.now());
      abort();
    }
  }

  onRequestSent(): void {
    this.#sent = true;
    this.#lastSignAt = performance.now();
  }

  onResponseStarted(): void {
    this.#lastSignAt = performance.now();
    if (this.#firstByteMs === 0) this.#firstByteMs = this.#lastSignAt - this.#startedAt;
  }

  onHeaders(status: number, headers: Buffer[]): boolean {
    // 1xx announces, the answer comes later.
    if (status < 200) return true;
    this.#status = status;
    this.#closing = headerValues(headers, 'connection').some((value) =>
      value.toLowerCase().includes('close'),
    );
    if (status === 429 || status === 503) this.#retryAfter = headerValues(headers, 'retry-after');
    return true;
  }

  onData(chunk: Buffer): boolean {
    this.#lastSignAt = performance.now();
    const room = this.#options.maxResponseBytes - this.#size;
    if (room > 0) {
      // Copied, because a view would keep the whole read buffer of 64 KiB alive.
      this.#chunks ??= [];
      this.#chunks.push(Buffer.from(chunk.subarray(0, room)));
      this.#size += Math.min(chunk.length, room);
    }
    // More than we keep: dropped rather than drained, for the rest may be endless.
    if (chunk.length > room) this.#finish(this.#response(this.#lastSignAt), false);
    return true;
  }

  onComplete(): void {
    const result = this.#response(performance.now());
    const reusable = this.#connection.keep && !this.#closing;
    if (!reusable || this.#unsentBytes() === 0) this.#finish(result, reusable);
    // Either the write of a fast exchange is only not yet reported as done, as TLS does in the next turn of the event
    // loop; or the answer came before the whole request was taken, and the rest of it would run into the next one.
    else setImmediate(() => this.#finish(result, this.#unsentBytes() === 0));
  }

  onError(error: unknown): void {
    if (this.#finished) return;
    const now = performance.now();
    if (this.#status !== 0) this.#finish(this.#response(now), false);
    else this.#fail(nameFailure(error, this.#connection.dial), now);
  }

  #unsentBytes(): number {
    return this.#connection.dial.socket?.writableLength ?? 0;
  }

  // --- limits ---

  #limitAt(): number {
    const { deadlineAt, connectTimeoutMs, idleTimeoutMs } = this.#request;
    const phaseEndsAt = this.#sent ? this.#lastSignAt + idleTimeoutMs : this.#startedAt + connectTimeoutMs;
    return Math.min(deadlineAt, phaseEndsAt);
  }

  /**
   * Signs of life do not move the timer, which would cost on every send: it looks when it fires, and never sleeps past an
   * idle limit that may have begun in the meantime.
   */
  #armTimer(now: number): void {
    const at = Math.min(this.#limitAt(), now + this.#request.idleTimeoutMs);
    this.#timer = this.#options.wheel.schedule(at - now, () => this.#onTimer());
  }

  #onTimer(): void {
    const now = performance.now();
    if (now >= this.#limitAt()) this.#expire(now);
    else this.#armTimer(now);
  }

  #expire(now: number): void {
    if (this.#status !== 0) this.#finish(this.#response(now), false);
    else if (this.#connection.dial.phase === 'resolving') this.#fail(UNRESOLVED, now);
    else this.#fail({ failure: 'timeout', detail: this.#whatWasLate(now) }, now);
  }

  #whatWasLate(now: number): string {
    const { deadlineAt, connectTimeoutMs, idleTimeoutMs } = this.#request;
    if (now >= deadlineAt) {
      return this.#sent ? 'no answer before the deadline' : 'the request was not sent before the deadline';
    }
    return this.#sent
      ? `nothing was received for ${idleTimeoutMs} ms`
      : `no connection within ${connectTimeoutMs} ms (${this.#connection.dial.phase})`;
  }

  // --- results ---

  #response(now: number): SendResult {
    return {
      kind: 'response',
      status: this.#status,
      retryAfter: this.#retryAfter,
      snippet: joined(this.#chunks),
      firstByteMs: this.#firstByteMs,
      durationMs: now - this.#startedAt,
    };
  }

  #fail({ failure, detail }: NamedFailure, now: number): void {
    const durationMs = now - this.#startedAt;
    this.#finish({ kind: 'failure', failure, detail, requestSent: this.#sent, durationMs }, false);
  }

  #finish(result: SendResult, reusable: boolean): void {
    if (this.#finished) return;
    this.#finished = true;
    if (this.#timer !== null) this.#options.wheel.cancel(this.#timer);
    this.#options.finish(result, reusable);
  }
}

const UNRESOLVED: NamedFailure = { failure: 'dns', detail: 'the name could not be resolved in time' };
const NONE: readonly string[] = Object.freeze([]);
const NO_BYTES = Buffer.alloc(0);

function joined(chunks: readonly Buffer[] | null): Buffer {
  if (chunks === null) return NO_BYTES;
  return chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks);
}

/** The values of a header in undici's flat list of raw names and values. `name` in lower case. */
function headerValues(headers: readonly Buffer[], name: string): readonly string[] {
  let values: string[] | null = null;
  for (let i = 0; i + 1 < headers.length; i += 2) {
    // The length tells nearly all names apart without making a string of them.
    if (headers[i]!.length !== name.length) continue;
    if (headers[i]!.toString('latin1').toLowerCase() !== name) continue;
    values ??= [];
    values.push(headers[i + 1]!.toString('latin1'));
  }
  return values ?? NONE;
}
