import type { IncomingMessage, ServerResponse } from 'node:http';
import { MAX_POSTED_BYTES, MAX_POSTED_EVENTS } from '../../../lib/domain/limits.ts';
import {
  type ItemReader,
  jsonItems,
  ndjsonItems,
  type PostedItem,
} from '../../../lib/domain/posted-items.ts';
import { takeBody } from '../http/body.ts';
import { invalid, Problem, tryAgain } from '../http/problem.ts';

/** What bodies of batches may hold in this process at one time: 64 MiB. */
const MAX_HELD_BYTES = 67_108_864;
/** What a body is given at first: what it says that it needs, as long as that is little. */
const FIRST_BYTES = { least: 65_536, most: 524_288 };

/** A batch as it came, cut into its items. */
export interface Batch {
  bytes: Buffer;
  items: readonly PostedItem[];
}

/** Bounds what the bodies of batches take in memory, all of them together. */
export class BatchBodies {
  #held = 0;

  /**
   * Reads a body and cuts it while it arrives, then does `work` with it; what it takes is held until that is done. Throws a 400 Problem for
   * what is no batch, 413 for what is too large, 415 for what is of another type, 503 while too much is held.
   */
  async read<T>(
    request: IncomingMessage,
    response: ServerResponse,
    work: (batch: Batch) => Promise<T>,
  ): Promise<T | 'aborted'> {
    const reader = readerFor(request);
    if (this.#held >= MAX_HELD_BYTES) throw full();
    const declared = Number(request.headers['content-length'] ?? 0);
    const body = new GrowingBody(declared, (bytes) => this.#hold(bytes));
    try {
      const batch = await takeBody(request, response, {
        maxBytes: MAX_POSTED_BYTES,
        take: (chunk) => {
          body.append(chunk);
          judge(reader, reader.feed(body.bytes, body.length));
        },
        whole: () => {
          judge(reader, reader.finish(body.bytes, body.length));
          if (reader.items.length === 0) throw invalid('body', 'must hold at least one event');
          return { bytes: body.bytes, items: reader.items };
        },
      });
      return batch === 'aborted' ? batch : await work(batch);
    } finally {
      this.#held -= body.bytes.length;
    }
  }

  #hold(bytes: number): void {
    if (this.#held + bytes > MAX_HELD_BYTES) throw full();
    this.#held += bytes;
  }
}

function full(): Problem {
  return tryAgain('overloaded', 'too many batches are being read; nothing was stored of this one', 1);
}

function judge({ items }: ItemReader, fault: string | null): void {
  if (items.length > MAX_POSTED_EVENTS) {
    const rule = `holds more than ${MAX_POSTED_EVENTS} events`;
    throw new Problem('payload_too_large', `body: ${rule}`, { errors: [{ field: 'body', rule }] });
  }
  if (fault !== null) throw invalid('body', fault);
}

const ARRAY_TYPE = /^application\/json\s*(;|$)/i;
const LINES_TYPE = /^application\/(x-)?ndjson\s*(;|$)/i;

function readerFor({ headers }: IncomingMessage): ItemReader {
  const encoding = headers['content-encoding'];
  if (encoding !== undefined && encoding !== 'identity') {
    throw new Problem('unsupported_media_type', 'content-encoding: send batches unencoded');
  }
  const type = headers['content-type'] ?? 'application/json';
  if (LINES_TYPE.test(type)) return ndjsonItems();
  if (ARRAY_TYPE.test(type)) return jsonItems();
  throw new Problem(
    'unsupported_media_type',
    'a batch is a JSON array (content-type application/json) or NDJSON (application/x-ndjson)',
  );
}

/** Bytes that arrive one after the other, in one buffer: what is cut out of it is not copied. */
class GrowingBody {
  bytes = Buffer.alloc(0);
  length = 0;
  readonly #first: number;
  readonly #hold: (bytes: number) => void;

  /** @param hold is told by how much it grows, and may throw */
  constructor(declared: number, hold: (bytes: number) => void) {
    this.#first = declared > 0 ? Math.min(declared, FIRST_BYTES.most) : FIRST_BYTES.least;
    this.#hold = hold;
  }

  append(chunk: Buffer): void {
    const needed = this.length + chunk.length;
    if (needed > this.bytes.length) this.#grow(needed);
    chunk.copy(this.bytes, this.length);
    this.length = needed;
  }

  #grow(needed: number): void {
    const size = Math.max(this.#first, needed, Math.min(2 * this.bytes.length, MAX_POSTED_BYTES));
    this.#hold(size - this.bytes.length);
    const grown = Buffer.allocUnsafe(size);
    this.bytes.copy(grown, 0, 0, this.length);
    this.bytes = grown;
  }
}
