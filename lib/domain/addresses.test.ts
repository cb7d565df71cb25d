import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { isPublicAddress } from './addresses.ts';

/** The IANA special-purpose registries and what else must not be reached, each by its first and last address. */
const FORBIDDEN_V4: readonly [name: string, first: string, last: string][] = [
  ['this network 0/8', '0.0.0.0', '0.255.255.255'],
  ['private 10/8', '10.0.0.0', '10.255.255.255'],
  ['shared 100.64/10', '100.64.0.0', '100.127.255.255'],
  ['loopback 127/8', '127.0.0.0', '127.255.255.255'],
  ['link-local 169.254/16', '169.254.0.0', '169.254.255.255'],
  ['private 172.16/12', '172.16.0.0', '172.31.255.255'],
  ['IETF 192.0.0/24', '192.0.0.0', '192.0.0.255'],
  ['documentation 192.0.2/24', '192.0.2.0', '192.0.2.255'],
  ['AS112 192.31.196/24', '192.31.196.0', '192.31.196.255'],
  ['AMT 192.52.193/24', '192.52.193.0', '192.52.193.255'],
  ['6to4 relay 192.88.99/24', '192.88.99.0', '192.88.99.255'],
  ['private 192.168/16', '192.168.0.0', '192.168.255.255'],
  ['AS112 192.175.48/24', '192.175.48.0', '192.175.48.255'],
  ['benchmarking 198.18/15', '198.18.0.0', '198.19.255.255'],
  ['documentation 198.51.100/24', '198.51.100.0', '198.51.100.255'],
  ['documentation 203.0.113/24', '203.0.113.0', '203.0.113.255'],
  ['multicast 224/4', '224.0.0.0', '239.255.255.255'],
  ['reserved 240/4', '240.0.0.0', '255.255.255.255'],
  ['Azure host', '168.63.129.16', '168.63.129.16'],
];

/** The addresses just outside, which belong to somebody: refusing them would refuse customers. */
const PUBLIC_V4 = [
  '1.0.0.0',
  '9.255.255.255',
  '11.0.0.0',
  '100.63.255.255',
  '100.128.0.0',
  '126.255.255.255',
  '128.0.0.0',
  '168.63.129.15',
  '168.63.129.17',
  '169.253.255.255',
  '169.255.0.0',
  '172.15.255.255',
  '172.32.0.0',
  '191.255.255.255',
  '192.0.1.0',
  '192.0.1.255',
  '192.0.3.0',
  '192.0.64.1',
  '192.88.98.255',
  '192.88.100.0',
  '192.167.255.255',
  '192.169.0.0',
  '198.17.255.255',
  '198.20.0.0',
  '198.51.99.255',
  '198.51.101.0',
  '203.0.112.255',
  '203.0.114.0',
  '223.255.255.255',
  '8.8.8.8',
  '93.184.216.34',
];

