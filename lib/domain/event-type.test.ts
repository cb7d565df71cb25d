import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  isEventType,
  matchesPattern,
  normalizePatterns,
  patternCandidates,
  validatePattern,
} from './event-type.ts';

/** Few letters and many dots, so that random types and patterns meet. */
const types = fc.string({ unit: fc.constantFrom('a', 'b', '.'), minLength: 1, maxLength: 8 });
const patterns = fc.oneof(
  { weight: 1, arbitrary: fc.constant('*') },
  { weight: 10, arbitrary: types },
  { weight: 20, arbitrary: types.map((type) => `${type}.*`) },
);

describe('an event type', () => {
  it('is made of the allowed characters and no others', () => {
    for (let code = 0; code < 0x250; code++) {
      const character = String.fromCharCode(code);
      expect({ code, valid: isEventType(`a${character}`) }).toEqual({
        code,
        valid: /[\w.:-]/.test(character),
      });
    }
  });

  it.each(['', 'a'.repeat(129), 'order created', 'order.created\n', '*', 'order.*', 'größe'])(
    'is not %j',
    (type) => {
      expect(isEventType(type)).toBe(false);
    },
  );

  it.each(['a', 'a'.repeat(128), 'order.created', 'com.acme:order-created_v2', '.', '..a'])(
    'may be %j',
    (type) => {
      expect(isEventType(type)).toBe(true);
    },
  );
});

describe('a pattern', () => {
  it('with a star matches what starts with its prefix and a dot', () => {
    expect(matchesPattern('order.*', 'order.created')).toBe(true);
    expect(matchesPattern('order.*', 'order.created.v2')).toBe(true);
    expect(matchesPattern('order.*', 'order')).toBe(false);
    expect(matchesPattern('order.*', 'orders.created')).toBe(false);
  });

  it.each(['*', 'order.created', 'order.*', 'a.b.*', `${'a'.repeat(126)}.*`])('may be %j', (pattern) => {
    expect(validatePattern(pattern)).toBeNull();
  });

  it.each([
    '',
    '.*',
    '**',
    'order*',
    'order.*.v2',
    '*.created',
    'order.**',
    'or der.*',
    `${'a'.repeat(127)}.*`,
  ])('is not %j', (pattern) => {
    expect(validatePattern(pattern)).toContain('pattern');
  });
});

describe('the candidates of a type', () => {
  it('are every pattern that could match it', () => {
    expect(patternCandidates('a.b.c')).toEqual(['*', 'a.*', 'a.b.*', 'a.b.c']);
    expect(patternCandidates('order')).toEqual(['*', 'order']);
  });

  it('contain a valid pattern exactly when it matches', () => {
    fc.assert(
      fc.property(types, patterns, (type, pattern) => {
        fc.pre(validatePattern(pattern) === null);
        expect(patternCandidates(type).includes(pattern)).toBe(matchesPattern(pattern, type));
      }),
      { numRuns: 5_000 },
    );
  });
});

describe('normalised patterns', () => {
  it('say in the fewest words what the list said', () => {
    expect(normalizePatterns([])).toEqual(['*']);
    expect(normalizePatterns(['b', 'a', 'b'])).toEqual(['a', 'b']);
    expect(normalizePatterns(['a.b.*', 'a', 'a.b.c', 'a.*'])).toEqual(['a', 'a.*']);
    expect(normalizePatterns(['a.*', '*', 'b'])).toEqual(['*']);
  });

  it('match exactly what the originals match, and each type by exactly one of its candidates', () => {
    fc.assert(
      fc.property(fc.array(patterns, { minLength: 1, maxLength: 8 }), types, (list, type) => {
        const normalised = normalizePatterns(list);
        const matched = list.some((pattern) => matchesPattern(pattern, type));
        expect(normalised.some((pattern) => matchesPattern(pattern, type))).toBe(matched);
        const hits = patternCandidates(type).filter((candidate) => normalised.includes(candidate));
        expect(hits).toHaveLength(matched ? 1 : 0);
      }),
      { numRuns: 5_000 },
    );
  });

  it('do not depend on order and stay as they are when normalised again', () => {
    fc.assert(
      fc.property(fc.array(patterns, { maxLength: 8 }), (list) => {
        const normalised = normalizePatterns(list);
        expect(normalizePatterns([...list].reverse())).toEqual(normalised);
        expect(normalizePatterns(normalised)).toEqual(normalised);
      }),
    );
  });
});
