import { describe, expect, it } from 'vitest';
import { checkDestination, type DestinationPolicy } from './destination.ts';

const production: DestinationPolicy = {
  allowPrivate: false,
  requireHttps: true,
  allowedPorts: new Set([443]),
};
const development: DestinationPolicy = { allowPrivate: true, requireHttps: false, allowedPorts: 'any' };
const anyPort: DestinationPolicy = { allowPrivate: false, requireHttps: false, allowedPorts: 'any' };

function ruleFor(url: string, policy = production): string | null {
  const checked = checkDestination(url, policy);
  return checked.ok ? null : checked.rule;
}

describe('a destination in production', () => {
  it.each([
    'https://example.com/hooks?tenant=1',
    'https://example.com:443/',
    'https://EXAMPLE.com./',
    'https://93.184.216.34/',
    'https://[2606:4700::1111]/',
    'https://xn--mnchen-3ya.de/',
    'https://münchen.de/',
    'https://a_b.example.com/',
  ])('may be %s', (url) => {
    expect(ruleFor(url)).toBeNull();
  });

  it.each([
    ['http://example.com/', 'https'],
    ['ftp://example.com/', 'https'],
    ['javascript:alert(1)', 'https'],
    ['telegram://-100123', 'https'],
    ['file:///etc/passwd', 'https'],
    ['https://example.com:8443/', 'port 8443'],
    ['https://example.com:0/', 'port 0'],
    ['https://example.com:65536/', 'parsed'],
    ['https://user:p%40ss@example.com/', 'header'],
    ['https://user@example.com/', 'header'],
    ['https://:secret@example.com/', 'header'],
    ['https://example.com/#top', 'fragment'],
    ['https://', 'parsed'],
    ['https:///', 'parsed'],
    ['example.com/hooks', 'parsed'],
    ['', 'parsed'],
    ['https://exa mple.com/', 'parsed'],
    [`https://example.com/${'a'.repeat(2048)}`, '2048'],
    [`https://example.com/${'ä'.repeat(1000)}`, '2048'],
    [`https://${'a'.repeat(64)}.example.com/`, 'valid name'],
    ['https://example..com/', 'valid name'],
    ['https://.example.com/', 'valid name'],
  ])('is refused as %s', (url, reason) => {
    expect(ruleFor(url)).toContain(reason);
  });

  it.each([
    'https://127.0.0.1/',
    'https://10.0.0.5/',
    'https://169.254.169.254/latest/meta-data/',
    'https://169.254.169.254./',
    'https://168.63.129.16/',
    'https://2130706433/',
    'https://0x7f.1/',
    'https://0177.0.0.1/',
    'https://127.1/',
    'https://0/',
    'https://１２７.０.０.１/',
    'https://①②⑦.0.0.1/',
    'https://127。0。0。1/',
    'https:127.0.0.1',
    'https:\\\\127.0.0.1\\',
    'https://12\t7.0.0.1/',
    'https://[::]/',
    'https://[::1]/',
    'https://[fe80::1]/',
    'https://[fd00::1]/',
    'https://[::ffff:127.0.0.1]/',
    'https://[::ffff:a9fe:a9fe]/',
    'https://[0:0:0:0:0:ffff:10.0.0.5]/',
    'https://[::127.0.0.1]/',
    'https://[2002:7f00:1::]/',
    'https://[64:ff9b::169.254.169.254]/',
    'https://[2001:0:4136:e378:8000:63bf:3fff:fdd2]/',
  ])('is not the special address %s, however it is written', (url) => {
    expect(ruleFor(url)).toContain('not public');
    expect(ruleFor(url, anyPort)).toContain('not public');
    expect(ruleFor(url, development)).toBeNull();
  });

  it.each([
    'localhost',
    'localhost.',
    'LOCALHOST.',
    'api.localhost',
    'metadata.google.internal',
    'metadata.google.internal.',
    'svc.internal.',
    'printer.local',
    'router.home.arpa',
    'receiver',
    'kubernetes.',
  ])('is not the local name %s', (host) => {
    expect(ruleFor(`https://${host}/`)).toContain('local network');
    expect(ruleFor(`https://${host}/`, development)).toBeNull();
  });

  it('is not a name that only starts like a local one refused', () => {
    expect(ruleFor('https://localhost.example.com/')).toBeNull();
    expect(ruleFor('https://internal.example.com/')).toBeNull();
  });
});

describe('a destination in development', () => {
  it.each([
    'http://localhost:9099/verify',
    'http://127.0.0.1:1/',
    'http://receiver:9099/',
    'http://[::1]:8080/',
  ])('may be %s', (url) => {
    expect(ruleFor(url, development)).toBeNull();
  });

  it.each(['http://user:pw@localhost/', 'ftp://localhost/', 'http://localhost:0/', 'http://a..b/'])(
    'is still not %s',
    (url) => {
      expect(ruleFor(url, development)).not.toBeNull();
    },
  );
});

describe('what the check answers', () => {
  it('is the URL as it will be dialled', () => {
    const checked = checkDestination('HTTPS://Exa\tmple.COM:443\\hooks', production);
    expect(checked.ok && checked.url.href).toBe('https://example.com/hooks');
  });

  it('never repeats the URL, which may hold a password or a token', () => {
    for (const url of [
      'http://user:hunter2@example.com/hunter2',
      'https://user:hunter2@example.com:99/',
      'https://hunter2.internal/',
      'hunter2://x',
      'hunter2',
      'https://example.com/#hunter2',
    ]) {
      expect(ruleFor(url)).not.toContain('hunter2');
    }
  });

  it('names the allowed ports', () => {
    const policy = { ...production, allowedPorts: new Set([8443, 443]) };
    expect(ruleFor('https://example.com:9000/', policy)).toBe('port 9000 is not allowed; allowed: 443, 8443');
    expect(ruleFor('https://example.com:8443/', policy)).toBeNull();
  });
});
