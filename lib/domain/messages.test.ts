import { readFileSync } from 'node:fs';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  decodeEmail,
  EMAIL_CONTENT_TYPE,
  EMAIL_EVENT_TYPE,
  type EmailMessage,
  encodeEmail,
  isEmailFault,
  parseEmail,
} from './messages.ts';

interface Fixture {
  name: string;
  message: { kind: string } & Record<string, unknown>;
  event: { type: string; contentType: string; payload: string };
}
const fixtures: Fixture[] = JSON.parse(
  readFileSync(new URL('./fixtures/messages.json', import.meta.url), 'utf8'),
);
const emails = fixtures.filter(({ message }) => message.kind === 'email');

const email = (changes: Record<string, unknown> = {}) => ({
  to: ['ada@example.com'],
  subject: 'Hello',
  html: '<p>Hello</p>',
  text: 'Hello',
  headers: {},
  ...changes,
});

function faultOf(changes: Record<string, unknown>): string | null {
  const parsed = parseEmail(email(changes));
  return isEmailFault(parsed) ? parsed.field : null;
}

describe('an email message', () => {
  it('is frozen as the shared examples say', () => {
    expect(emails.length).toBeGreaterThan(1);
    for (const { message, event } of emails) {
      const parsed = parseEmail(message) as EmailMessage;
      expect(encodeEmail(parsed).toString()).toBe(event.payload);
      expect([event.type, event.contentType]).toEqual([EMAIL_EVENT_TYPE, EMAIL_CONTENT_TYPE]);
    }
  });

  it('is read as it was frozen', () => {
    for (const { message, event } of emails) {
      const { to, subject, html, text, headers = {} } = message;
      expect(decodeEmail(Buffer.from(event.payload))).toEqual({
        to: [to].flat(),
        subject,
        html,
        text,
        headers,
      });
    }
  });

  it('is the same again after it was frozen and read, whatever it says', () => {
    const words = fc.string({ unit: 'grapheme', maxLength: 40 });
    const record = fc.record({ subject: words, html: words, text: words, value: words });
    fc.assert(
      fc.property(record, ({ value, ...texts }) => {
        const parsed = parseEmail(email({ ...texts, headers: { 'X-Value': value } }));
        if (isEmailFault(parsed)) return;
        expect(decodeEmail(encodeEmail(parsed))).toEqual(parsed);
      }),
    );
  });

  it.each([
    ['nobody to go to', { to: [] }, 'to'],
    ['too many to go to', { to: Array.from({ length: 51 }, (_, n) => `a${n}@example.com`) }, 'to'],
    ['no address', { to: 'ada' }, 'to'],
    ['a name beside the address', { to: 'Ada <ada@example.com>' }, 'to'],
    ['two addresses in one', { to: 'ada@example.com,bob@example.com' }, 'to'],
    ['a line break in an address', { to: 'ada@example.com\r\nBcc: bob@example.com' }, 'to'],
    ['two signs in an address', { to: 'ada@bob@example.com' }, 'to'],
    ['addresses that are numbers', { to: [1] }, 'to'],
    ['a line break in the subject', { subject: 'Hello\nBcc: bob@example.com' }, 'subject'],
    ['another line break in the subject', { subject: 'Hello\u0085Bcc: bob@example.com' }, 'subject'],
    ['a subject without end', { subject: 'x'.repeat(999) }, 'subject'],
    ['no subject', { subject: undefined }, 'subject'],
    ['half a character in the subject', { subject: '\ud83d' }, 'subject'],
    ['U+0000 in the text', { text: 'a\0b' }, 'text'],
    ['html that is no text', { html: 7 }, 'html'],
    ['nothing to say', { html: '', text: '' }, 'text'],
    ['headers in a list', { headers: [] }, 'headers'],
    ['headers that are nothing', { headers: null }, 'headers'],
    ['a line break in a header', { headers: { 'X-A': 'b\r\nBcc: bob@example.com' } }, 'headers'],
    ['a line break in the name of a header', { headers: { 'X-A: b\r\nBcc': 'bob@example.com' } }, 'headers'],
    ['a header that is a number', { headers: { 'X-A': 1 } }, 'headers'],
    ['a header that stands twice', { headers: { 'X-A': '1', 'x-a': '2' } }, 'headers'],
    ['a name that is none', { headers: JSON.parse('{"__proto__":"x"}') }, 'headers'],
    [
      'too many headers',
      { headers: Object.fromEntries(Array.from({ length: 51 }, (_, n) => [`X-${n}`, ''])) },
      'headers',
    ],
    ['more recipients', { headers: { bcc: 'bob@example.com' } }, 'headers'],
    ['another sender', { headers: { From: 'bob@example.com' } }, 'headers'],
    ['another content type', { headers: { 'Content-Type': 'text/html' } }, 'headers'],
  ])('is refused with %s', (_, changes, field) => {
    expect(faultOf(changes)).toBe(field);
  });

  it('is refused when it is no JSON object in UTF-8', () => {
    for (const bytes of ['', 'null', '1', '{"to":', Buffer.from([0x7b, 0xff, 0x7d])]) {
      expect(decodeEmail(Buffer.from(bytes))).toMatchObject({ field: 'body' });
    }
    expect(decodeEmail(Buffer.from('[]'))).toMatchObject({ field: 'to' });
  });
});
