import { isPublicAddress } from '../../../lib/domain/addresses.ts';
import { brokenRule, type DestinationPolicy } from '../../../lib/domain/destination.ts';
import type { SendResult } from '../../../lib/domain/send-result.ts';
import type { TransportFailure } from '../../../lib/domain/vocabulary.ts';
import { TimerWheel } from '../../../lib/runtime/timer-wheel.ts';
import { type Connection, Connections } from './connections.ts';
import { Exchange } from './exchange.ts';
import { createGuard } from './guard.ts';
import type { OutboundRequest } from './outbound-request.ts';
import { createResolver, type Resolve } from './resolver.ts';

export type { OutboundRequest } from './outbound-request.ts';

export interface SenderOptions {
  policy: DestinationPolicy;
  /** How much of a response's body is read; what is longer is cut by dropping the connection. */
  maxResponseBytes: number;
  /** Idle connections kept over all endpoints together; the longest idle are closed first. */
  maxIdleClients: number;
  /** How long one is kept; less where the server says so. */
  clientMaxIdleMs?: number;
  resolver?: Resolve;
  /** Which addresses may be dialled, when the policy's own judgement is not meant (a test's stand-in for the internet). */
  isAllowedAddress?: (address: string) => boolean;
  /** Trusted certificate authorities instead of the usual ones. */
  ca?: string | Buffer;
}

export interface SenderStats {
  /** Connections in use, which is sends under way. */
  busy: number;
  idle: number;
  /** Origins with a connection. */
  origins: number;
  /** Connections dialled since the start. */
  dialled: number;
  /** Sends refused by policy since the start. */
  refused: number;
}

/** Sends requests to endpoints; see `createSender`. */
export interface Sender {
  /** Never rejects: whatever happens on the way is a result. */
  send(request: OutboundRequest): Promise<SendResult>;
  stats(): SenderStats;
  /** Ends sends under way (failure `other`) and idle connections; resolves when their sockets are closed. */
  close(): Promise<void>;
}

/**
 * The only way by which Relay reaches an endpoint. HTTP/1.1, one request at a time on a connection, redirects not followed,
 * proxies of the environment ignored, nothing decompressed, addresses guarded (see `guard.ts`).
 *
 * A request is never sent twice: when it was written on a kept connection that the server was just closing, the result is
 * a `reset` and the retry policy decides. That is rare: a server's close is noticed while the connection is idle, and an
 * origin that makes a habit of it is remembered (see `silent-closers.ts`).
 */
export function createSender(options: SenderOptions): Sender {
  const {
    policy,
    maxResponseBytes,
    maxIdleClients: maxIdle,
    clientMaxIdleMs: maxIdleMs = 4_000,
    ca,
  } = options;
  const isAllowedAddress =
    options.isAllowedAddress ?? ((address) => policy.allowPrivate || isPublicAddress(address));
  const resolve = options.resolver ?? createResolver({ systemFallback: policy.allowPrivate });
  const connect = createGuard({ isAllowedAddress, resolve, ...(ca === undefined ? {} : { ca }) });
  const connections = new Connections({ connect, maxIdle, maxIdleMs });
  const wheel = new TimerWheel();
  let refused = 0;
  let closed = false;

  /** A kept connection proves that scheme, port and host were judged; only the other parts remain to be looked at. */
  function connectionFor(url: URL): Connection | { rule: string } {
    const { origin } = url;
    if (url.username === '' && url.password === '' && url.hash === '') {
      const idle = connections.takeIdle(origin);
      if (idle !== null) return idle;
    }
    const rule = brokenRule(url, policy);
    return rule === null ? connections.open(origin) : { rule };
  }

  function send(request: OutboundRequest): Promise<SendResult> {
    return new Promise((resolve) => {
      if (closed) return resolve(unsent('other', 'the sender is closing'));
      if (performance.now() >= request.deadlineAt) {
        return resolve(unsent('timeout', 'the request was not sent before the deadline'));
      }
      const connection = connectionFor(request.url);
      if ('rule' in connection) {
        refused++;
        return resolve(unsent('refused', connection.rule));
      }
      const finish = (result: SendResult, reusable: boolean) => {
        if (result.kind === 'failure') noteFailure(result.failure, connection);
        if (reusable) connections.release(connection);
        else connections.discard(connection);
        resolve(result);
      };
      new Exchange(request, connection, { wheel, maxResponseBytes, finish }).start();
    });
  }

  function noteFailure(failure: TransportFailure, connection: Connection): void {
    if (failure === 'refused') refused++;
    if (failure === 'reset') connections.noteReset(connection);
  }

  return {
    send,
    stats: () => ({ ...connections.counts, refused }),
    close: async () => {
      closed = true;
      await connections.close(Object.assign(new Error('the sender is closing'), { code: 'RELAY_CLOSED' }));
    },
  };
}

function unsent(failure: TransportFailure, detail: string): SendResult {
  return { kind: 'failure', failure, detail, requestSent: false, durationMs: 0 };
}
