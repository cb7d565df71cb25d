import { randomBytes } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import type { IncomingHttpHeaders } from 'node:http';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { describe, expect, inject, it } from 'vitest';
import { headerNames } from '../../lib/domain/header-names.ts';
import { newKeyPair, privateSigningKey } from '../../lib/domain/key-pair.ts';
import { signatureHeaders } from '../../lib/domain/signature-headers.ts';
import { newSecret, overlaps, type SigningKey, signingKey } from '../../lib/domain/signing.ts';
import { SIGNING_SCHEMES, type SigningScheme } from '../../lib/domain/vocabulary.ts';

type Verify = (headers: IncomingHttpHeaders, body: Buffer, keys: string[], nowSeconds?: number) => boolean;

const page = readFileSync(new URL('../../docs/receivers.md', import.meta.url), 'utf8');
const sample = JSON.parse(block('json')) as Record<
  SigningScheme,
  { secret: string; headers: Record<string, string> }
> & { key_pair: { public_key: string; headers: Record<string, string> } };

const AT = 1_700_000_000;
const BODY = Buffer.from('{"hello":"world"}');
const ID = '018bcfe5-6800-7000-8f2c-9d1e5b7a0001';
const TYPE = 'greeting';
/** The one of the page is made of the bytes 0 to 31. */
const PAIR = newKeyPair(Buffer.from(Array.from({ length: 32 }, (_, byte) => byte)));

/** The page's only block of this language. */
function block(language: string): string {
  return new RegExp(`\`\`\`${language}\n([^]*?)\n\`\`\``).exec(page)?.[1] ?? '';
}

async function documentedCode() {
  const file = join(inject('runDirectory'), 'verify-as-documented.ts');
  writeFileSync(file, block('ts'));
  const code = (await import(/* @vite-ignore */ pathToFileURL(file).href)) as Record<
    `verify${'Relay' | 'Standard' | 'Stripe' | 'Github' | 'KeyPair'}`,
    Verify
  >;
  const { verifyRelay, verifyStandard, verifyStripe, verifyGithub, verifyKeyPair } = code;
  return {
    relay: verifyRelay,
    standard: verifyStandard,
    stripe: verifyStripe,
    github: verifyGithub,
    keyPair: verifyKeyPair,
  };
}

const keysOf = (scheme: SigningScheme, secrets: readonly string[]) =>
  secrets.map((secret) => signingKey(scheme, secret));

function signed(scheme: SigningScheme, keys: readonly SigningKey[]): Record<string, string> {
  const flat = signatureHeaders({
    scheme,
    keys,
    deliveryId: ID,
    eventType: TYPE,
    timestampSeconds: AT,
    body: BODY,
    names: headerNames('Relay'),
  });
  const names = flat.filter((_, index) => index % 2 === 0);
  return Object.fromEntries(names.map((name, index) => [name.toLowerCase(), flat[2 * index + 1] ?? '']));
}

describe.each(SIGNING_SCHEMES)('the page for receivers, on the scheme %s', (scheme) => {
  const { secret, headers } = sample[scheme];

  it('shows the signature that Relay makes', () => {
    expect(headers).toEqual(signed(scheme, keysOf(scheme, [secret])));
  });

  it('has code that takes what Relay sends', async () => {
    const verify = (await documentedCode())[scheme];
    expect(verify(headers, BODY, [secret], AT + 299)).toBe(true);
  });

  if (overlaps(scheme)) {
    it('has code that takes either secret during a rotation', async () => {
      const verify = (await documentedCode())[scheme];
      const fresh = newSecret(randomBytes(32));
      const both = signed(scheme, keysOf(scheme, [fresh, secret]));
      expect(verify(both, BODY, [secret], AT)).toBe(true);
      expect(verify(both, BODY, [fresh], AT)).toBe(true);
    });
  }

  it('has code that refuses another body, another secret and no signature', async () => {
    const verify = (await documentedCode())[scheme];
    expect(verify(headers, Buffer.from('{"hello": "world"}'), [secret], AT)).toBe(false);
    expect(verify(headers, BODY, [newSecret(randomBytes(32))], AT)).toBe(false);
    expect(verify({}, BODY, [secret], AT)).toBe(false);
  });

  it('has code that refuses an old time, where there is one', async () => {
    const verify = (await documentedCode())[scheme];
    const timeless = scheme === 'github';
    expect(verify(headers, BODY, [secret], AT + 301)).toBe(timeless);
    expect(verify(headers, BODY, [secret])).toBe(timeless);
  });
});

describe('the page for receivers, on key pairs', () => {
  const { public_key: publicKey, headers } = sample.key_pair;
  const privateKey = privateSigningKey(PAIR.privateKey);
  const secrets = keysOf('standard', [sample.standard.secret]);

  it('shows the signatures that Relay makes', () => {
    expect(publicKey).toBe(PAIR.publicKey);
    expect(headers).toEqual(signed('standard', [...secrets, privateKey]));
  });

  it('has code that takes what Relay sends, by the key and by the secret', async () => {
    const code = await documentedCode();
    expect(code.keyPair(headers, BODY, [publicKey], AT)).toBe(true);
    expect(code.standard(headers, BODY, [sample.standard.secret], AT)).toBe(true);
  });

  it('has code that takes either key during a rotation', async () => {
    const { keyPair: verify } = await documentedCode();
    const fresh = newKeyPair(randomBytes(32));
    const both = signed('standard', [...secrets, privateSigningKey(fresh.privateKey), privateKey]);
    expect(verify(both, BODY, [publicKey], AT)).toBe(true);
    expect(verify(both, BODY, [fresh.publicKey], AT)).toBe(true);
  });

  it('has code that refuses another body, another key, an old time and no signature', async () => {
    const { keyPair: verify } = await documentedCode();
    expect(verify(headers, Buffer.from('{"hello": "world"}'), [publicKey], AT)).toBe(false);
    expect(verify(headers, BODY, [newKeyPair(randomBytes(32)).publicKey], AT)).toBe(false);
    expect(verify(headers, BODY, [publicKey], AT + 301)).toBe(false);
    expect(verify(sample.standard.headers, BODY, [publicKey], AT)).toBe(false);
    expect(verify({}, BODY, [publicKey], AT)).toBe(false);
  });
});
