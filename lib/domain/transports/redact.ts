const REDACTED = '[redacted]';
/** So much of a token at the end of what was cut is taken for its beginning. */
const TELLING = 4;

/**
 * Takes a secret out of what a platform, or something before it, said: errors there like to quote the path that was asked for. Whether its
 * letters were written large or small makes no difference, and its beginning at the end of the text goes too, where the answer may have been
 * cut.
 */
export function redacted(text: string, hidden: string): string {
  if (hidden === '') return text;
  const parts: string[] = [];
  const [lowerText, lowerHidden] = [text.toLowerCase(), hidden.toLowerCase()];
  let from = 0;
  for (let at = lowerText.indexOf(lowerHidden); at >= 0; at = lowerText.indexOf(lowerHidden, from)) {
    parts.push(text.slice(from, at), REDACTED);
    from = at + hidden.length;
  }
  const rest = text.slice(from);
  const begun = begunAtTheEnd(lowerText.slice(from), lowerHidden);
  parts.push(begun === 0 ? rest : rest.slice(0, -begun) + REDACTED);
  return parts.join('');
}

/** How many of the last characters are the first ones of the secret. */
function begunAtTheEnd(text: string, hidden: string): number {
  for (let length = Math.min(hidden.length - 1, text.length); length >= TELLING; length -= 1) {
    if (text.endsWith(hidden.slice(0, length))) return length;
  }
  return 0;
}
