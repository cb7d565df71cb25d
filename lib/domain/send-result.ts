import type { TransportFailure } from './vocabulary.ts';

/**
 * What one request to an endpoint came to. A response exists as soon as its status line and headers have arrived: what
 * then happens to the body (cut at our limit, trickling, broken off) does not change what the endpoint said.
 */
export type SendResult =
  | {
      kind: 'response';
      status: number;
      /** The Retry-After values as received, for 429 and 503 only; empty otherwise. */
      retryAfter: readonly string[];
      /** The first bytes of the body, at most the configured limit. Not text yet: see `snippet.ts`. */
      snippet: Buffer;
      /** From the start of the send to the first byte of the response, ms. */
      firstByteMs: number;
      /** From the start of the send to the end of it, ms. */
      durationMs: number;
    }
  | {
      kind: 'failure';
      failure: TransportFailure;
      /** Safe to store and to show: no URL, no secret, at most 500 characters. */
      detail: string;
      /** Whether the request was handed to the network, so that the endpoint may have acted on it. */
      requestSent: boolean;
      durationMs: number;
    };
