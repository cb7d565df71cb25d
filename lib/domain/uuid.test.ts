import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { isUuid, uuidV7 } from './uuid.ts';

const bytes = fc.uint8Array({ minLength: 10, maxLength: 10 }).map((array) => Buffer.from(array));

describe('a version 7 uuid', () => {
  it('has its version and variant whatever the random bytes are', () => {
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 2 ** 47 }), bytes, (ms, random) => {
        expect(uuidV7(ms, random)).toMatch(
          /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/,
        );
      }),
    );
  });

  it('sorts by its millisecond', () => {
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 2 ** 47 }), bytes, bytes, (ms, a, b) => {
        expect(uuidV7(ms, a) < uuidV7(ms + 1, b)).toBe(true);
      }),
    );
  });
});

describe('isUuid', () => {
  it.each([
    ['018f3c1e-7b1a-7000-8000-000000000001', true],
    ['018F3C1E-7B1A-7000-8000-00000000000A', true],
    ['018f3c1e7b1a70008000000000000001', false],
    ['{018f3c1e-7b1a-7000-8000-000000000001}', false],
    ['018f3c1e-7b1a-7000-8000-00000000000g', false],
    ['', false],
  ])('%s: %s', (text, expected) => {
    expect(isUuid(text)).toBe(expected);
  });
});
