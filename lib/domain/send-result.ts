import type { TransportFailure } from './vocabulary.ts';

/**
 * What one request to an endpoint came to. A response exists as soon as its status line and headers have arrived: what
 * then happens to the body (cut at our limit, trickling, broken off) does not change what the endpoint said.
 */
export type SendResult =
  | Response
  | {
      kind: 'failure';
      failure: TransportFailure;
      /** Safe to store and to show: no URL, no secret, at most 500 characters. */
      detail: string;
      /** Whether the request was handed to the network, so that the endpoint may have acted on it. */
      requestSent: boolean;
      durationMs: number;
    };

type Response = (StatusOfHttp | Reply) & {
  kind: 'response';
  /** The Retry-After values as received, for 429 and 503 only; empty otherwise. */
  retryAfter: readonly string[];
  /** The first bytes of the body, at most the configured limit. Not text yet: see `snippet.ts`. */
  snippet: Buffer;
  /** From the start of the send to the first byte of the response, ms. */
  firstByteMs: number;
  /** From the start of the send to the end of it, ms. */
  durationMs: number;
};

interface StatusOfHttp {
  status: number;
  /** The status that means the same, where the answer says more than its status does: a transport's reading of it. */
  meaning?: number;
}

/** Of a mail server: a transport tells which HTTP status means the same. */
interface Reply {
  status: null;
  meaning: number;
}

/** The HTTP status by which an answer is judged. */
export function statusMeant(response: Response): number {
  return response.status === null ? response.meaning : (response.meaning ?? response.status);
}
