import { inspect } from 'node:util';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { newSecret, signingKey, validateSecret } from './signing.ts';
import { SIGNING_SCHEMES } from './vocabulary.ts';

describe('a secret', () => {
  it('is whsec_ and the base64 of 32 bytes, good for every scheme', () => {
    fc.assert(
      fc.property(fc.uint8Array({ minLength: 32, maxLength: 32 }), (bytes) => {
        const secret = newSecret(Buffer.from(bytes));
        expect(secret).toMatch(/^whsec_[A-Za-z0-9+/]{43}=$/);
        for (const scheme of SIGNING_SCHEMES) expect(validateSecret(scheme, secret)).toBeNull();
      }),
    );
    expect(() => newSecret(Buffer.alloc(31))).toThrow('32');
  });

  it('is not shown by the key made from it', () => {
    const key = signingKey('relay', 'whsec_do_not_show');
    expect(inspect(key, { depth: 9 }) + JSON.stringify({ key }) + String(key)).not.toContain('do_not_show');
  });

  it.each(
    SIGNING_SCHEMES.filter((scheme) => scheme !== 'standard').flatMap((scheme) => [
      [scheme, 'short', '8 to 255'],
      [scheme, 'x'.repeat(256), '8 to 255'],
      [scheme, 'with a space', 'without spaces'],
      [scheme, 'with\nline-end', 'without spaces'],
      [scheme, 'umlaut-äöü', 'ASCII'],
      [scheme, 'short', scheme],
    ]),
  )('for %s is refused: %j as %s', (scheme, secret, reason) => {
    expect(validateSecret(scheme as 'relay', secret!)).toContain(reason);
  });

  it.each([
    ['plain-secret-of-some-length', 'whsec_'],
    ['whsec_', '24 to 64'],
    ['whsec_not*base64', 'base64'],
    [`whsec_${Buffer.alloc(32).toString('base64').slice(0, -1)}`, 'base64'],
    [`whsec_${Buffer.alloc(32, 255).toString('base64url')}`, 'base64'],
    [`whsec_${Buffer.alloc(23).toString('base64')}`, '24 to 64'],
    [`whsec_${Buffer.alloc(65).toString('base64')}`, '24 to 64'],
  ])('for standard is refused: %s as %s', (secret, reason) => {
    expect(validateSecret('standard', secret)).toContain(reason);
  });

  it.each([24, 64])('for standard may hold %i bytes', (size) => {
    expect(validateSecret('standard', `whsec_${Buffer.alloc(size, 1).toString('base64')}`)).toBeNull();
  });

  it('that cannot be decoded never signs with a guess', () => {
    expect(() => signingKey('standard', 'whsec_test')).toThrow('cannot sign');
  });
});
