import { z } from 'zod';
import { MOMENT_RULE, parseMoment } from '../../../lib/domain/delivery-times.ts';
import { EVENT_TYPE_RULE, isEventType } from '../../../lib/domain/event-type.ts';
import { validateIdempotencyKey } from '../../../lib/domain/idempotency-key.ts';
import { EMAIL_RULES, type EmailMessage, MAX_RECIPIENTS } from '../../../lib/domain/messages.ts';
import { uuid } from '../http/fields.ts';

/** What is parsed by these has its payload as the bytes that stand in the body (see item-fields.ts). */

function eventType() {
  return z
    .string({ error: EVENT_TYPE_RULE })
    .refine(isEventType, { error: EVENT_TYPE_RULE })
    .meta({ pattern: '^[A-Za-z0-9_.:-]{1,128}$' });
}

function idempotencyKey() {
  return byRule((value) => (typeof value === 'string' ? validateIdempotencyKey(value) : 'must be text')).meta(
    { type: 'string', pattern: '^[!-~]{1,255}$' },
  ) as unknown as z.ZodType<string>;
}

/** A moment by the same rule as in the headers of a single event. */
function moment() {
  return z
    .string({ error: MOMENT_RULE })
    .transform((text, context) => {
      const date = parseMoment(text);
      if (date) return date;
      context.addIssue({ code: 'custom', message: MOMENT_RULE });
      return z.NEVER;
    })
    .meta({ type: 'string', format: 'date-time' });
}

/** A value that a rule judges in words. */
function byRule(rule: (value: unknown) => string | null) {
  return z.unknown().superRefine((value, context) => {
    const broken = rule(value);
    if (broken !== null) context.addIssue({ code: 'custom', message: broken });
  });
}

const ANY_TYPE = ['object', 'array', 'string', 'number', 'boolean', 'null'] as const;

function rawJson(description: string, type: readonly string[] = ANY_TYPE) {
  return z.custom<Buffer>(Buffer.isBuffer, { error: 'is missing' }).meta({ type: [...type], description });
}

const CONTENT_TYPE = /^[\x20-\x7e]{1,255}$/;
const BASE64 = /^[A-Za-z0-9+/]*={0,2}$/;

function isBase64(text: string): boolean {
  return BASE64.test(text) && Buffer.from(text, 'base64').toString('base64') === text;
}

/** One event of a batch. */
export const EventItem = z
  .strictObject({
    type: eventType(),
    payload: rawJson('Any JSON; its bytes are kept as they stand here.').optional(),
    payload_base64: z
      .string({ error: 'must be text' })
      .refine(isBase64, { error: 'must be standard base64 with its padding' })
      .meta({ contentEncoding: 'base64', description: 'For bytes that are no JSON, instead of `payload`.' })
      .optional(),
    content_type: z
      .string({ error: 'must be text' })
      .regex(CONTENT_TYPE, { error: 'must be 1 to 255 visible ASCII characters' })
      .meta({ description: 'application/json when absent; needed with `payload_base64`.' })
      .optional(),
    idempotency_key: idempotencyKey().optional(),
    endpoint_id: uuid().optional(),
    deliver_at: moment().optional(),
    expires_at: moment().optional(),
  })
  .superRefine((event, context) => {
    const issue = (field: string, message: string) =>
      context.addIssue({ code: 'custom', path: [field], message });
    if ((event.payload === undefined) === (event.payload_base64 === undefined))
      issue('payload', 'is needed, or payload_base64, and not both');
    else if (event.payload_base64 !== undefined && event.content_type === undefined)
      issue('content_type', 'is needed with payload_base64');
  })
  .meta({ id: 'EventItem' });

/** A webhook that is rendered to the end. */
export const WebhookMessage = z
  .strictObject({
    kind: z.literal('webhook'),
    idempotencyKey: idempotencyKey(),
    endpointId: uuid(),
    event: eventType(),
    body: rawJson(
      'A text is sent as its characters in UTF-8, an object or array as the bytes that stand here.',
      ['string', 'object', 'array'],
    ),
  })
  .meta({ id: 'WebhookMessage' });

function emailField(field: keyof EmailMessage, meta: Record<string, unknown>) {
  return byRule(EMAIL_RULES[field]).meta(meta);
}

const addresses = { type: 'array', items: { type: 'string' }, minItems: 1, maxItems: MAX_RECIPIENTS };

/** An email that is rendered to the end. */
export const EmailItem = z
  .strictObject({
    kind: z.literal('email'),
    idempotencyKey: idempotencyKey(),
    endpointId: uuid()
      .optional()
      .meta({ description: 'The email endpoint to send by; needed only where there are several.' }),
    to: z
      .preprocess((value) => (typeof value === 'string' ? [value] : value), byRule(EMAIL_RULES.to))
      .meta({ oneOf: [{ type: 'string' }, addresses] }),
    subject: emailField('subject', { type: 'string', maxLength: 998 }),
    html: emailField('html', { type: 'string', description: 'May be empty when `text` is not.' }),
    text: emailField('text', { type: 'string', description: 'May be empty when `html` is not.' }),
    headers: emailField('headers', {
      type: 'object',
      additionalProperties: { type: 'string' },
      description: 'Headers of the mail, such as Reply-To; none that Relay or the mail servers write.',
    }).optional(),
  })
  .meta({ id: 'EmailMessage' });

/** A finished message. */
export const MessageItem = z.discriminatedUnion('kind', [WebhookMessage, EmailItem]);
