/**
 * Finished messages: what a producer has rendered to the end, so that nothing of it is made when it is sent. A webhook message is an event
 * like any other, addressed to one endpoint. An email message is an event whose payload is the frozen email; the API writes it, the email
 * transport reads it, and both by the rules of this page.
 */

/** The type of the event that carries an email message. */
export const EMAIL_EVENT_TYPE = 'message.email';

/** Tells the email transport that the payload is an email message, rather than an event to be rendered. */
export const EMAIL_CONTENT_TYPE = 'application/vnd.relay.email+json';

export interface EmailMessage {
  to: string[];
  subject: string;
  /** Empty when there is none; one of the two is there. */
  html: string;
  text: string;
  headers: Record<string, string>;
}

/** What is wrong with an email message: which field, and the rule that it breaks. */
export interface EmailFault {
  field: string;
  rule: string;
}

export const MAX_RECIPIENTS = 50;
const MAX_HEADERS = 50;
/** The longest line that a mail may have (RFC 5322). */
const MAX_LINE = 998;

/** The payload of an email message. */
export function encodeEmail({ to, subject, html, text, headers }: EmailMessage): Buffer {
  return Buffer.from(JSON.stringify({ to, subject, html, text, headers }));
}

/** Reads a payload of EMAIL_CONTENT_TYPE: anybody may post one, so it is judged again. */
export function decodeEmail(payload: Uint8Array): EmailMessage | EmailFault {
  let value: unknown;
  try {
    value = JSON.parse(UTF8.decode(payload));
  } catch {
    return { field: 'body', rule: 'must be JSON in UTF-8' };
  }
  return typeof value === 'object' && value !== null
    ? parseEmail(value)
    : { field: 'body', rule: 'must be a JSON object' };
}

const UTF8 = new TextDecoder('utf-8', { fatal: true });

/** An email message of fields that nobody has looked at yet, or the first fault. `to` may be one address; `headers` may be absent. */
export function parseEmail(fields: object): EmailMessage | EmailFault {
  const { to, subject, html, text, headers = {} } = fields as Record<string, unknown>;
  const email = { to: typeof to === 'string' ? [to] : to, subject, html, text, headers };
  for (const [field, rule] of Object.entries(EMAIL_RULES)) {
    const broken = rule(email[field as keyof typeof email]);
    if (broken !== null) return { field, rule: broken };
  }
  if (html === '' && text === '') return { field: 'text', rule: 'must not be empty when html is' };
  return email as EmailMessage;
}

export function isEmailFault(parsed: EmailMessage | EmailFault): parsed is EmailFault {
  return 'rule' in parsed;
}

/** For each field the rule that a value breaks, or null. */
export const EMAIL_RULES: Readonly<Record<keyof EmailMessage, (value: unknown) => string | null>> = {
  to: recipientsRule,
  subject: (value) => (isLine(value) ? null : LINE_RULE),
  html: textRule,
  text: textRule,
  headers: headersRule,
};

const LINE_RULE = `must be text of at most ${MAX_LINE} characters, without line breaks and other control characters`;
const CONTROL = /[\p{Cc}\p{Surrogate}]/u;
const UNSENDABLE = /[\0\p{Surrogate}]/u;

function isLine(value: unknown): boolean {
  return typeof value === 'string' && value.length <= MAX_LINE && !CONTROL.test(value);
}

function textRule(value: unknown): string | null {
  if (typeof value !== 'string') return 'must be text; it may be empty';
  return UNSENDABLE.test(value) ? 'must not hold the character U+0000 or half of a surrogate pair' : null;
}

// Bare addresses: a name, a comment or a list beside one would be read by the mail library, and add recipients that nobody counted.
const ADDRESS =
  /^[^\s\p{Cc}\p{Surrogate}<>()[\]\\,;:"@]{1,64}@[^\s\p{Cc}\p{Surrogate}<>()[\]\\,;:"@]{1,253}$/u;

/** Whether a text is one address, such as ada@example.com, and nothing besides. */
export function isEmailAddress(text: string): boolean {
  return ADDRESS.test(text);
}

function recipientsRule(value: unknown): string | null {
  const known = Array.isArray(value) && value.length >= 1 && value.length <= MAX_RECIPIENTS;
  const bare = known && value.every((address) => typeof address === 'string' && isEmailAddress(address));
  return bare ? null : `must be 1 to ${MAX_RECIPIENTS} addresses such as ada@example.com, without names`;
}

const HEADER_NAME = /^[A-Za-z][A-Za-z0-9-]{0,75}$/;
/** What the transport writes itself, what adds recipients, and what only mail servers write. */
const RESERVED =
  /^(to|from|cc|bcc|sender|subject|date|message-id|mime-version|return-path|received|delivered-to|dkim-signature|content-.*|resent-.*|arc-.*|relay-.*)$/i;

function headersRule(value: unknown): string | null {
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    return 'must be an object of texts';
  const entries = Object.entries(value);
  if (entries.length > MAX_HEADERS) return `may hold at most ${MAX_HEADERS} headers`;
  const seen = new Set<string>();
  for (const [name, text] of entries) {
    const shown = name.slice(0, 80);
    if (!HEADER_NAME.test(name)) return `${JSON.stringify(shown)} cannot be the name of a header`;
    if (RESERVED.test(name)) return `${shown} cannot be set by a message`;
    if (seen.has(name.toLowerCase())) return `${shown} stands twice`;
    if (!isLine(text)) return `${shown} ${LINE_RULE}`;
    seen.add(name.toLowerCase());
  }
  return null;
}
