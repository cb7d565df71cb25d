import type { z } from 'zod';
import { type DeliveryTimes, validateDeliveryTimes } from '../../../lib/domain/delivery-times.ts';
import {
  EMAIL_CONTENT_TYPE,
  EMAIL_EVENT_TYPE,
  encodeEmail,
  isEmailFault,
  parseEmail,
} from '../../../lib/domain/messages.ts';
import { parsePart } from '../http/parse.ts';
import { invalid, Problem } from '../http/problem.ts';
import { EmailItem, EventItem, WebhookMessage } from './item-shapes.ts';
import type { EventRequest } from './member.ts';

/** An event that was posted and is well-formed, before anybody has looked for its endpoint. */
export interface Draft {
  request: EventRequest;
  /** What its sender calls the field that names the endpoint. */
  targetField: 'endpoint_id' | 'endpointId';
  /** It must go by an email endpoint: that of its target, or else the tenant's only one. */
  byEmail: boolean;
}

export interface DraftOptions {
  tenantId: string;
  maxPayloadBytes: number;
}

/** Reads one item of a batch, which is an event or a finished message. Throws a 400 or 413 Problem. */
export function draftOfItem(fields: Record<string, unknown>, options: DraftOptions): Draft {
  return 'kind' in fields ? draftOfMessage(fields, options) : draftOfEvent(fields, options);
}

/** Reads a finished message. Throws a 400 or 413 Problem. */
export function draftOfMessage(fields: Record<string, unknown>, options: DraftOptions): Draft {
  if (fields.kind === 'webhook') return draftOfWebhook(fields, options);
  if (fields.kind === 'email') return draftOfEmail(fields, options);
  throw invalid('kind', 'must be webhook or email');
}

function draftOfEvent(fields: Record<string, unknown>, options: DraftOptions): Draft {
  const event = parsePart(EventItem, fields, 'body') as z.output<typeof EventItem>;
  const payload = event.payload ?? Buffer.from(event.payload_base64 ?? '', 'base64');
  const request = {
    type: event.type,
    contentType: event.content_type ?? 'application/json',
    payload: bounded(payload, event.payload ? 'payload' : 'payload_base64', options),
    idempotencyKey: event.idempotency_key ?? null,
    targetEndpointId: event.endpoint_id ?? null,
    ...timesOf(event),
  };
  return { request: { tenantId: options.tenantId, ...request }, targetField: 'endpoint_id', byEmail: false };
}

const TIME_FIELDS = { deliverAt: 'deliver_at', expiresAt: 'expires_at' };

function timesOf(event: { deliver_at?: Date | undefined; expires_at?: Date | undefined }): DeliveryTimes {
  const times = { deliverAt: event.deliver_at ?? null, expiresAt: event.expires_at ?? null };
  const broken = validateDeliveryTimes(times, Date.now());
  if (broken) throw invalid(TIME_FIELDS[broken.at], broken.rule);
  return times;
}

function draftOfWebhook(fields: Record<string, unknown>, options: DraftOptions): Draft {
  const message = parsePart(WebhookMessage, fields, 'body') as z.output<typeof WebhookMessage>;
  const request = {
    type: message.event,
    contentType: 'application/json',
    payload: bounded(frozenBody(message.body), 'body', options),
    idempotencyKey: message.idempotencyKey,
    targetEndpointId: message.endpointId,
  };
  return { request: immediate(request, options), targetField: 'endpointId', byEmail: false };
}

function draftOfEmail(fields: Record<string, unknown>, options: DraftOptions): Draft {
  const message = parsePart(EmailItem, fields, 'body') as z.output<typeof EmailItem>;
  const email = parseEmail(message);
  if (isEmailFault(email)) throw invalid(email.field, email.rule);
  const request = {
    type: EMAIL_EVENT_TYPE,
    contentType: EMAIL_CONTENT_TYPE,
    payload: bounded(encodeEmail(email), 'body', options),
    idempotencyKey: message.idempotencyKey,
    targetEndpointId: message.endpointId ?? null,
  };
  return { request: immediate(request, options), targetField: 'endpointId', byEmail: true };
}

function immediate(
  request: Omit<EventRequest, 'tenantId' | 'deliverAt' | 'expiresAt'>,
  { tenantId }: DraftOptions,
): EventRequest {
  return { tenantId, ...request, deliverAt: null, expiresAt: null };
}

const UNPRINTABLE = /\p{Surrogate}/u;
const QUOTE = 0x22;
const OPENING = new Set([0x7b, 0x5b]);

/** A text is its characters; what has a structure is the bytes that were posted. */
function frozenBody(raw: Buffer): Buffer {
  const first = raw[0] ?? 0;
  if (OPENING.has(first)) return raw;
  if (first !== QUOTE) throw invalid('body', 'must be a text, an object or an array');
  const text = JSON.parse(raw.toString('utf8')) as string;
  if (UNPRINTABLE.test(text)) throw invalid('body', 'must not hold half of a surrogate pair');
  return Buffer.from(text);
}

function bounded(payload: Buffer, field: string, { maxPayloadBytes }: DraftOptions): Buffer {
  if (payload.length <= maxPayloadBytes) return payload;
  const rule = `is larger than ${maxPayloadBytes} bytes`;
  throw new Problem('payload_too_large', `${field}: ${rule}`, { errors: [{ field, rule }] });
}
