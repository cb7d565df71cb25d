import { gzipSync } from 'node:zlib';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { SNIPPET_MAX_BYTES, safeSnippet } from './snippet.ts';

const text = (value: string) => safeSnippet(Buffer.from(value));

describe('the stored part of an answer', () => {
  it.each(['', 'ok', '{"a":"b"}\r\n\tc', 'größe 日本 🎉', '\ufeffwith a mark'])(
    'keeps the text %j as it is',
    (value) => {
      expect(text(value)).toBe(value);
    },
  );

  it('is storable and short, whatever the bytes', () => {
    const anything = fc.oneof(
      fc.uint8Array({ maxLength: 4_000, size: 'max' }),
      fc
        .string({ unit: 'binary', maxLength: 3_000, size: 'max' })
        .map((value) => new Uint8Array(Buffer.from(value))),
    );
    fc.assert(
      fc.property(anything, fc.integer({ min: 16, max: 2_048 }), (bytes, limit) => {
        const snippet = safeSnippet(bytes, limit);
        expect(snippet).not.toMatch(/\p{Surrogate}/u);
        expect(Buffer.byteLength(snippet)).toBeLessThanOrEqual(limit);
        // biome-ignore lint/suspicious/noControlCharactersInRegex: this is what must not be there
        expect(snippet).not.toMatch(/[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]/);
      }),
    );
  });

  it('shows control characters instead of dropping them', () => {
    expect(text('a line\u0007 with a bell and \u001b[31mred, then text enough')).toBe(
      'a line\u2407 with a bell and \u241b[31mred, then text enough',
    );
    expect(text('delete\u007f me, and a C1 \u009b here')).toBe('delete\u2421 me, and a C1 \ufffd here');
  });

  it('shows bytes that are not UTF-8, as in Latin-1 text', () => {
    expect(safeSnippet(Buffer.from('caf\xe9 au lait, s\xfcss', 'latin1'))).toBe(
      'caf\ufffd au lait, s\ufffdss',
    );
  });

  it('marks what is no text at all', () => {
    expect(safeSnippet(Buffer.from([0x00, 0xff, 0x00, 0xff]))).toBe('[binary] \u2400\ufffd\u2400\ufffd');
    expect(safeSnippet(gzipSync('{"compressed":true}'))).toMatch(/^\[binary\] /);
    expect(safeSnippet(Buffer.from('text with one \0 in the middle of it'))).toMatch(/^\[binary\] text with/);
  });

  it('is cut between characters, not inside one', () => {
    for (let lead = 0; lead < 8; lead++) {
      const body = Buffer.from('x'.repeat(lead) + '🎉'.repeat(600));
      const snippet = safeSnippet(body.subarray(0, SNIPPET_MAX_BYTES));
      expect(snippet).toBe('x'.repeat(lead) + '🎉'.repeat(Math.floor((SNIPPET_MAX_BYTES - lead) / 4)));
    }
  });

  it('keeps plain text to the last byte that fits', () => {
    expect(text('y'.repeat(5_000))).toBe('y'.repeat(SNIPPET_MAX_BYTES));
  });

  it('shows an unfinished character when the endpoint itself sent it so', () => {
    expect(
      safeSnippet(Buffer.concat([Buffer.from('a text that ends with half a '), Buffer.from([0xc3])])),
    ).toBe('a text that ends with half a \ufffd');
  });
});
