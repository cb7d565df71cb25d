import { safeSnippet } from '../snippet.ts';
import type { TextLimit } from './chat-platform.ts';

const ELLIPSIS = '…';
/** What a code point takes in UTF-8 at most. */
const WIDEST = 4;
/** How far behind the cut is looked for the end of the character that it is in: a flag, a family, an accent. */
const LOOK_AHEAD = 64;
const GRAPHEMES = new Intl.Segmenter('und', { granularity: 'grapheme' });

/** A payload as text for people: the type of its event first, then the payload as it is, as far as it fits. */
export function renderText(type: string, payload: Uint8Array, limit: TextLimit): string {
  return cutText(`${type}\n${payloadText(payload, limit.max * WIDEST)}`.trimEnd(), limit);
}

/** The first bytes of a payload as text, what is none made visible. */
export function payloadText(payload: Uint8Array, maxBytes: number): string {
  return safeSnippet(payload, maxBytes);
}

/**
 * Cuts a text to a limit between two characters as people see them, with an ellipsis. A single one that is longer than the whole limit is cut
 * between code points.
 */
export function cutText(text: string, { max, sizeOf }: TextLimit): string {
  const end = fittingEnd(text, max, sizeOf);
  if (end === text.length) return text;
  const room = fittingEnd(text, max - sizeOf(ELLIPSIS), sizeOf);
  const around = GRAPHEMES.segment(text.slice(0, room + LOOK_AHEAD));
  const boundary = around.containing(room)?.index ?? room;
  return text.slice(0, boundary === 0 ? room : boundary) + ELLIPSIS;
}

/** How much of the text fits, in UTF-16 units, between two code points. */
function fittingEnd(text: string, max: number, sizeOf: TextLimit['sizeOf']): number {
  let end = 0;
  let size = 0;
  for (const codePoint of text) {
    size += sizeOf(codePoint);
    if (size > max) break;
    end += codePoint.length;
  }
  return end;
}
