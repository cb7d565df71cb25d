import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { requestDigest, validateIdempotencyKey } from './idempotency-key.ts';

describe('an idempotency key', () => {
  it('is made of visible ASCII', () => {
    for (let code = 0; code < 0x180; code++) {
      const valid = validateIdempotencyKey(`k${String.fromCharCode(code)}`) === null;
      expect({ code, valid }).toEqual({ code, valid: code >= 0x21 && code <= 0x7e });
    }
  });

  it('has 1 to 255 characters', () => {
    expect(validateIdempotencyKey('k')).toBeNull();
    expect(validateIdempotencyKey('k'.repeat(255))).toBeNull();
    expect(validateIdempotencyKey('')).toContain('1 to 255');
    expect(validateIdempotencyKey('k'.repeat(256))).toContain('1 to 255');
    expect(validateIdempotencyKey('k\n')).toContain('visible ASCII');
  });
});

describe('the digest of a request', () => {
  const parts = fc.tuple(
    fc.string({ maxLength: 6 }),
    fc.string({ maxLength: 6 }),
    fc.option(fc.string({ maxLength: 6 })),
    fc.uint8Array({ maxLength: 12 }),
  );

  it('is the same for the same request only', () => {
    fc.assert(
      fc.property(parts, parts, (a, b) => {
        const same =
          JSON.stringify([...a.slice(0, 3), ...a[3]]) === JSON.stringify([...b.slice(0, 3), ...b[3]]);
        expect(requestDigest(...a).equals(requestDigest(...b))).toBe(same);
        expect(requestDigest(...a).equals(requestDigest(...structuredClone(a)))).toBe(true);
      }),
    );
  });

  it('counts the times of a request, each in its place', () => {
    const [one, two] = [new Date(1_800_000_000_000), new Date(1_800_000_000_001)];
    const of = (deliverAt: Date | null, expiresAt: Date | null) =>
      requestDigest('t', 'c', null, Buffer.from('b'), { deliverAt, expiresAt }).toString('hex');
    const all = [of(null, null), of(one, null), of(two, null), of(null, one), of(null, two), of(one, two)];
    expect(new Set(all).size).toBe(all.length);
    expect(of(null, null)).toBe(requestDigest('t', 'c', null, Buffer.from('b')).toString('hex'));
    expect(of(one, two)).toBe(of(new Date(one), new Date(two)));
  });

  it('does not let bytes wander from one part to the next', () => {
    const of = (type: string, contentType: string, target: string | null, body: string) =>
      requestDigest(type, contentType, target, Buffer.from(body)).toString('hex');
    const digests = [
      of('ab', 'c', null, 'd'),
      of('a', 'bc', null, 'd'),
      of('ab', '', null, 'cd'),
      of('ab', 'c', 'd', ''),
      of('ab', 'c', '', 'd'),
      of('', 'abc', null, 'd'),
    ];
    expect(new Set(digests).size).toBe(digests.length);
  });

  it('stays what stored keys were made with', () => {
    const digest = requestDigest('order.created', 'application/json', null, Buffer.from('{}'));
    expect(digest.toString('hex')).toBe('68f66c6769aa7262f144c8ee0bc9b67a37391eb990a38df1197b6768e9286cbf');
  });
});
