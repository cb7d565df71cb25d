import type { TransportFailure } from '../../../lib/domain/vocabulary.ts';
import type { Dial } from './guard.ts';

export interface NamedFailure {
  failure: TransportFailure;
  /** Made of our own words and the error's code: a library's message may quote a URL or what the endpoint sent. */
  detail: string;
}

/** Names what went wrong on the way, once, at the edge. What it means depends on how far the connection had come. */
export function nameFailure(
  reported: unknown,
  { phase, error: first }: Pick<Dial, 'phase' | 'error'>,
): NamedFailure {
  const error = codeOf(reported) === 'UND_ERR_SOCKET' && first !== null ? first : reported;
  const code = codeOf(error);
  const named = OWN[code] ?? byCode(code, phase);
  return {
    failure: named[0],
    detail: typeof named[1] === 'string' ? `${named[1]} (${code})` : named[1](error),
  };
}

type Naming = readonly [TransportFailure, string | ((error: unknown) => string)];

const messageOf = (error: unknown) => (error instanceof Error ? error.message : '');
const printable = (text: string) => text.replace(/[^\x20-\x7e]/g, '?').slice(0, 200);

/** Errors whose meaning does not depend on the moment. */
const OWN: Record<string, Naming> = {
  RELAY_REFUSED: ['refused', messageOf],
  RELAY_DNS: ['dns', messageOf],
  RELAY_CLOSED: ['other', () => 'the sender is closing'],
  // A header that no HTTP message can carry, from a row that was written past the API's checks. It will not get better.
  UND_ERR_INVALID_ARG: ['refused', (error) => `the request cannot be built: ${printable(messageOf(error))}`],
  UND_ERR_NOT_SUPPORTED: [
    'refused',
    (error) => `the request cannot be built: ${printable(messageOf(error))}`,
  ],
  UND_ERR_HEADERS_OVERFLOW: ['protocol', 'the response headers are too long'],
  UND_ERR_RES_CONTENT_LENGTH_MISMATCH: ['protocol', 'the response is not as long as it says'],
  ECONNREFUSED: ['connect', 'the connection was refused'],
  EHOSTUNREACH: ['connect', 'no route to the host'],
  ENETUNREACH: ['connect', 'no route to the network'],
  ETIMEDOUT: ['timeout', 'the connection timed out'],
  // Our own shortage, not the endpoint's fault.
  EMFILE: ['other', 'out of file descriptors'],
  ENFILE: ['other', 'out of file descriptors'],
  EADDRNOTAVAIL: ['other', 'out of local ports'],
};

function byCode(code: string, phase: Dial['phase']): Naming {
  if (phase === 'securing' || TLS.test(code)) return ['tls', 'the TLS connection failed'];
  if (code.startsWith('HPE_') || code === 'HTTPParserError')
    return ['protocol', 'the response is not HTTP/1.1'];
  if (code === 'UND_ERR_SOCKET') return SOCKET;
  if (code === 'ECONNRESET' || code === 'EPIPE' || code === 'ECONNABORTED') {
    return phase === 'open' ? ['reset', 'the connection was reset'] : ['connect', 'the connection was reset'];
  }
  return phase === 'connecting' ? ['connect', 'the connection failed'] : ['other', 'the request failed'];
}

const TLS = /^(?:ERR_TLS|ERR_SSL|ERR_OSSL|EPROTO|CERT_|UNABLE_TO_|SELF_SIGNED|DEPTH_ZERO|HOSTNAME_MISMATCH)/;

/** undici has one code for a closed connection and for an answer out of place, and tells them apart by the text. */
const SOCKET: Naming = ['reset', 'the connection was closed without an answer'];

function codeOf(error: unknown): string {
  const code = (error as { code?: unknown } | null | undefined)?.code;
  if (code === 'UND_ERR_SOCKET' && messageOf(error).startsWith('bad ')) return 'HPE_UNEXPECTED_RESPONSE';
  if (typeof code === 'string') return printable(code);
  return error instanceof Error ? printable(error.name) : 'unknown';
}
