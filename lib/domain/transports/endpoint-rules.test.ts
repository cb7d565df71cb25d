import { describe, expect, it } from 'vitest';
import { TRANSPORTS } from '../vocabulary.ts';
import {
  type AddressedTransport,
  httpOnlyFault,
  isAddressed,
  isChat,
  mailAddress,
  validateAddress,
  validateToken,
} from './endpoint-rules.ts';

const ADDRESSES: Record<AddressedTransport, { good: string[]; bad: string[] }> = {
  telegram: {
    good: ['telegram://-1001234', 'telegram://1', 'telegram://@name', 'telegram://@Some_Channel_1'],
    bad: [
      'telegram://',
      'telegram://0',
      'telegram://-',
      'telegram://12a',
      'telegram://@',
      'telegram://@1ab',
      'telegram://1/2',
      'TELEGRAM://1',
      ' telegram://1',
    ],
  },
  discord: {
    good: ['discord://1', 'discord://1234567890123456789'],
    bad: [
      'discord://',
      'discord://a',
      'discord://-1',
      'discord://1/secret',
      'https://discord.com/api/webhooks/1/token',
      `discord://${'1'.repeat(21)}`,
    ],
  },
  slack: {
    good: ['slack://T01234567/B01234567', 'slack://E1/B1'],
    bad: [
      'slack://T1',
      'slack://T1/',
      'slack://T1/B1/secret',
      'slack://X1/B1',
      'slack://t1/b1',
      'slack://T1/C1',
    ],
  },
  email: {
    good: ['mailto:ops@example.com', 'mailto:o+a@xn--bcher-kva.example', 'mailto:jürgen@example.com'],
    bad: [
      'mailto:',
      'ops@example.com',
      'mailto:a@b@c',
      'mailto:a@b,c@d',
      'mailto:a@b?cc=c@d',
      'mailto:a%0d@b',
      'mailto:A <a@b>',
      'mailto:a @b',
      'mailto:a@b\r\nBcc: c@d',
      'MAILTO:a@b.c',
    ],
  },
};
const ADDRESSED = TRANSPORTS.filter(isAddressed);

describe.each(ADDRESSED)('the address of a %s endpoint', (transport) => {
  it.each(ADDRESSES[transport].good)('may be %s', (url) => {
    expect(validateAddress(transport, url)).toBeNull();
  });

  it.each(ADDRESSES[transport].bad)('may not be %j, and is not repeated', (url) => {
    const rule = validateAddress(transport, url);
    expect(rule).toMatch(/^must be /);
    expect(rule).not.toMatch(/secret|token$|cc=/);
  });

  it('is none of another transport', () => {
    for (const other of ADDRESSED.filter((each) => each !== transport))
      for (const url of ADDRESSES[other].good) expect(validateAddress(transport, url)).not.toBeNull();
  });
});

describe('the address of an email endpoint', () => {
  it('names its recipient', () => {
    expect(mailAddress('mailto:ops@example.com')).toBe('ops@example.com');
  });
});

const TOKENS = {
  telegram: {
    good: '123456789:AAF-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa',
    bad: ['AAF-aaaaaaaaaaaaaaaaaa', '1:x', '123:a b', '123:aaaaaaaaaaaaaaaaaaaa/../x'],
  },
  discord: { good: 'aB3-_'.repeat(13), bad: ['short', 'a/b'.repeat(10), 'a?b'.repeat(10)] },
  slack: { good: 'aB3'.repeat(8), bad: ['short', 'a-b'.repeat(8), 'a/b'.repeat(8)] },
} as const;

describe.each(TRANSPORTS.filter(isChat))('the token of a %s endpoint', (transport) => {
  it('must be given, and in the form that the platform gives it', () => {
    const { good, bad } = TOKENS[transport];
    expect(validateToken(transport, good)).toBeNull();
    expect(validateToken(transport, undefined)).toContain(
      `is required, because only ${transport} can give it out`,
    );
    for (const token of [...bad, '', `${good}\n`, `${good}#`]) {
      expect(validateToken(transport, token)).toMatch(/^must be /);
      if (token !== '') expect(validateToken(transport, token)).not.toContain(token);
    }
  });
});

describe('an email endpoint', () => {
  it('has no token', () => {
    expect(validateToken('email', undefined)).toBeNull();
    expect(validateToken('email', 'whatever-it-is')).toContain('has none');
  });
});

describe('an endpoint that is not http', () => {
  it('has nothing of what only a request to its own URL would show', () => {
    const fault = (settings: object) => httpOnlyFault('slack', settings)?.field ?? null;
    expect(fault({})).toBeNull();
    expect(fault({ signingScheme: 'relay', headers: {}, headerPrefix: null })).toBeNull();
    expect(fault({ signingScheme: 'standard' })).toBe('signing_scheme');
    expect(fault({ headers: { 'X-A': 'b' } })).toBe('headers');
    expect(fault({ headerPrefix: 'Acme' })).toBe('header_prefix');
  });
});
