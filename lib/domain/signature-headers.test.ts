import { createHmac } from 'node:crypto';
import { verify as verifyGithub } from '@octokit/webhooks-methods';
import fc from 'fast-check';
import { Webhook as StandardWebhook } from 'standardwebhooks';
import Stripe from 'stripe';
import { Webhook as SvixWebhook } from 'svix';
import { describe, expect, it } from 'vitest';
import { headerNames } from './header-names.ts';
import { type SignatureInput, signatureHeaders } from './signature-headers.ts';
import { newSecret, signingKey } from './signing.ts';
import { SIGNING_SCHEMES, type SigningScheme } from './vocabulary.ts';

const body = Buffer.from('{"hello":"world"}');
const secretOf = (fill: number) => newSecret(Buffer.alloc(32, fill));
const nowSeconds = () => Math.floor(Date.now() / 1000);

/** Signed by these secrets; names in lower case, as a receiver sees them. */
function headers(scheme: SigningScheme, secrets: string[], overrides: Partial<SignatureInput> = {}) {
  const flat = signatureHeaders({
    scheme,
    keys: secrets.map((secret) => signingKey(scheme, secret)),
    deliveryId: 'd-1',
    eventType: 'order.paid',
    timestampSeconds: 1_700_000_000,
    body,
    names: headerNames('Relay'),
    ...overrides,
  });
  const pairs: Record<string, string> = {};
  for (let i = 0; i < flat.length; i += 2) pairs[flat[i]!.toLowerCase()] = flat[i + 1]!;
  return pairs;
}

describe('the relay scheme', () => {
  it('gives the published vector', () => {
    expect(headers('relay', ['whsec_test'])).toEqual({
      'relay-timestamp': '1700000000',
      'relay-signature': 'v1=f592bbf3951cfc94e560eecfb5d9dd4da6b0fff2e626235f8ab4b54860925d0b',
      'relay-delivery-id': 'd-1',
    });
  });

  it('signs with both secrets during a rotation, newest first', () => {
    const hex = (secret: string) =>
      createHmac('sha256', secret).update('1700000000.').update(body).digest('hex');
    const [fresh, old] = [secretOf(1), secretOf(2)];
    expect(headers('relay', [fresh, old])['relay-signature']).toBe(`v1=${hex(fresh)},v1=${hex(old)}`);
  });

  it('carries the prefix', () => {
    const signed = headers('relay', ['whsec_test'], { names: headerNames('Acme') });
    expect(Object.keys(signed)).toEqual(['acme-timestamp', 'acme-signature', 'acme-delivery-id']);
  });

  it('signs the bytes, whatever they are', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 300 }), (bytes) => {
        const signed = headers('relay', ['whsec_test'], { body: Buffer.from(bytes) });
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
      const both = [secretOf(3), secretOf(4)];
      const signed = headers('standard', both, { timestampSeconds: nowSeconds() });
      for (const secret of both) {
        expect(new Verifier(secret).verify(body.toString(), signed)).toEqual({ hello: 'world' });
      }
    });

    it(`is refused by ${name} when secret, body or id differ`, () => {
      const signed = headers('standard', [secretOf(5)], { timestampSeconds: nowSeconds() });
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
          const signed = headers('standard', [secret], { timestampSeconds: at, body: Buffer.from(text) });
          expect(signed['webhook-signature']).toBe(reference.sign('d-1', new Date(at * 1000), text));
        },
      ),
    );
  });
});

describe('the stripe scheme', () => {
  const stripe = new Stripe('sk_test_none');
  const construct = (text: string, header: string, secret: string) =>
    stripe.webhooks.constructEvent(text, header, secret);

  it('is verified by stripe, with the old and the new secret of a rotation', () => {
    const both = [secretOf(1), 'a-secret-of-ones-own'];
    const header = headers('stripe', both, { timestampSeconds: nowSeconds() })['stripe-signature']!;
    for (const secret of both) expect(construct(String(body), header, secret)).toEqual({ hello: 'world' });
    expect(() => construct(String(body), header, secretOf(2))).toThrow();
    expect(() => construct('{"hello":"worlds"}', header, both[0]!)).toThrow();
  });

  it('is refused by stripe when it is old', () => {
    const header = headers('stripe', [secretOf(1)], { timestampSeconds: nowSeconds() - 301 });
    expect(() => construct(String(body), header['stripe-signature']!, secretOf(1))).toThrow(/tolerance/);
  });

  it('signs every body as stripe does', () => {
    fc.assert(
      fc.property(
        fc.string({ unit: 'grapheme', maxLength: 200 }),
        fc.integer({ min: 1, max: 2 ** 32 }),
        (payload, timestamp) => {
          const secret = secretOf(7);
          const signed = headers('stripe', [secret], {
            timestampSeconds: timestamp,
            body: Buffer.from(payload),
          });
          const reference = stripe.webhooks.generateTestHeaderString({ payload, secret, timestamp });
          expect(signed).toEqual({ 'stripe-signature': reference });
        },
      ),
    );
  });
});

describe('the github scheme', () => {
  it('is verified by octokit, and says what GitHub says', async () => {
    const signed = headers('github', [secretOf(1)]);
    expect(signed).toEqual({
      'x-hub-signature-256': expect.stringMatching(/^sha256=[0-9a-f]{64}$/),
      'x-github-event': 'order.paid',
      'x-github-delivery': 'd-1',
    });
    const header = signed['x-hub-signature-256']!;
    expect(await verifyGithub(secretOf(1), String(body), header)).toBe(true);
    expect(await verifyGithub(secretOf(2), String(body), header)).toBe(false);
    expect(await verifyGithub(secretOf(1), '{"hello":"worlds"}', header)).toBe(false);
  });

  it('has one signature, of the newest secret', () => {
    expect(headers('github', [secretOf(1), secretOf(2)])).toEqual(headers('github', [secretOf(1)]));
  });
});

describe('every scheme', () => {
  it.each(SIGNING_SCHEMES)('%s needs a key', (scheme) => {
    expect(() => headers(scheme, [])).toThrow('at least one secret');
  });
});
