import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { packEntries, unpackEntry } from './stream-entry.ts';

const ID = '01a22fb6-474a-7000-89bf-180a53390001';

describe('row ids packed into stream entries', () => {
  it('come out as they went in, in order, at most 128 to an entry', () => {
    fc.assert(
      fc.property(fc.array(fc.uuid(), { maxLength: 400 }), (ids) => {
        const entries = packEntries(ids);
        const unpacked = entries.map(unpackEntry);
        expect(unpacked.flatMap((entry) => (entry.kind === 'ids' ? entry.ids : []))).toEqual(ids);
        expect(entries.length).toBe(Math.ceil(ids.length / 128));
        for (const entry of unpacked)
          expect(entry.kind === 'ids' && entry.ids.length).toBeLessThanOrEqual(128);
      }),
    );
  });

  it('end in their ids, which is where an announcer that failed finds them again', () => {
    expect(packEntries([ID, ID])[0]?.at(-1)).toBe(`${ID},${ID}`);
  });
});

describe('an entry that Relay did not write so', () => {
  it.each<[string, string[] | null]>([
    ['nothing at all', null],
    ['no field', []],
    ['no version', ['n', '1', 'ids', ID]],
    ['a version without a value', ['v']],
    ['no ids', ['v', '1', 'n', '1']],
    ['no count', ['v', '1', 'ids', ID]],
    ['a wrong count', ['v', '1', 'n', '2', 'ids', ID]],
    ['an empty list', ['v', '1', 'n', '0', 'ids', '']],
    ['something that is no id', ['v', '1', 'n', '1', 'ids', `${ID}; drop table`]],
    ['an id in capitals', ['v', '1', 'n', '1', 'ids', ID.toUpperCase()]],
    ['too many ids', ['v', '1', 'n', '129', 'ids', Array(129).fill(ID).join(',')]],
    ['its version as a value only', ['x', 'v', '1', 'y']],
  ])('is malformed with %s', (_, fields) => {
    expect(unpackEntry(fields)).toEqual({ kind: 'malformed' });
  });

  it('never throws', () => {
    fc.assert(
      fc.property(fc.array(fc.oneof(fc.string(), fc.constantFrom('v', '1', 'n', 'ids', ID))), (fields) => {
        expect(['ids', 'unknown_version', 'malformed']).toContain(unpackEntry(fields).kind);
      }),
    );
  });

  it('is left to others when its version is another', () => {
    expect(unpackEntry(['v', '2', 'anything', 'else'])).toEqual({ kind: 'unknown_version' });
  });

  it('is read whatever order its fields have, and whatever else it carries', () => {
    expect(unpackEntry(['ids', ID, 'more', 'v', 'n', '1', 'v', '1'])).toEqual({ kind: 'ids', ids: [ID] });
  });
});
