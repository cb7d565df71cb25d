import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { JsonWalk } from './json-walk.ts';

const bytesOf = (text: string) => new TextEncoder().encode(text);

/** The text of each place of interest, or null when the walk refuses the text; `cuts` are where a piece of it ends. */
function walk(text: string, interest: 'value' | 'elements', cuts: readonly number[] = []) {
  const bytes = bytesOf(text);
  const walked = new JsonWalk(interest);
  const ends = [...cuts.map((cut) => cut % (bytes.length + 1)).sort((a, b) => a - b), bytes.length];
  if (!ends.every((end) => walked.feed(bytes, end)) || !walked.finish()) return null;
  const slice = (start: number, end: number) => new TextDecoder().decode(bytes.subarray(start, end));
  return walked.places.map((place) => ({
    text: slice(place.start, place.end),
    fields:
      place.fields &&
      Array.from({ length: place.fields.length / 4 }, (_, n) => {
        const [nameStart, nameEnd, start, end] = place.fields!.slice(4 * n);
        return [slice(nameStart!, nameEnd!), slice(start!, end!)];
      }),
  }));
}

function parsed(text: string): { value: unknown } | null {
  try {
    return { value: JSON.parse(text) };
  } catch {
    return null;
  }
}

/** JSON as people print it: any spacing, any escapes, numbers in any spelling, names given twice. */
const spacing = fc
  .array(fc.constantFrom(' ', '\n', '\r', '\t'), { maxLength: 2 })
  .map((part) => part.join(''));
const letter = fc.oneof(
  fc.constantFrom(
    'a',
    'é',
    '😀',
    '\\n',
    '\\"',
    '\\\\',
    '\\/',
    '\\u0000',
    '\\ud83d',
    '\\uDE00',
    '{',
    ']',
    ',',
  ),
  fc.string({ minLength: 1, maxLength: 3 }).map((text) => JSON.stringify(text).slice(1, -1)),
);
const jsonString = fc.array(letter, { maxLength: 5 }).map((letters) => `"${letters.join('')}"`);
const jsonNumber = fc.oneof(
  fc.constantFrom('0', '-0', '1e400', '0.1000', '12345678901234567890', '1E+2', '-1.5e-07', '2e0'),
  fc.double({ noNaN: true, noDefaultInfinity: true }).map((number) => JSON.stringify(number)),
);
const { json } = fc.letrec<{ json: string }>((tie) => ({
  json: fc.oneof(
    { maxDepth: 4 },
    fc.oneof(jsonString, jsonNumber, fc.constantFrom('true', 'false', 'null')),
    fc
      .array(fc.tuple(spacing, tie('json'), spacing), { maxLength: 4 })
      .map((values) => `[${values.map((value) => value.join('')).join(',') || ' '}]`),
    fc
      .array(fc.tuple(spacing, jsonString, spacing, tie('json'), spacing), { maxLength: 4 })
      .map((pairs) => `{${pairs.map(([a, name, b, value, c]) => `${a}${name}${b}:${value}${c}`).join(',')}}`),
  ),
}));
const cuts = fc.array(fc.nat(), { maxLength: 6 });

describe('a walk over JSON', () => {
  it('finds each element as it was printed, in whatever pieces it comes', () => {
    const array = fc.array(fc.tuple(spacing, json, spacing), { maxLength: 5 });
    fc.assert(
      fc.property(array, cuts, (elements, at) => {
        const text = ` [${elements.map((element) => element.join('')).join(',')}]\n`;
        const found = walk(text, 'elements', at);
        expect(found?.map((place) => place.text)).toEqual(elements.map(([, element]) => element));
        expect(found?.map((place) => JSON.parse(place.text))).toEqual(JSON.parse(text));
      }),
      { numRuns: 500 },
    );
  });

  it('finds each field of an object as it was printed, also those that stand twice', () => {
    const pair = fc.tuple(spacing, jsonString, spacing, spacing, json, spacing);
    fc.assert(
      fc.property(fc.array(pair, { maxLength: 5 }), cuts, (pairs, at) => {
        const text = `{${pairs.map(([a, name, b, c, value, d]) => `${a}${name}${b}:${c}${value}${d}`).join(',')}}`;
        expect(walk(text, 'value', at)).toEqual([
          { text, fields: pairs.map(([, name, , , value]) => [name, value]) },
        ]);
      }),
      { numRuns: 500 },
    );
  });

  it('takes what JSON.parse takes, and refuses what it refuses', () => {
    const damaged = fc
      .tuple(json, fc.nat(), fc.nat(2), fc.constantFrom('', ...'{}[]",:\\0123e.-+tfn \u0001u'))
      .map(
        ([text, at, gone, put]) =>
          text.slice(0, at % (text.length + 1)) + put + text.slice((at % (text.length + 1)) + gone),
      );
    fc.assert(
      fc.property(fc.oneof(damaged, fc.string(), json), cuts, (text, at) => {
        const clean = Buffer.from(text).toString();
        expect(walk(clean, 'value', at) !== null).toBe(parsed(clean) !== null);
        expect(walk(clean, 'elements', at) !== null).toBe(Array.isArray(parsed(clean)?.value));
      }),
      { numRuns: 3_000 },
    );
  });

  it.each([
    '',
    ' ',
    '[',
    '[1',
    '[1,',
    '[1,]',
    '[,1]',
    '[1 2]',
    '[]]',
    '[][]',
    '{}',
    '"a"',
    '[01]',
    '[1.]',
    '[.5]',
    '[+1]',
    '[1e]',
    '[-]',
    '[tru]',
    '[truex]',
    '["\u0001"]',
    '["\\x"]',
    '["\\u12g4"]',
    '[{"a"}]',
    '[{"a":1,}]',
    '[{a:1}]',
    "['a']",
    '[NaN]',
    '\ufeff[]',
    '[/**/]',
  ])('refuses %j as an array', (text) => {
    expect(walk(text, 'elements')).toBeNull();
  });

  it('goes as deep as the text is long', () => {
    for (const depth of [5_000, 200_000, 2_000_000]) {
      const deep = '['.repeat(depth) + ']'.repeat(depth);
      expect(walk(`[${deep},{"a":${deep}}]`, 'elements')?.map((place) => place.text.length)).toEqual([
        2 * depth,
        2 * depth + 6,
      ]);
      expect(walk('['.repeat(depth), 'elements')).toBeNull();
      expect(walk(`${'['.repeat(depth)}${'}'.repeat(depth)}`, 'elements')).toBeNull();
    }
  });

  it('notes a bounded number of fields, and says that there were more', () => {
    const walked = new JsonWalk('value');
    const bytes = bytesOf(`{${Array.from({ length: 10_000 }, () => '"a":1').join(',')}}`);
    expect(walked.feed(bytes, bytes.length) && walked.finish()).toBe(true);
    expect(walked.places[0]).toMatchObject({ crowded: true });
    expect(walked.places[0]!.fields!.length).toBe(256);
  });
});
