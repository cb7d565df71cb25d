import { isIP } from 'node:net';
import { isPublicAddress } from './addresses.ts';

/** Where Relay may send. Production: public addresses, https, port 443. Development relaxes all three. */
export interface DestinationPolicy {
  readonly allowPrivate: boolean;
  readonly requireHttps: boolean;
  readonly allowedPorts: 'any' | ReadonlySet<number>;
}

export type DestinationCheck = { ok: true; url: URL } | { ok: false; field: 'url'; rule: string };

export const URL_MAX_LENGTH = 2048;

/**
 * Judges a destination as it is written: form, scheme, port, host. Used when an endpoint is saved and again when it is
 * sent to. Names are not resolved here: what they resolve to is judged for each connection, since it may change.
 *
 * Store and use `url.href` of the answer, never the text that came in: the parser turns `0x7f.1`, full-width digits and
 * back-slashes into what would really be dialled, and only that is judged.
 */
export function checkDestination(text: string, policy: DestinationPolicy): DestinationCheck {
  const refuse = (rule: string): DestinationCheck => ({ ok: false, field: 'url', rule });
  if (text.length > URL_MAX_LENGTH) return refuse(`the URL is longer than ${URL_MAX_LENGTH} characters`);
  const url = URL.canParse(text) ? new URL(text) : null;
  if (url === null)
    return refuse('the URL cannot be parsed; write it in full, such as https://example.com/hooks');
  if (url.href.length > URL_MAX_LENGTH) return refuse(`the URL is longer than ${URL_MAX_LENGTH} characters`);
  const rule = brokenRule(url, policy);
  return rule === null ? { ok: true, url } : refuse(rule);
}

/** The first rule that a parsed URL breaks, or null. Says what to do, and never repeats the URL: it may hold a password. */
export function brokenRule(url: URL, policy: DestinationPolicy): string | null {
  return schemeRule(url, policy) ?? partsRule(url) ?? portRule(url, policy) ?? hostRule(url.hostname, policy);
}

function schemeRule(url: URL, policy: DestinationPolicy): string | null {
  if (url.protocol === 'https:') return null;
  if (url.protocol !== 'http:') return 'the scheme must be https';
  return policy.requireHttps ? 'the scheme must be https, not http' : null;
}

function partsRule(url: URL): string | null {
  if (url.username !== '' || url.password !== '') {
    return 'a user name or password in the URL is not accepted: it would be shown with the URL; let the receiver verify the signature header instead';
  }
  return url.hash === '' ? null : 'a fragment (#...) is never sent, so it is not accepted';
}

function portRule(url: URL, { allowedPorts }: DestinationPolicy): string | null {
  const port = effectivePort(url);
  if (port === 0) return 'port 0 cannot be connected to';
  if (allowedPorts === 'any' || allowedPorts.has(port)) return null;
  const allowed = [...allowedPorts].sort((a, b) => a - b).join(', ');
  return `port ${port} is not allowed; allowed: ${allowed === '' ? 'none' : allowed}`;
}

function effectivePort(url: URL): number {
  if (url.port !== '') return Number(url.port);
  return url.protocol === 'https:' ? 443 : 80;
}

function hostRule(hostname: string, policy: DestinationPolicy): string | null {
  const host = hostname.startsWith('[') ? hostname.slice(1, -1) : hostname;
  if (host === '') return 'the host is missing';
  if (isIP(host) !== 0) return addressRule(host, policy);
  // A name may end with the root's dot; it is the same name.
  const labels = host.replace(/\.$/, '').split('.');
  if (labels.some((label) => label === '' || label.length > 63) || host.length > 254) {
    return 'the host is not a valid name: each part has 1 to 63 characters, 253 in all';
  }
  return policy.allowPrivate ? null : nameRule(labels);
}

function addressRule(address: string, policy: DestinationPolicy): string | null {
  return policy.allowPrivate || isPublicAddress(address) ? null : FORBIDDEN_ADDRESS;
}

/** One sentence for every forbidden address: telling which kind it is would map our network for whoever asks. */
export const FORBIDDEN_ADDRESS =
  'the address is not public (private, loopback, link-local, metadata and other special ranges are refused)';

/** Last labels that never name a public host; the resolver of some network might still answer for them. */
const LOCAL_NAMES = new Set([
  'localhost',
  'local',
  'internal',
  'localdomain',
  'intranet',
  'lan',
  'home',
  'corp',
]);

function nameRule(labels: readonly string[]): string | null {
  const last = labels.at(-1) ?? '';
  if (labels.length === 1 || LOCAL_NAMES.has(last) || labels.slice(-2).join('.') === 'home.arpa') {
    return 'the host is a name of a local network; use a public, fully qualified name';
  }
  return null;
}
