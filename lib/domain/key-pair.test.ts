import { createPublicKey, type KeyObject, verify } from 'node:crypto';
import { inspect } from 'node:util';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { headerNames } from './header-names.ts';
import { newKeyPair, privateSigningKey } from './key-pair.ts';
import { signatureHeaders } from './signature-headers.ts';
import { newSecret, type SigningKey, signingKey } from './signing.ts';

/** The vector that implementations of Standard Webhooks publish for `v1a`. */
const VECTOR = {
  pair: {
    privateKey:
      'whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==',
    publicKey: 'whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=',
  },
  id: 'msg_p5jXN8AQM9LWM0D4loKWxJek',
  at: 1_614_265_330,
  body: Buffer.from('{"test": 2432232314}'),
  signature: 'v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg==',
};
const seedOf = (privateKey: string) => Buffer.from(privateKey.slice(5), 'base64').subarray(0, 32);

function signature(keys: readonly SigningKey[], { id, at, body }: Omit<typeof VECTOR, 'pair' | 'signature'>) {
  const headers = signatureHeaders({
    scheme: 'standard',
    keys,
    deliveryId: id,
    eventType: 'a.b',
    timestampSeconds: at,
    body,
    names: headerNames('Relay'),
  });
  return headers[headers.indexOf('webhook-signature') + 1]!;
}

/** As a receiver does it that has nothing but the public key. */
function verifies(publicKey: string, part: string, signed: string): boolean {
  const x = Buffer.from(publicKey.slice('whpk_'.length), 'base64').toString('base64url');
  const key: KeyObject = createPublicKey({ key: { kty: 'OKP', crv: 'Ed25519', x }, format: 'jwk' });
  return verify(null, Buffer.from(signed), key, Buffer.from(part.slice('v1a,'.length), 'base64'));
}

describe('a key pair', () => {
  it('signs as the published vector says, and is written as it is', () => {
    expect(signature([privateSigningKey(VECTOR.pair.privateKey)], VECTOR)).toBe(VECTOR.signature);
    expect(newKeyPair(seedOf(VECTOR.pair.privateKey))).toEqual(VECTOR.pair);
  });

  it('is verified by node:crypto from its public key alone, whatever the body', () => {
    fc.assert(
      fc.property(
        fc.uint8Array({ minLength: 32, maxLength: 32 }),
        fc.string({ unit: 'grapheme', maxLength: 200 }),
        (seed, text) => {
          const { privateKey, publicKey } = newKeyPair(Buffer.from(seed));
          const part = signature([privateSigningKey(privateKey)], { ...VECTOR, body: Buffer.from(text) });
          expect(verifies(publicKey, part, `${VECTOR.id}.${VECTOR.at}.${text}`)).toBe(true);
          expect(verifies(publicKey, part, `${VECTOR.id}.${VECTOR.at}.${text}!`)).toBe(false);
        },
      ),
      { numRuns: 50 },
    );
  });

  it('signs behind the secrets, the newest of each first', () => {
    const secrets = [1, 2].map((fill) => signingKey('standard', newSecret(Buffer.alloc(32, fill))));
    const pairs = [3, 4].map((fill) => privateSigningKey(newKeyPair(Buffer.alloc(32, fill)).privateKey));
    const alone = [...secrets, ...pairs].map((key) => signature([key], VECTOR));
    expect(signature([...secrets, ...pairs], VECTOR).split(' ')).toEqual(alone);
    expect(alone.map((part) => part.split(',')[0])).toEqual(['v1', 'v1', 'v1a', 'v1a']);
  });

  it('is not shown by the key made from it', () => {
    const key = privateSigningKey(VECTOR.pair.privateKey);
    expect(inspect(key, { depth: 9 }) + JSON.stringify({ key })).not.toMatch(/6Xb|secretSeed/);
  });

  it.each(['', 'whsk_', 'whsec_AAAA', VECTOR.pair.publicKey, VECTOR.pair.privateKey.slice(0, -8)])(
    'cannot be had from %j, and the refusal does not repeat it',
    (text) => {
      expect(() => privateSigningKey(text)).toThrow(/^the signing key is no private key$/);
    },
  );
});
