import { createHmac } from 'node:crypto';
import { inspect } from 'node:util';
import fc from 'fast-check';
import { Webhook as StandardWebhook } from 'standardwebhooks';
import { Webhook as SvixWebhook } from 'svix';
import { describe, expect, it } from 'vitest';
import { newSecret, type SigningKey, signatureHeaders, signingKey, validateSecret } from './signing.ts';

const body = Buffer.from('{"hello":"world"}');
const secretOf = (fill: number) => newSecret(Buffer.alloc(32, fill));
const nowSeconds = () => Math.floor(Date.now() / 1000);

function headers(overrides: Partial<Parameters<typeof signatureHeaders>[0]> & { secrets: SigningKey[] }) {
  const flat = signatureHeaders({
    scheme: 'relay',
    deliveryId: 'd-1',
    timestampSeconds: 1_700_000_000,
    body,
    headerPrefix: 'Relay',
    ...overrides,
  });
  const pairs: Record<string, string> = {};
  for (let i = 0; i < flat.length; i += 2) pairs[flat[i]!.toLowerCase()] = flat[i + 1]!;
  return pairs;
}

describe('the relay scheme', () => {
  it('gives the published vector', () => {
    expect(headers({ secrets: [signingKey('relay', 'whsec_test')] })).toEqual({
      'relay-timestamp': '1700000000',
      'relay-signature': 'v1=f592bbf3951cfc94e560eecfb5d9dd4da6b0fff2e626235f8ab4b54860925d0b',
      'relay-delivery-id': 'd-1',
    });
  });

  it('signs with both secrets during a rotation, newest first', () => {
    const hex = (secret: string) =>
      createHmac('sha256', secret).update('1700000000.').update(body).digest('hex');
    const [fresh, old] = [secretOf(1), secretOf(2)];
    const signed = headers({ secrets: [signingKey('relay', fresh), signingKey('relay', old)] });
    expect(signed['relay-signature']).toBe(`v1=${hex(fresh)},v1=${hex(old)}`);
  });

  it('carries the configured prefix', () => {
    const signed = headers({ secrets: [signingKey('relay', 'whsec_test')], headerPrefix: 'Acme' });
    expect(Object.keys(signed)).toEqual(['acme-timestamp', 'acme-signature', 'acme-delivery-id']);
  });

  it('signs the bytes, whatever they are', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 300 }), (bytes) => {
        const signed = headers({ secrets: [signingKey('relay', 'whsec_test')], body: Buffer.from(bytes) });
        const expected = createHmac('sha256', 'whsec_test').update('1700000000.').update(bytes).digest('hex');
        expect(signed['relay-signature']).toBe(`v1=${expected}`);
      }),
    );
  });
});

describe('the standard scheme', () => {
  const verifiers = { standardwebhooks: StandardWebhook, svix: SvixWebhook };

  for (const [name, Verifier] of Object.entries(verifiers)) {
    it(`is verified by ${name}, with the old and the new secret of a rotation`, () => {
      const [fresh, old] = [secretOf(3), secretOf(4)];
      const keys = [signingKey('standard', fresh), signingKey('standard', old)];
      const signed = headers({ scheme: 'standard', secrets: keys, timestampSeconds: nowSeconds() });
      for (const secret of [fresh, old]) {
        expect(new Verifier(secret).verify(body.toString(), signed)).toEqual({ hello: 'world' });
      }
    });

    it(`is refused by ${name} when secret, body or id differ`, () => {
      const keys = [signingKey('standard', secretOf(5))];
      const signed = headers({ scheme: 'standard', secrets: keys, timestampSeconds: nowSeconds() });
      const verify = (secret: string, text: string, sent: Record<string, string>) => () =>
        new Verifier(secret).verify(text, sent);
      expect(verify(secretOf(6), body.toString(), signed)).toThrow();
      expect(verify(secretOf(5), '{"hello":"worlds"}', signed)).toThrow();
      expect(verify(secretOf(5), body.toString(), { ...signed, 'webhook-id': 'd-2' })).toThrow();
      expect(verify(secretOf(5), body.toString(), signed)).not.toThrow();
    });
  }

  it('signs every body as standardwebhooks does', () => {
    const secret = secretOf(7);
    const reference = new StandardWebhook(secret);
    fc.assert(
      fc.property(
        fc.string({ unit: 'grapheme', maxLength: 200 }),
        fc.integer({ min: 1, max: 2 ** 32 }),
        (text, at) => {
          const signed = headers({
            scheme: 'standard',
            secrets: [signingKey('standard', secret)],
            timestampSeconds: at,
            body: Buffer.from(text),
          });
          expect(signed['webhook-signature']).toBe(reference.sign('d-1', new Date(at * 1000), text));
        },
      ),
    );
  });
});

describe('a secret', () => {
  it('is whsec_ and the base64 of 32 bytes, good for every scheme', () => {
    fc.assert(
      fc.property(fc.uint8Array({ minLength: 32, maxLength: 32 }), (bytes) => {
        const secret = newSecret(Buffer.from(bytes));
        expect(secret).toMatch(/^whsec_[A-Za-z0-9+/]{43}=$/);
        expect(validateSecret('relay', secret)).toBeNull();
        expect(validateSecret('standard', secret)).toBeNull();
      }),
    );
    expect(() => newSecret(Buffer.alloc(31))).toThrow('32');
  });

  it('is not shown by the key made from it', () => {
    const key = signingKey('relay', 'whsec_do_not_show');
    expect(inspect(key, { depth: 9 }) + JSON.stringify({ key }) + String(key)).not.toContain('do_not_show');
  });

  it.each([
    ['relay', 'short', '8 to 255'],
    ['relay', 'x'.repeat(256), '8 to 255'],
    ['relay', 'with a space', 'without spaces'],
    ['relay', 'umlaut-äöü', 'ASCII'],
    ['standard', 'plain-secret-of-some-length', 'whsec_'],
    ['standard', 'whsec_', '24 to 64'],
    ['standard', 'whsec_not*base64', 'base64'],
    ['standard', `whsec_${Buffer.alloc(32).toString('base64').slice(0, -1)}`, 'base64'],
    ['standard', `whsec_${Buffer.alloc(32, 255).toString('base64url')}`, 'base64'],
    ['standard', `whsec_${Buffer.alloc(23).toString('base64')}`, '24 to 64'],
    ['standard', `whsec_${Buffer.alloc(65).toString('base64')}`, '24 to 64'],
  ] as const)('for %s is refused as %s', (scheme, secret, reason) => {
    expect(validateSecret(scheme, secret)).toContain(reason);
  });

  it.each([24, 64])('for standard may hold %i bytes', (size) => {
    expect(validateSecret('standard', `whsec_${Buffer.alloc(size, 1).toString('base64')}`)).toBeNull();
  });

  it('that cannot be decoded never signs with a guess', () => {
    expect(() => signingKey('standard', 'whsec_test')).toThrow('cannot sign');
  });
});
