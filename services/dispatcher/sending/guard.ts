import { isIP, type LookupFunction, type Socket } from 'node:net';
import { buildConnector } from 'undici';
import { FORBIDDEN_ADDRESS } from '../../../lib/domain/destination.ts';
import type { Resolve } from './resolver.ts';

/** The destination is against the policy. `message` is safe to store. */
export class RefusedError extends Error {
  readonly code = 'RELAY_REFUSED';
  override readonly name = 'RefusedError';
}

/** How far one connection has come; what an error or a timeout means depends on it. */
export interface Dial {
  phase: 'resolving' | 'connecting' | 'securing' | 'open';
  /** Kept so that it can be destroyed half-open: destroying an undici Client does not reach it. */
  socket: Socket | null;
  /** The first error of the socket. What undici reports is the last, which may be a mere "closed" after the real one. */
  error: Error | null;
}

export interface GuardOptions {
  isAllowedAddress: (address: string) => boolean;
  resolve: Resolve;
  /** Trusted authorities instead of the usual ones. */
  ca?: string | Buffer;
}

/** Reports progress in `dial`; connects to nothing but an address that was judged for this very connection. */
export type GuardedConnect = (
  dial: Dial,
  options: buildConnector.Options,
  callback: buildConnector.Callback,
) => void;

/** A name with more addresses than this is served by the first ones: judging thousands would be a cheap attack. */
const MAX_ADDRESSES = 16;

/**
 * The one way out. A literal address is judged before it is dialled (it never reaches a lookup); a name is resolved once
 * and the connection is made to what was judged, so that a DNS answer that changes in between changes nothing; the address
 * that answered is judged once more. The host name stays in use for SNI, certificate check and Host header.
 */
export function createGuard({ isAllowedAddress, resolve, ca }: GuardOptions): GuardedConnect {
  const dialer = buildConnector({
    lookup: guardedLookup(resolve, isAllowedAddress),
    // Said out loud, because NODE_TLS_REJECT_UNAUTHORIZED would otherwise turn it off for the whole process.
    rejectUnauthorized: true,
    allowH2: false,
    // Our own limits end a dial; undici's are coarse.
    timeout: 0,
    maxCachedSessions: 1_000,
    ...(ca === undefined ? {} : { ca }),
    // Node gives up on an address after 250 ms when there is another; one lost SYN or a far continent takes longer.
    autoSelectFamily: true,
    autoSelectFamilyAttemptTimeout: 1_000,
  } as buildConnector.BuildOptions) as (...args: Parameters<buildConnector.connector>) => Socket;

  return (dial, options, callback) => {
    const { hostname, protocol } = options;
    dial.phase = isIP(hostname) === 0 ? 'resolving' : 'connecting';
    if (isIP(hostname) !== 0 && !isAllowedAddress(hostname)) {
      return process.nextTick(callback, new RefusedError(FORBIDDEN_ADDRESS), null);
    }
    const socket = dialer(options, (error, connected) => {
      if (error !== null) return callback(error, null);
      const objection = judgeRemote(connected, isAllowedAddress);
      if (objection !== null) {
        connected.destroy();
        return callback(objection, null);
      }
      dial.phase = 'open';
      callback(null, connected);
    });
    dial.socket = socket;
    dial.error = null;
    socket.prependOnceListener('error', (error) => {
      dial.error = error;
    });
    socket.once('lookup', () => {
      dial.phase = 'connecting';
    });
    if (protocol === 'https:') {
      socket.prependOnceListener('connect', () => {
        dial.phase = 'securing';
        // First of all listeners, so before the handshake tells the far side which name was wanted.
        const objection = judgeRemote(socket, isAllowedAddress);
        if (objection !== null) socket.destroy(objection);
      });
    }
  };
}

/** All addresses must be allowed: a name that mixes public and private ones is an attack or a mistake, and both are told. */
function guardedLookup(resolve: Resolve, isAllowedAddress: (address: string) => boolean): LookupFunction {
  return (hostname, options, callback) => {
    resolve(hostname).then(
      (all) => {
        const addresses = all.slice(0, MAX_ADDRESSES);
        if (!addresses.every(isAllowedAddress)) return callback(new RefusedError(FORBIDDEN_ADDRESS), '', 0);
        const found = addresses.map((address) => ({ address, family: isIP(address) }));
        if (options.all) return callback(null, found);
        callback(null, found[0]?.address ?? '', found[0]?.family ?? 0);
      },
      (error: Error) => callback(error, '', 0),
    );
  };
}

function judgeRemote(socket: Socket, isAllowedAddress: (address: string) => boolean): Error | null {
  const { remoteAddress } = socket;
  // No address: the far side hung up in the moment it answered.
  if (remoteAddress === undefined) return Object.assign(new Error('closed'), { code: 'ECONNRESET' });
  return isAllowedAddress(remoteAddress) ? null : new RefusedError(FORBIDDEN_ADDRESS);
}
