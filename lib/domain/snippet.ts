/** What is kept of an answer's body. */
export const SNIPPET_MAX_BYTES = 2048;

const PLAIN = /^[\t\n\r\x20-\x7e]*$/;
// biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what this looks for
const CONTROL = /[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]/g;

/**
 * Turns the first bytes of an answer into text that a Postgres text column, a JSON document and a terminal all take, at
 * most `maxBytes` long in UTF-8. What is not text stays visible: bad bytes as U+FFFD, control characters as their
 * pictures (U+2400 and on), and a body that is mostly such is marked `[binary]` at its start.
 */
export function safeSnippet(bytes: Uint8Array, maxBytes = SNIPPET_MAX_BYTES): string {
  const size = Math.min(bytes.byteLength, maxBytes);
  const text = Buffer.from(bytes.buffer, bytes.byteOffset, size).toString('latin1');
  if (PLAIN.test(text)) return text;
  return cutToBytes(visibleText(bytes, maxBytes), maxBytes);
}

function visibleText(bytes: Uint8Array, maxBytes: number): string {
  // Where the reader cut the body, half a character at the end is our doing and not the endpoint's.
  const cut = bytes.byteLength >= maxBytes;
  const decoded = new TextDecoder('utf-8', { ignoreBOM: true }).decode(bytes, { stream: cut });
  const shown = decoded.replace(CONTROL, picture);
  return isBinary(decoded) ? `[binary] ${shown}` : shown;
}

function picture(control: string): string {
  const code = control.charCodeAt(0);
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  // C1 controls have no pictures, and some terminals obey them.
  return code === 0x7f ? '\u2421' : '\ufffd';
}

/** A NUL, or more than a quarter of characters that no text has. */
function isBinary(decoded: string): boolean {
  if (decoded.includes('\0')) return true;
  const strange = decoded.match(CONTROL)?.length ?? 0;
  const undecodable = decoded.split('\ufffd').length - 1;
  return (strange + undecodable) * 4 > decoded.length;
}

/** Cuts on a character boundary, so that no surrogate is left alone. */
function cutToBytes(text: string, maxBytes: number): string {
  if (Buffer.byteLength(text) <= maxBytes) return text;
  const bytes = Buffer.from(text).subarray(0, maxBytes);
  // `stream` keeps an unfinished character back instead of printing it as U+FFFD.
  return new TextDecoder('utf-8', { ignoreBOM: true }).decode(bytes, { stream: true });
}
