import { describe, expect, it } from 'vitest';
import { classify } from '../outcome.ts';
import { mailOf, messageId, statusOfReply } from './email.ts';

const source = (contentType: string, payload: string | Buffer) => ({
  type: 'order.created',
  contentType,
  payload: Buffer.from(payload as string),
  address: 'ops@example.com',
});

describe('an event as a mail', () => {
  it('goes to the address of the endpoint, with its type for a subject, and asks for no answer', () => {
    expect(mailOf(source('application/json', '{"n": 1}'))).toEqual({
      to: ['ops@example.com'],
      subject: 'order.created',
      html: '',
      text: 'order.created\n\n{"n": 1}',
      headers: { 'Auto-Submitted': 'auto-generated' },
    });
  });

  it('holds the whole of a payload, and shows what is not text', () => {
    const long = '水'.repeat(80_000);
    expect(mailOf(source('text/plain', long))).toMatchObject({ text: `order.created\n\n${long}` });
    expect(mailOf(source('text/plain', Buffer.from([0xff, 0x00])))).toMatchObject({
      text: 'order.created\n\n[binary] �␀',
    });
  });
});

describe('a finished message as a mail', () => {
  const MESSAGE = {
    to: ['a@example.com'],
    subject: 's',
    html: '<p>h</p>',
    text: 't',
    headers: { 'X-Campaign': 'c' },
  };

  it.each(['application/vnd.relay.email+json', 'Application/vnd.Relay.email+JSON; charset=utf-8'])(
    'of type %s is what it says, to whom it says',
    (type) => {
      expect(mailOf(source(type, JSON.stringify(MESSAGE)))).toEqual(MESSAGE);
    },
  );

  it.each([
    ['{', 'body'],
    ['{"to":"a@b","subject":"s\\r\\nBcc: c@d","html":"","text":"t"}', 'subject'],
    ['{"to":"a@b","subject":"s","html":"","text":"t","headers":{"Bcc":"c@d"}}', 'headers'],
    ['{"to":"a@b, c@d","subject":"s","html":"","text":"t"}', 'to'],
  ])('that is none (%s) is a fault', (payload, field) => {
    expect(mailOf(source('application/vnd.relay.email+json', payload))).toMatchObject({ field });
  });
});

describe('the id of a mail', () => {
  it('is that of its delivery, under the domain of the sender', () => {
    expect(messageId('018bcfe5-6800-7000-8f2c-9d1e5b7a0001', 'relay@mail.example.com')).toBe(
      '<018bcfe5-6800-7000-8f2c-9d1e5b7a0001@mail.example.com>',
    );
  });
});

describe('the reply of a mail server', () => {
  it('is a success, worth repeating, or final, by its first digit', () => {
    for (let code = 200; code <= 599; code += 1) {
      const meaning = statusOfReply(code);
      const outcome = classify({
        kind: 'response',
        status: null,
        meaning,
        retryAfter: [],
        snippet: Buffer.alloc(0),
        firstByteMs: 1,
        durationMs: 1,
      });
      const expected = code <= 299 ? 'success' : code >= 400 && code <= 499 ? 'retryable' : 'permanent';
      expect(outcome.class).toBe(expected);
      if (outcome.class === 'permanent') expect(outcome.reason).toBe('permanent_failure');
    }
  });

  it('that it goes away says that it is failing; that a mailbox is full does not', () => {
    expect([statusOfReply(421), statusOfReply(452)]).toEqual([503, 429]);
  });
});
