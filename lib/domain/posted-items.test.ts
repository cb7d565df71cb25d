import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type ItemReader, jsonItems, ndjsonItems, objectAt } from './posted-items.ts';

/** Feeds a body in pieces of `step` bytes, from a buffer that holds something else behind what has arrived. */
function read(reader: ItemReader, text: string | Buffer, step = 7) {
  const whole = Buffer.from(text);
  const bytes = Buffer.alloc(whole.length, '\n{"stale":1}\n');
  let fault: string | null = null;
  for (let end = 0; end < whole.length && fault === null; end += step) {
    whole.copy(bytes, end, end, Math.min(end + step, whole.length));
    fault = reader.feed(bytes, Math.min(end + step, whole.length));
  }
  fault ??= reader.finish(bytes, whole.length);
  const items = reader.items.map((item) => item.fault ?? bytes.toString('utf8', item.start, item.end));
  return { fault, items };
}

const object = fc.dictionary(fc.string({ maxLength: 5 }), fc.jsonValue({ maxDepth: 2 }), { maxKeys: 4 });
const objects = fc.array(
  object.map((value) => JSON.stringify(value)),
  { maxLength: 6 },
);

describe('the items of a body', () => {
  it('are those of a JSON array, as they were printed', () => {
    fc.assert(
      fc.property(objects, fc.integer({ min: 1, max: 20 }), fc.boolean(), (texts, step, marked) => {
        const body = `${marked ? '\ufeff' : ''}[${texts.join(' ,\r\n')}]`;
        expect(read(jsonItems(), body, step)).toEqual({ fault: null, items: texts });
      }),
    );
  });

  it('are the lines of NDJSON, as they were printed, whatever ends them', () => {
    const lineEnd = fc.constantFrom('\n', '\r\n', '\n\n', ' \n\t\r\n');
    fc.assert(
      fc.property(
        objects,
        lineEnd,
        fc.integer({ min: 1, max: 20 }),
        fc.boolean(),
        (texts, ends, step, marked) => {
          for (const last of ['', ends]) {
            const body = `${marked ? '\ufeff' : ''}${texts.join(ends)}${last}`;
            expect(read(ndjsonItems(), body, step)).toEqual({ fault: null, items: texts });
          }
        },
      ),
    );
  });

  it('of an array are refused by themselves when they are no objects', () => {
    expect(read(jsonItems(), '[{"a":1}, 2 , [{}], "x", null, {}]')).toEqual({
      fault: null,
      items: [
        '{"a":1}',
        'must be a JSON object',
        'must be a JSON object',
        'must be a JSON object',
        'must be a JSON object',
        '{}',
      ],
    });
  });

  it('of an array that is no JSON are none, and the place is told', () => {
    for (const [text, fault] of [
      ['[{},{]', /byte 5, in item 1/],
      ['[{}', /ends before/],
      ['[{},]', /byte 4/],
      ['[{}]x', /byte 4/],
      ['{}', /byte 0/],
      ['', /ends before/],
      ['[', /ends before/],
    ] as const) {
      for (const step of [1, 100]) expect(read(jsonItems(), text, step).fault).toMatch(fault);
    }
  });

  it('of NDJSON are refused by themselves when they are no JSON', () => {
    const lines = ['{"a":1}', '{"a":1}{"b":2}', '{"a":', '[]', 'null', '{"a":"\ufeff"}', '\ufeff{}', '{}\r'];
    expect(read(ndjsonItems(), lines.join('\n'))).toEqual({
      fault: null,
      items: [
        '{"a":1}',
        'is not JSON: byte 7 cannot stand there',
        'is not JSON: it ends too soon',
        'must be a JSON object',
        'must be a JSON object',
        '{"a":"\ufeff"}',
        'is not JSON: byte 0 cannot stand there',
        '{}',
      ],
    });
  });

  it('have a bounded number of fields', () => {
    const crowded = `{${Array.from({ length: 1_000 }, (_, n) => `"f${n}":${n}`).join(',')}}`;
    expect(read(jsonItems(), `[${crowded},{}]`).items).toEqual(['has too many fields', '{}']);
    expect(read(ndjsonItems(), `${crowded}\n{}`).items).toEqual(['has too many fields', '{}']);
  });
});

describe('a body of one object', () => {
  it('is read between its bounds alone', () => {
    const bytes = Buffer.from('}{"a": 1}{');
    expect(objectAt(bytes, 1, 9)).toMatchObject({ start: 1, end: 9, fault: null, fields: [2, 5, 7, 8] });
    expect(objectAt(bytes, 0, 9).fault).toMatch(/byte 0/);
    expect(objectAt(bytes, 1, 8).fault).toMatch(/too soon/);
  });
});
