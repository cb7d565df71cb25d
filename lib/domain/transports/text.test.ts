import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { CHAT_PLATFORMS, type TextLimit } from './chat-platform.ts';
import { cutText, renderText } from './text.ts';

const codePoints = (max: number): TextLimit => ({ max, sizeOf: () => 1 });
const sizeIn = (text: string, { sizeOf }: TextLimit) =>
  [...text].reduce((size, codePoint) => size + sizeOf(codePoint), 0);
const { telegram, discord, slack } = CHAT_PLATFORMS;

const FAMILY = '👩‍👩‍👧‍👦';
const FLAG = '🇩🇪';
const ACCENTED = 'e\u0301';

describe('an event for people', () => {
  it('is its type, and below it the payload as it is', () => {
    expect(renderText('order.created', Buffer.from('{"n": 1}'), telegram.limit)).toBe(
      'order.created\n{"n": 1}',
    );
  });

  it('is its type alone when there is no payload', () => {
    expect(renderText('ping', Buffer.alloc(0), telegram.limit)).toBe('ping');
  });

  it('shows what is not text, and holds nothing that a platform would refuse', () => {
    const text = renderText('t', Buffer.from([0x00, 0xff, 0x07, 0x41]), telegram.limit);
    expect(text).toBe('t\n[binary] ␀�␇A');
  });

  it.each([
    ['telegram', telegram.limit, 4_096],
    ['discord', discord.limit, 2_000],
  ])('takes all characters that %s takes, whatever their size in bytes', (_, limit, max) => {
    for (const character of ['a', 'ä', '水', '🚀']) {
      const payload = character.repeat(max - 2);
      expect(renderText('t', Buffer.from(payload), limit)).toBe(`t\n${payload}`);
      const cut = renderText('t', Buffer.from(`${payload}x`), limit);
      expect(cut).toBe(`t\n${character.repeat(max - 3)}…`);
      expect([...cut]).toHaveLength(max);
    }
  });

  it('is counted for slack as it is escaped, so that no escape is cut', () => {
    const text = renderText('t', Buffer.from('&'.repeat(3_000)), slack.limit);
    const { text: sent } = slack.body('', text) as { text: string };
    expect(sent).toBe(`t\n${'&amp;'.repeat(599)}…`);
    expect(sent.length).toBeLessThanOrEqual(3_000);
  });

  it('is rendered from no more of a large payload than can be shown', () => {
    const text = renderText('t', Buffer.alloc(8_000_000, '水'), telegram.limit);
    expect([...text]).toHaveLength(4_096);
  });
});

describe('a text that is cut', () => {
  it.each([
    ['a family', FAMILY, 7],
    ['a flag', FLAG, 2],
    ['a letter and its accent', ACCENTED, 2],
    ['a line break of two characters', '\r\n', 2],
  ])('keeps %s whole or leaves it out', (_, character, size) => {
    for (let room = 0; room < 2 * size; room += 1) {
      const text = cutText(`ab${character.repeat(3)}`, codePoints(3 + room));
      expect(text).toBe(`ab${character.repeat(Math.floor(room / size))}…`);
    }
  });

  it('is cut inside a character that is longer than the whole limit', () => {
    const zalgo = `a${'\u0301'.repeat(5_000)}`;
    expect(cutText(zalgo, codePoints(100))).toBe(`a${'\u0301'.repeat(98)}…`);
  });

  it('is never longer than its limit, is the beginning of the text, and splits no surrogate pair', () => {
    const text = fc.string({
      unit: fc.constantFrom('a', '&', FAMILY, FLAG, ACCENTED, '🚀', '水', ' '),
      maxLength: 60,
    });
    fc.assert(
      fc.property(text, fc.integer({ min: 1, max: 80 }), fc.boolean(), (given, max, escaping) => {
        const limit = escaping ? { ...slack.limit, max } : codePoints(max);
        const cut = cutText(given, limit);
        expect(sizeIn(cut, limit)).toBeLessThanOrEqual(max);
        expect(cut.isWellFormed()).toBe(true);
        if (sizeIn(given, limit) <= max) expect(cut).toBe(given);
        else expect(given.startsWith(cut.slice(0, -1)) && cut.endsWith('…')).toBe(true);
      }),
    );
  });
});
