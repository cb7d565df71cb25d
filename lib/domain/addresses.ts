import { isIP } from 'node:net';
import ipaddr from 'ipaddr.js';

/**
 * Whether a packet to this address goes to the open internet, and nowhere that Relay's own network, host or cloud
 * answers. Closed by default: an address passes when it is known to be global unicast, not when it is on no list.
 *
 * Takes the text forms that sockets and DNS report. Anything else (octal, hex, a zone id, a name) is not public.
 */
export function isPublicAddress(address: string): boolean {
  const family = isIP(address);
  if (family === 0 || address.includes('%')) return false;
  // `process` turns ::ffff:a.b.c.d into a.b.c.d; every other form that carries an IPv4 address is in a range of its own.
  const parsed = ipaddr.process(address);
  if (parsed.range() !== 'unicast') return false;
  return parsed instanceof ipaddr.IPv6 ? isGlobalV6(parsed) : parsed.toString() !== AZURE_HOST;
}

/** The virtual public address by which an Azure host serves its guests: metadata, DNS, agent. */
const AZURE_HOST = '168.63.129.16';

/** Only 2000::/3 is allocated as global unicast; the library calls the rest, such as ::2 and 4000::1, unicast too. */
function isGlobalV6(address: ipaddr.IPv6): boolean {
  const [first = 0] = address.parts;
  return first >> 13 === 0b001 && !isIsatap(address);
}

/** ISATAP hides an IPv4 address in the interface half of an ordinary prefix, behind the mark 0000:5efe or 0200:5efe. */
function isIsatap({ parts }: ipaddr.IPv6): boolean {
  return ((parts[4] ?? 0) & 0xfdff) === 0 && parts[5] === 0x5efe;
}