const FORBIDDEN_V6: readonly [name: string, first: string, last: string][] = [
  ['unspecified', '::', '::'],
  ['loopback', '::1', '::1'],
  ['v4-compatible', '::2', '::ffff:ffff'],
  ['v4-compatible loopback', '::127.0.0.1', '::7f00:1'],
  ['v4-translated ::ffff:0:0/96', '::ffff:0:0.0.0.0', '::ffff:0:255.255.255.255'],
  ['NAT64 64:ff9b::/96', '64:ff9b::', '64:ff9b::ffff:ffff'],
  ['NAT64 with metadata', '64:ff9b::169.254.169.254', '64:ff9b::8.8.8.8'],
  ['local NAT64 64:ff9b:1::/48', '64:ff9b:1::', '64:ff9b:1:ffff:ffff:ffff:ffff:ffff'],
  ['discard 100::/64', '100::', '100::ffff:ffff:ffff:ffff'],
  ['dummy 100:0:0:1::/64', '100:0:0:1::', '100:0:0:1:ffff:ffff:ffff:ffff'],
  ['outside 2000::/3, below', '1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff', '200::'],
  ['Teredo 2001::/32', '2001::', '2001:0:ffff:ffff:ffff:ffff:ffff:ffff'],
  ['IETF 2001::/23', '2001:1::', '2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff'],
  ['benchmarking 2001:2::/48', '2001:2::', '2001:2:0:ffff:ffff:ffff:ffff:ffff'],
  ['AMT 2001:3::/32', '2001:3::', '2001:3:ffff:ffff:ffff:ffff:ffff:ffff'],
  ['AS112 2001:4:112::/48', '2001:4:112::', '2001:4:112:ffff:ffff:ffff:ffff:ffff'],
  ['ORCHID 2001:10::/28', '2001:10::', '2001:1f:ffff:ffff:ffff:ffff:ffff:ffff'],
  ['ORCHIDv2 2001:20::/28', '2001:20::', '2001:2f:ffff:ffff:ffff:ffff:ffff:ffff'],
  ['drone ids 2001:30::/28', '2001:30::', '2001:3f:ffff:ffff:ffff:ffff:ffff:ffff'],
  ['documentation 2001:db8::/32', '2001:db8::', '2001:db8:ffff:ffff:ffff:ffff:ffff:ffff'],
  ['6to4 2002::/16', '2002::', '2002:ffff:ffff:ffff:ffff:ffff:ffff:ffff'],
  ['6to4 of loopback', '2002:7f00:1::', '2002:a9fe:a9fe::'],
  ['AS112 2620:4f:8000::/48', '2620:4f:8000::', '2620:4f:8000:ffff:ffff:ffff:ffff:ffff'],
  ['documentation 3fff::/20', '3fff::', '3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff'],
  ['outside 2000::/3, above', '4000::', '4000::1'],
  ['segment routing 5f00::/16', '5f00::', '5f00:ffff:ffff:ffff:ffff:ffff:ffff:ffff'],
  ['unique local fc00::/7', 'fc00::', 'fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff'],
  ['metadata by unique local', 'fd00:ec2::254', 'fd20:ce::254'],
  ['link-local fe80::/10', 'fe80::', 'febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff'],
  ['site-local fec0::/10', 'fec0::', 'feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff'],
  ['multicast ff00::/8', 'ff00::', 'ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff'],
  ['ISATAP', '2a00:1450:4001::5efe:10.0.0.1', '2a00:1450:4001:0:200:5efe:127.0.0.1'],
];

const PUBLIC_V6 = [
  '2001:200::',
  '2001:4860:4860::8888',
  '2001:db7:ffff::1',
  '2001:db9::1',
  '2003::1',
  '2606:4700::1111',
  '2a00:1450:4001:81b::200e',
  '3ffe:ffff::1',
];

describe('an address', () => {
  it.each(FORBIDDEN_V4)('of %s is not public', (_, first, last) => {
    expect([first, last].filter(isPublicAddress)).toEqual([]);
  });

  it.each(FORBIDDEN_V4)('of %s is not public as v4-mapped IPv6 either', (_, first, last) => {
    const mapped = [first, last].flatMap((address) => [`::ffff:${address}`, `0:0:0:0:0:ffff:${address}`]);
    expect(mapped.filter(isPublicAddress)).toEqual([]);
  });

  it.each(FORBIDDEN_V6)('of %s is not public', (_, first, last) => {
    expect([first, last].filter(isPublicAddress)).toEqual([]);
  });

  it.each([...PUBLIC_V4, ...PUBLIC_V6, '::ffff:8.8.8.8'])('such as %s is public', (address) => {
    expect(isPublicAddress(address)).toBe(true);
  });

  it('inside a forbidden range is never public, wherever it lies', () => {
    const number = (address: string) =>
      address.split('.').reduce((sum, octet) => sum * 256 + Number(octet), 0);
    const dotted = (value: number) => [24, 16, 8, 0].map((shift) => (value >>> shift) & 255).join('.');
    for (const [, first, last] of FORBIDDEN_V4) {
      fc.assert(
        fc.property(fc.integer({ min: number(first), max: number(last) }), (value) => {
          expect(isPublicAddress(dotted(value))).toBe(false);
        }),
        { numRuns: 50 },
      );
    }
  });

  it.each([
    '',
    'localhost',
    '8.8.8',
    '0x08.8.8.8',
    '010.8.8.8',
    '134744072',
    '8.8.8.8.',
    '8.8.8.8 ',
    '[2606:4700::1111]',
    '2606:4700::1111%eth0',
    'fe80::1%1',
    '256.1.1.1',
  ])('written as %j is not an address that a socket reports, so not public', (address) => {
    expect(isPublicAddress(address)).toBe(false);
  });
});
