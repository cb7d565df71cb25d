/**
 * Where the values of a JSON text stand, found without making anything of them: what is passed on byte for byte must not be parsed and
 * printed again. The text may come in pieces and be nested as deep as it is long: there is no recursion, and a level costs one byte.
 */

/** A value of interest: the bytes from `start` up to, not including, `end`. */
export interface Place {
  start: number;
  end: number;
  /** Of an object its fields, four offsets each: start and end of the name, quotes included, then of the value. Null for any other value. */
  fields: number[] | null;
  /** It has more fields than are noted. */
  crowded: boolean;
}

/** What may come next. The states of a number stand last, and those in which it may end are even. */
const START = 0;
const VALUE = 1;
const FIRST_VALUE = 2;
const FIRST_NAME = 3;
const NAME = 4;
const COLON = 5;
const AFTER_VALUE = 6;
const DONE = 7;
const STRING = 8;
const ESCAPE = 9;
const HEX = 10;
const WORD = 11;
const MINUS = 13;
const ZERO = 14;
const POINT = 15;
const WHOLE = 16;
const EXPONENT = 17;
const FRACTION = 18;
const EXPONENT_SIGN = 19;
const POWER = 20;

const ARRAY = 1;
const OBJECT = 2;
const MAX_FIELDS = 64;
const WORDS: Readonly<Record<number, string>> = { 116: 'true', 102: 'false', 110: 'null' };
const ESCAPED = new Set([...'"\\/bfnrt'].map((letter) => letter.charCodeAt(0)));

/** Walks over one JSON text (RFC 8259), as strict as JSON.parse. */
export class JsonWalk {
  /** Those that are whole, in order. */
  places: Place[] = [];
  /** The next byte to be looked at; where the text is wrong, after `feed` said so. */
  at = 0;
  readonly #depthOfPlaces: 0 | 1;
  #state = START;
  #depth = 0;
  #stack = new Uint8Array(64);
  #place: Place = { start: 0, end: 0, fields: null, crowded: false };
  #inName = false;
  #hexLeft = 0;
  #word = '';
  #letters = 0;

  /** @param interest the one value of the text, or the elements of the array that it must be then */
  constructor(interest: 'value' | 'elements') {
    this.#depthOfPlaces = interest === 'value' ? 0 : 1;
  }

  /** Begins with another text, which stands from `at` on. */
  restart(at: number): void {
    this.places = [];
    this.at = at;
    this.#state = START;
    this.#depth = 0;
  }

  /** Goes on up to `end`, where more may follow. False when the text is no JSON, whatever follows. */
  feed(bytes: Uint8Array, end: number): boolean {
    while (this.at < end) if (!this.#step(bytes, end)) return false;
    return true;
  }

  /** Tells whether the text is whole, when nothing follows. */
  finish(): boolean {
    if (this.#depth === 0 && this.#state >= ZERO && this.#state % 2 === 0) this.#endValue();
    return this.#state === DONE;
  }

  #step(bytes: Uint8Array, end: number): boolean {
    const state = this.#state;
    if (state === STRING) return this.#string(bytes, end);
    const byte = bytes[this.at]!;
    if (state >= MINUS) return this.#number(byte);
    if (state >= ESCAPE) return this.#inside(byte);
    if (byte !== 0x20 && byte !== 0x0a && byte !== 0x0d && byte !== 0x09) return this.#token(byte);
    this.at += 1;
    return true;
  }

  #token(byte: number): boolean {
    switch (this.#state) {
      case START:
        return (this.#depthOfPlaces === 0 || byte === 0x5b) && this.#beginValue(byte);
      case FIRST_VALUE:
        return byte === 0x5d ? this.#close(ARRAY) : this.#beginValue(byte);
      case VALUE:
        return this.#beginValue(byte);
      case FIRST_NAME:
        return byte === 0x7d ? this.#close(OBJECT) : this.#beginName(byte);
      case NAME:
        return this.#beginName(byte);
      case COLON:
        return byte === 0x3a && this.#go(VALUE);
      case AFTER_VALUE:
        return this.#afterValue(byte);
      default:
        return false;
    }
  }

  #afterValue(byte: number): boolean {
    if (byte === 0x2c) return this.#go(this.#stack[this.#depth - 1] === ARRAY ? VALUE : NAME);
    if (byte === 0x5d) return this.#close(ARRAY);
    return byte === 0x7d && this.#close(OBJECT);
  }

