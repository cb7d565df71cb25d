import { JsonWalk, type Place } from './json-walk.ts';

/** One item of a body that holds many, by where it stands. */
export interface PostedItem extends Place {
  /** The rule that it breaks by itself, whatever its fields say; null when its fields may be read. */
  fault: string | null;
}

/** Cuts a body into its items as it arrives. */
export interface ItemReader {
  /** Those that are whole, in order. */
  readonly items: readonly PostedItem[];
  /** Goes on up to `end`, where more may follow. Returns the rule that the body as a whole breaks, or null. */
  feed(bytes: Uint8Array, end: number): string | null;
  /** The same, when nothing follows. */
  finish(bytes: Uint8Array, end: number): string | null;
}

/** The elements of a JSON array. What is no JSON anywhere in it spoils all of it: nobody can tell where the next element begins. */
export function jsonItems(): ItemReader {
  const walk = new JsonWalk('elements');
  const items: PostedItem[] = [];
  let begun = false;
  const feed = (bytes: Uint8Array, end: number) => {
    if (!begun && end < MARK.length) return null;
    if (!begun) walk.restart(afterMark(bytes));
    begun = true;
    const sound = walk.feed(bytes, end);
    for (const place of walk.places.splice(0)) items.push(judge(place));
    return sound ? null : `is not a JSON array: byte ${walk.at}, in item ${items.length}, cannot stand there`;
  };
  return {
    items,
    feed,
    finish: (bytes, end) => {
      begun ||= end < MARK.length;
      const fault = feed(bytes, end);
      return fault ?? (walk.finish() ? null : 'is not a JSON array: it ends before its last bracket');
    },
  };
}

/** The lines of NDJSON, empty ones left out. A line that is no JSON spoils only itself. */
export function ndjsonItems(): ItemReader {
  const items: PostedItem[] = [];
  let lineStart = 0;
  let seen = 0;
  const readLine = (bytes: Uint8Array, end: number) => {
    const start = lineStart === 0 ? afterMark(bytes.subarray(0, end)) : lineStart;
    if (!isBlank(bytes, start, end)) items.push(objectAt(bytes, start, end));
    lineStart = end + 1;
    seen = lineStart;
  };
  const feed = (bytes: Uint8Array, end: number) => {
    for (;;) {
      const lineEnd = bytes.indexOf(0x0a, seen);
      if (lineEnd < 0 || lineEnd >= end) break;
      readLine(bytes, lineEnd);
    }
    seen = end;
    return null;
  };
  return {
    items,
    feed,
    finish: (bytes, end) => {
      feed(bytes, end);
      if (lineStart < end) readLine(bytes, end);
      return null;
    },
  };
}

/** The one object that a body holds, from `start` up to, not including, `end`. */
export function objectAt(bytes: Uint8Array, start: number, end: number): PostedItem {
  const walk = new JsonWalk('value');
  walk.restart(start);
  const [place] = walk.feed(bytes, end) && walk.finish() ? walk.places : [];
  if (place) return judge(place);
  const fault = walk.at < end ? `is not JSON: byte ${walk.at - start} cannot stand there` : CUT_SHORT;
  return { start, end, fields: null, crowded: false, fault };
}

const CUT_SHORT = 'is not JSON: it ends too soon';

function judge(place: Place): PostedItem {
  const fault =
    place.fields === null ? 'must be a JSON object' : place.crowded ? 'has too many fields' : null;
  const { start, end, fields, crowded } = place;
  return { start, end, fields, crowded, fault };
}

/** The byte order mark, which some programs put before what they write. */
const MARK = [0xef, 0xbb, 0xbf];

/** Where a text begins that may have a byte order mark before it. */
export function afterMark(bytes: Uint8Array): number {
  return MARK.every((byte, at) => bytes[at] === byte) ? MARK.length : 0;
}

function isBlank(bytes: Uint8Array, start: number, end: number): boolean {
  for (let at = start; at < end; at += 1) {
    const byte = bytes[at];
    if (byte !== 0x20 && byte !== 0x09 && byte !== 0x0d) return false;
  }
  return true;
}
