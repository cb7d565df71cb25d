/** Headers that an endpoint's owner has sent with every request to it, by name as it was written. */
export type CustomHeaders = Readonly<Record<string, string>>;

export const MAX_CUSTOM_HEADERS = 20;
export const MAX_HEADER_NAME_LENGTH = 64;
export const MAX_HEADER_VALUE_LENGTH = 1_024;
/** Names and values together: many servers take 8 KiB of headers in all, and Relay's own are among them. */
export const MAX_HEADERS_LENGTH = 6_144;

const TOKEN = /^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}$/;
/** Visible ASCII, with spaces and tabs between but not around it. */
const VALUE = /^[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?$/;

/** What the connection, the body or Relay itself speaks by. A second value would let two readers of one request disagree about it. */
const RESERVED = new Set([
  'connection',
  'content-encoding',
  'content-length',
  'content-range',
  'content-type',
  'expect',
  'host',
  'http2-settings',
  'keep-alive',
  'stripe-signature',
  'te',
  'traceparent',
  'tracestate',
  'trailer',
  'transfer-encoding',
  'upgrade',
  'user-agent',
  'x-hub-signature',
  'x-hub-signature-256',
]);
const RESERVED_BEGINNINGS = ['proxy-', 'relay-', 'webhook-', 'x-github-'];

/** Judges the name of a custom header. Null when it can be used, else the rule it breaks. */
export function validateHeaderName(name: string): string | null {
  if (!TOKEN.test(name)) {
    return `a header name is 1 to ${MAX_HEADER_NAME_LENGTH} letters, digits and ! # $ % & ' * + - . ^ _ \` | ~`;
  }
  const lower = name.toLowerCase();
  if (RESERVED.has(lower)) return `${lower} is reserved: Relay or the connection sets it`;
  const beginning = RESERVED_BEGINNINGS.find((start) => lower.startsWith(start));
  return beginning === undefined ? null : `names that begin with ${beginning} are reserved`;
}

/** Judges the value of a custom header, which may be a credential: the rule never repeats it. */
export function validateHeaderValue(value: string): string | null {
  if (value.length < 1 || value.length > MAX_HEADER_VALUE_LENGTH) {
    return `a header value has 1 to ${MAX_HEADER_VALUE_LENGTH} characters`;
  }
  return VALUE.test(value)
    ? null
    : 'a header value is visible ASCII, with spaces and tabs inside it but not around it';
}

/** Judges headers together that are fine one by one. Names that differ in case alone are one name to every receiver. */
export function validateHeaderNames(names: readonly string[]): string | null {
  if (names.length > MAX_CUSTOM_HEADERS) return `at most ${MAX_CUSTOM_HEADERS} headers`;
  const seen = new Set<string>();
  for (const name of names) {
    if (seen.has(name.toLowerCase())) return `${name} stands there twice`;
    seen.add(name.toLowerCase());
  }
  return null;
}

/** Null when they fit into what receivers accept, else the rule. */
export function validateHeadersLength(headers: CustomHeaders): string | null {
  const length = Object.entries(headers).reduce((sum, [name, value]) => sum + name.length + value.length, 0);
  return length <= MAX_HEADERS_LENGTH
    ? null
    : `names and values together have at most ${MAX_HEADERS_LENGTH} characters`;
}

/** The first name that could be taken for one of Relay's own headers under this prefix, or null. */
export function prefixClash(names: readonly string[], prefix: string): string | null {
  const beginning = `${prefix.toLowerCase()}-`;
  return names.find((name) => name.toLowerCase().startsWith(beginning)) ?? null;
}

/** What such a name breaks, to be read behind it. */
export const CLASH_RULE = "begins with the header prefix, as Relay's own headers do";
