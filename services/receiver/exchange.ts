import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from 'node:http';
import type { Exchange } from './behaviours.ts';
import type { Verification } from './signatures.ts';
import type { ReceiverState } from './state.ts';
import type { Target } from './target.ts';

/** One delivery request as a listener sees it, when its fate is decided. */
export interface ReceivedDelivery {
  /** Path and query as requested. */
  url: string;
  /** Empty when the request named none. */
  deliveryId: string;
  eventId: string;
  eventType: string;
  /** 0 when the header is absent. */
  attempt: number;
  /** What was answered; 0 when nothing was. */
  status: number;
  /** Null on routes that do not verify. */
  verification: Verification | null;
  headers: IncomingHttpHeaders;
  /** Null on routes that do not read bodies, unless the receiver was asked to keep them. */
  body: Buffer | null;
  /** Milliseconds since 1970 at which the headers were read. */
  atMs: number;
}

export interface Arrival {
  target: Target;
  request: IncomingMessage;
  response: ServerResponse;
  body: Buffer | null;
  atMs: number;
}

/** Counts a request that was read in full and gives the behaviour of its URL the means to answer it. */
export function openExchange(
  state: ReceiverState,
  arrival: Arrival,
  onDelivery: ((delivery: ReceivedDelivery) => void) | undefined,
): Exchange {
  const { target, request, response, body, atMs } = arrival;
  const { headers } = request;
  const { headerPrefix, ledger } = state;
  // An endpoint may have a prefix of its own, which the receiver cannot know; two schemes name the delivery under every prefix.
  const named =
    headers[`${headerPrefix}-delivery-id`] ?? headers['webhook-id'] ?? headers['x-github-delivery'];
  const deliveryId = text(named);
  const eventId = text(headers[`${headerPrefix}-event-id`]);
  const row = deliveryId === '' ? null : ledger.arrived(deliveryId, eventId, atMs);
  if (row === null) state.counters.unidentified += 1;

  const exchange: Exchange = {
    target,
    headers,
    body,
    response,
    verification: null,
    reply(status, words, extra = []) {
      exchange.note(status);
      writeReply(response, status, words, extra);
    },
    note(status) {
      if (row !== null) ledger.answered(row, status);
      if (!onDelivery) return;
      const eventType = text(headers[`${headerPrefix}-event-type`]);
      const attempt = Number(text(headers[`${headerPrefix}-attempt`])) || 0;
      const { verification } = exchange;
      const url = request.url ?? '/';
      onDelivery({ url, deliveryId, eventId, eventType, attempt, status, verification, headers, body, atMs });
    },
    later(delayMs, action) {
      const gaveUp = () => {
        clearTimeout(timer);
        exchange.note(0);
      };
      const timer = setTimeout(() => {
        response.off('close', gaveUp);
        action();
      }, delayMs);
      response.once('close', gaveUp);
    },
    every(intervalMs, action) {
      const timer = setInterval(action, intervalMs);
      response.once('close', () => clearInterval(timer));
    },
  };
  return exchange;
}

function writeReply(response: ServerResponse, status: number, words: string, extra: readonly string[]): void {
  const bodiless = status === 204 || status === 304;
  const length = bodiless ? [] : ['content-length', String(Buffer.byteLength(words))];
  response.writeHead(status, [...length, ...extra]);
  // Without a body the whole answer is one plain write, which a load test notices.
  if (bodiless || words === '') response.end();
  else response.end(words);
}

function text(header: string | string[] | undefined): string {
  return header === undefined ? '' : Array.isArray(header) ? header.join(',') : header;
}