  #beginValue(byte: number): boolean {
    if (this.#depth === this.#depthOfPlaces) {
      this.#place = { start: this.at, end: 0, fields: byte === 0x7b ? [] : null, crowded: false };
    }
    this.#noteField();
    if (byte === 0x22) {
      this.#inName = false;
      return this.#go(STRING);
    }
    if (byte === 0x7b) return this.#open(OBJECT);
    if (byte === 0x5b) return this.#open(ARRAY);
    if (byte === 0x2d) return this.#go(MINUS);
    if (byte === 0x30) return this.#go(ZERO);
    if (isDigit(byte)) return this.#go(WHOLE);
    return this.#beginWord(byte);
  }

  #beginName(byte: number): boolean {
    this.#noteField();
    this.#inName = true;
    return byte === 0x22 && this.#go(STRING);
  }

  #beginWord(byte: number): boolean {
    this.#word = WORDS[byte] ?? '';
    this.#letters = 1;
    return this.#word !== '' && this.#go(WORD);
  }

  #open(kind: number): boolean {
    if (this.#depth === this.#stack.length) {
      const stack = new Uint8Array(2 * this.#depth);
      stack.set(this.#stack);
      this.#stack = stack;
    }
    this.#stack[this.#depth] = kind;
    this.#depth += 1;
    return this.#go(kind === ARRAY ? FIRST_VALUE : FIRST_NAME);
  }

  #close(kind: number): boolean {
    if (this.#stack[this.#depth - 1] !== kind) return false;
    this.#depth -= 1;
    this.at += 1;
    this.#endValue();
    return true;
  }

  #string(bytes: Uint8Array, end: number): boolean {
    let at = this.at;
    let byte = bytes[at]!;
    while (byte !== 0x22 && byte !== 0x5c && byte >= 0x20) {
      at += 1;
      if (at === end) break;
      byte = bytes[at]!;
    }
    this.at = at;
    if (at === end) return true;
    if (byte === 0x5c) return this.#go(ESCAPE);
    if (byte !== 0x22) return false;
    this.at += 1;
    this.#endString();
    return true;
  }

  #endString(): void {
    if (!this.#inName) return this.#endValue();
    this.#noteField();
    this.#state = COLON;
  }

  #inside(byte: number): boolean {
    if (this.#state === WORD) return this.#letter(byte);
    if (this.#state === ESCAPE) {
      this.#hexLeft = 4;
      return byte === 0x75 ? this.#go(HEX) : ESCAPED.has(byte) && this.#go(STRING);
    }
    this.#hexLeft -= 1;
    return isHexDigit(byte) && this.#go(this.#hexLeft === 0 ? STRING : HEX);
  }

  #letter(byte: number): boolean {
    if (byte !== this.#word.charCodeAt(this.#letters)) return false;
    this.at += 1;
    this.#letters += 1;
    if (this.#letters === this.#word.length) this.#endValue();
    return true;
  }

  #number(byte: number): boolean {
    const next = nextOfNumber(this.#state, byte);
    if (next !== 0) return this.#go(next);
    // What no longer belongs to the number is looked at as what follows it.
    if (this.#state % 2 !== 0) return false;
    this.#endValue();
    return true;
  }

  #endValue(): void {
    if (this.#depth === this.#depthOfPlaces) {
      this.#place.end = this.at;
      this.places.push(this.#place);
    } else {
      this.#noteField();
    }
    this.#state = this.#depth === 0 ? DONE : AFTER_VALUE;
  }

  #noteField(): void {
    if (this.#depth !== this.#depthOfPlaces + 1) return;
    const { fields } = this.#place;
    if (fields === null) return;
    if (fields.length < 4 * MAX_FIELDS) fields.push(this.at);
    else this.#place.crowded = true;
  }

  #go(state: number): true {
    this.#state = state;
    this.at += 1;
    return true;
  }
}

/** The state of a number after one more byte; 0 when the byte does not belong to it. */
function nextOfNumber(state: number, byte: number): number {
  switch (state) {
    case MINUS:
      return byte === 0x30 ? ZERO : isDigit(byte) ? WHOLE : 0;
    case WHOLE:
      if (isDigit(byte)) return WHOLE;
      return byte === 0x2e ? POINT : isE(byte) ? EXPONENT : 0;
    case ZERO:
      return byte === 0x2e ? POINT : isE(byte) ? EXPONENT : 0;
    case POINT:
      return isDigit(byte) ? FRACTION : 0;
    case FRACTION:
      return isDigit(byte) ? FRACTION : isE(byte) ? EXPONENT : 0;
    case EXPONENT:
      return isDigit(byte) ? POWER : byte === 0x2b || byte === 0x2d ? EXPONENT_SIGN : 0;
    default:
      return isDigit(byte) ? POWER : 0;
  }
}

const isE = (byte: number) => byte === 0x65 || byte === 0x45;
const isDigit = (byte: number) => byte >= 0x30 && byte <= 0x39;
const isHexDigit = (byte: number) =>
  isDigit(byte) || (byte >= 0x41 && byte <= 0x46) || (byte >= 0x61 && byte <= 0x66);
