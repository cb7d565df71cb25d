import { randomBytes } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import type { IncomingHttpHeaders } from 'node:http';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { describe, expect, inject, it } from 'vitest';
import { newSecret, signatureHeaders, signingKey } from '../../lib/domain/signing.ts';
import type { SigningScheme } from '../../lib/domain/vocabulary.ts';

type Verify = (headers: IncomingHttpHeaders, body: Buffer, secrets: string[], nowSeconds?: number) => boolean;

const page = readFileSync(new URL('../../docs/receivers.md', import.meta.url), 'utf8');
const sample = JSON.parse(block('json')) as Record<
  SigningScheme,
  { secret: string; headers: Record<string, string> }
>;

const AT = 1_700_000_000;
const BODY = Buffer.from('{"hello":"world"}');
const ID = '018bcfe5-6800-7000-8f2c-9d1e5b7a0001';
const SCHEMES = ['relay', 'standard'] as const;

/** The page's only block of this language. */
function block(language: string): string {
  return new RegExp(`\`\`\`${language}\n([^]*?)\n\`\`\``).exec(page)?.[1] ?? '';
}

async function documentedCode(): Promise<Record<SigningScheme, Verify>> {
  const file = join(inject('runDirectory'), 'verify-as-documented.ts');
  writeFileSync(file, block('ts'));
  const { verifyRelay, verifyStandard } = (await import(/* @vite-ignore */ pathToFileURL(file).href)) as {
    verifyRelay: Verify;
    verifyStandard: Verify;
  };
  return { relay: verifyRelay, standard: verifyStandard };
}

function signed(scheme: SigningScheme, secrets: readonly string[]): Record<string, string> {
  const flat = signatureHeaders({
    scheme,
    secrets: secrets.map((secret) => signingKey(scheme, secret)),
    deliveryId: ID,
    timestampSeconds: AT,
    body: BODY,
    headerPrefix: 'Relay',
  });
  const names = flat.filter((_, index) => index % 2 === 0);
  return Object.fromEntries(names.map((name, index) => [name.toLowerCase(), flat[2 * index + 1] ?? '']));
}

describe.each(SCHEMES)('the page for receivers, on the scheme %s', (scheme) => {
  const { secret, headers } = sample[scheme];

  it('shows the signature that Relay makes', () => {
    expect(headers).toEqual(signed(scheme, [secret]));
  });

  it('has code that takes what Relay sends', async () => {
    const verify = (await documentedCode())[scheme];
    expect(verify(headers, BODY, [secret], AT + 299)).toBe(true);
  });

  it('has code that takes either secret during a rotation', async () => {
    const verify = (await documentedCode())[scheme];
    const fresh = newSecret(randomBytes(32));
    const both = signed(scheme, [fresh, secret]);
    expect(verify(both, BODY, [secret], AT)).toBe(true);
    expect(verify(both, BODY, [fresh], AT)).toBe(true);
  });

  it('has code that refuses another body, another secret, an old time and no signature', async () => {
    const verify = (await documentedCode())[scheme];
    expect(verify(headers, Buffer.from('{"hello": "world"}'), [secret], AT)).toBe(false);
    expect(verify(headers, BODY, [newSecret(randomBytes(32))], AT)).toBe(false);
    expect(verify(headers, BODY, [secret], AT + 301)).toBe(false);
    expect(verify(headers, BODY, [secret])).toBe(false);
    expect(verify({}, BODY, [secret], AT)).toBe(false);
  });
});
