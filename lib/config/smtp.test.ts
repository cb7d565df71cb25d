import { describe, expect, it } from 'vitest';
import { parseDispatcherConfig } from './dispatcher.ts';
import type { Env } from './env.ts';

const BASE: Env = {
  DATABASE_URL: 'postgres://relay@127.0.0.1/relay',
  RELAY_SECRET_KEYS: Buffer.alloc(32, 7).toString('base64'),
};
const FROM = { RELAY_SMTP_FROM: 'relay@example.com' };
const smtp = (env: Env) => parseDispatcherConfig({ ...BASE, ...FROM, ...env }).smtp;

describe('the mail server', () => {
  it('is none unless it is said', () => {
    expect(parseDispatcherConfig(BASE).smtp).toBeNull();
    expect(smtp({})).toBeNull();
  });

  it('is secured by STARTTLS, which is required, and not asked for a login', () => {
    expect(smtp({ RELAY_SMTP_URL: 'smtp://mail.example.com' })).toEqual({
      host: 'mail.example.com',
      port: 587,
      implicitTls: false,
      requireTls: true,
      user: null,
      password: null,
      from: { name: '', address: 'relay@example.com' },
      allowPrivate: false,
      maxConnections: 10,
    });
  });

  it('may be spoken to in TLS from the start, and be given a login whose characters stand in code', () => {
    const url = 'smtps://ada%40example.com:p%3A%2Fss@[2001:db8::1]/';
    expect(smtp({ RELAY_SMTP_URL: url })).toMatchObject({
      host: '2001:db8::1',
      port: 465,
      implicitTls: true,
      user: 'ada@example.com',
      password: 'p:/ss',
    });
  });

  it('may be private and without TLS where endpoints may, or where it is said', () => {
    const url = { RELAY_SMTP_URL: 'smtp://127.0.0.1:2525' };
    const relaxed = { requireTls: false, allowPrivate: true };
    expect(smtp({ ...url, RELAY_ALLOW_PRIVATE_ENDPOINTS: 'true' })).toMatchObject(relaxed);
    expect(smtp({ ...url, RELAY_SMTP_REQUIRE_TLS: 'off', RELAY_SMTP_ALLOW_PRIVATE: 'on' })).toMatchObject(
      relaxed,
    );
    const strict = {
      RELAY_ALLOW_PRIVATE_ENDPOINTS: 'on',
      RELAY_SMTP_REQUIRE_TLS: 'on',
      RELAY_SMTP_ALLOW_PRIVATE: 'off',
    };
    expect(smtp({ ...url, ...strict })).toMatchObject({ requireTls: true, allowPrivate: false });
  });

  it.each([
    'mail.example.com',
    'http://mail.example.com',
    'smtp://',
    'smtp://mail.example.com:0',
    'smtp://user@mail.example.com',
    'smtp://:passw0rd@mail.example.com',
    'smtp://user:passw0rd%@mail.example.com',
    'smtp://user:passw0rd@mail.example.com/path',
    'smtp://user:passw0rd@mail.example.com?tls=off',
  ])('cannot be %s, which is not repeated', (url) => {
    expect(() => smtp({ RELAY_SMTP_URL: url })).toThrow(/RELAY_SMTP_URL: must be smtp:\/\/host:587/);
    expect(() => smtp({ RELAY_SMTP_URL: url })).not.toThrow(/passw0rd/);
  });
});

describe('the sender of mail', () => {
  it('may have a name', () => {
    const sender = (text: string) => smtp({ RELAY_SMTP_URL: 'smtp://m', RELAY_SMTP_FROM: text })!.from;
    expect(sender('Relay, the post <relay@example.com>')).toEqual({
      name: 'Relay, the post',
      address: 'relay@example.com',
    });
    expect(sender('  relay@example.com ')).toEqual({ name: '', address: 'relay@example.com' });
  });

  it.each(['relay', 'relay@example.com, ada@example.com', 'Relay <relay>', 'Re\r\nlay <relay@example.com>'])(
    'cannot be %j',
    (text) => {
      expect(() => smtp({ RELAY_SMTP_FROM: text })).toThrow('RELAY_SMTP_FROM: must be an address');
    },
  );

  it('must be said with the server', () => {
    expect(() => smtp({ RELAY_SMTP_URL: 'smtp://m', RELAY_SMTP_FROM: '' })).toThrow(
      'RELAY_SMTP_FROM: is required with RELAY_SMTP_URL',
    );
  });
});
