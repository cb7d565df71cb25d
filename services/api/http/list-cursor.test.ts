import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { openIdPlace, openPlace, sealPlace } from './list-cursor.ts';
import { Problem } from './problem.ts';

const ID = '0193a1b2-c3d4-7000-8000-0123456789ab';
const LIST = { list: 'deliveries', tenantId: 'a', status: 'dead', from: new Date(5), to: undefined };

const refusal = (cursor: string, list = LIST) => {
  try {
    openIdPlace(cursor, list);
    return null;
  } catch (error) {
    return error instanceof Problem ? [error.status, error.errors[0]?.field] : error;
  }
};

describe('a cursor', () => {
  it('leads back to its place in its list', () => {
    expect(openIdPlace(sealPlace(ID, LIST)!, LIST)).toBe(ID);
    expect(sealPlace(null, LIST)).toBeNull();
    expect(openIdPlace(undefined, LIST)).toBeNull();
  });

  it('is refused by every other list, tenant and filter', () => {
    const cursor = sealPlace(ID, LIST)!;
    for (const other of [
      { ...LIST, list: 'events' },
      { ...LIST, tenantId: 'b' },
      { ...LIST, status: 'pending' },
      { ...LIST, from: new Date(6) },
      { ...LIST, to: new Date(6) },
    ] as (typeof LIST)[]) {
      expect(refusal(cursor, other)).toEqual([400, 'cursor']);
    }
  });

  it('is refused after any change of one character, and so is whatever was no cursor', () => {
    const cursor = sealPlace(ID, LIST)!;
    for (let at = 0; at < cursor.length; at++) {
      const other = cursor[at] === 'A' ? 'B' : 'A';
      expect(refusal(cursor.slice(0, at) + other + cursor.slice(at + 1))).toEqual([400, 'cursor']);
    }
    for (const end of ['=', ' ', '.', 'A', '\0']) expect(refusal(cursor + end)).toEqual([400, 'cursor']);
    fc.assert(
      fc.property(fc.string({ unit: 'binary' }), (text) => {
        expect(refusal(text)).toEqual([400, 'cursor']);
      }),
    );
  });

  it('that was sealed around something else than an id leads nowhere', () => {
    const cursor = sealPlace("'; drop table", LIST)!;
    expect(openPlace(cursor, LIST)).toBe("'; drop table");
    expect(refusal(cursor)).toEqual([400, 'cursor']);
  });
});
