import type { IncomingHttpHeaders } from 'node:http';
import {
  type DeliveryTimes,
  MOMENT_RULE,
  parseMoment,
  validateDeliveryTimes,
} from '../../../lib/domain/delivery-times.ts';
import { EVENT_TYPE_RULE, isEventType } from '../../../lib/domain/event-type.ts';
import { validateIdempotencyKey } from '../../../lib/domain/idempotency-key.ts';
import { isUuid } from '../../../lib/domain/uuid.ts';
import { invalid, Problem } from './problem.ts';

export const EVENT_TYPE_HEADER = 'relay-event-type';
export const IDEMPOTENCY_HEADER = 'idempotency-key';
export const TARGET_HEADER = 'relay-endpoint-id';
export const DELIVER_AT_HEADER = 'relay-deliver-at';
export const EXPIRES_AT_HEADER = 'relay-expires-at';

/** What the headers of a posted event say; they are judged before its body is read. */
export interface EventHeaders extends DeliveryTimes {
  /** Null when the body must tell. */
  type: string | null;
  contentType: string;
  idempotencyKey: string | null;
  targetEndpointId: string | null;
}

const CONTENT_TYPE = /^[\x20-\x7e]{1,255}$/;

/** Throws a Problem for the first header that breaks its rule. `nowMs` bounds how far ahead an event may be put off. */
export function parseEventHeaders(headers: IncomingHttpHeaders, nowMs: number): EventHeaders {
  const contentType = headers['content-type'] ?? 'application/json';
  // It is sent on as a header: what cannot stand in one is refused here, not at every send.
  if (!CONTENT_TYPE.test(contentType))
    throw invalid('content-type', 'must be 1 to 255 visible ASCII characters');
  const encoding = headers['content-encoding'];
  if (encoding !== undefined && encoding !== 'identity') {
    throw new Problem(
      'unsupported_media_type',
      'content-encoding: events are stored and sent on as they come, so send them unencoded',
    );
  }
  const key = single(headers, IDEMPOTENCY_HEADER);
  const keyRule = key === null ? null : validateIdempotencyKey(key);
  if (keyRule !== null) throw invalid(IDEMPOTENCY_HEADER, keyRule);
  const target = single(headers, TARGET_HEADER);
  if (target !== null && !isUuid(target)) throw invalid(TARGET_HEADER, 'must be a uuid');
  return {
    type: typeHeader(single(headers, EVENT_TYPE_HEADER)),
    contentType,
    idempotencyKey: key,
    targetEndpointId: target === null ? null : target.toLowerCase(),
    ...times(headers, nowMs),
  };
}

const NO_TIMES: DeliveryTimes = { deliverAt: null, expiresAt: null };
const TIME_HEADERS = { deliverAt: DELIVER_AT_HEADER, expiresAt: EXPIRES_AT_HEADER };

function times(headers: IncomingHttpHeaders, nowMs: number): DeliveryTimes {
  if (headers[DELIVER_AT_HEADER] === undefined && headers[EXPIRES_AT_HEADER] === undefined) return NO_TIMES;
  const given = {
    deliverAt: moment(headers, DELIVER_AT_HEADER),
    expiresAt: moment(headers, EXPIRES_AT_HEADER),
  };
  const broken = validateDeliveryTimes(given, nowMs);
  if (broken) throw invalid(TIME_HEADERS[broken.at], broken.rule);
  return given;
}

function moment(headers: IncomingHttpHeaders, name: string): Date | null {
  const value = single(headers, name);
  if (value === null) return null;
  const parsed = parseMoment(value);
  if (parsed === null) throw invalid(name, MOMENT_RULE);
  return parsed;
}

/** Node joins repeated headers with commas, so a repeated one breaks the rule that no value with a comma and a space can meet. */
function single(headers: IncomingHttpHeaders, name: string): string | null {
  const value = headers[name];
  return typeof value === 'string' ? value : null;
}

function typeHeader(value: string | null): string | null {
  if (value === null || value === '') return null;
  if (!isEventType(value)) throw invalid(EVENT_TYPE_HEADER, EVENT_TYPE_RULE);
  return value;
}

/**
 * The event type that a body names: its top-level string field `type`. The body is parsed for that and thrown away; what is stored are
 * the bytes. Throws a 400 Problem.
 */
export function typeOfBody(body: Buffer): string {
  const missing = () =>
    invalid(
      'type',
      `name the event type in the header ${EVENT_TYPE_HEADER}, or in a top-level string field "type" of a JSON body`,
    );
  let parsed: unknown;
  try {
    parsed = JSON.parse(body.toString('utf8'));
  } catch {
    throw missing();
  }
  if (typeof parsed !== 'object' || parsed === null || !Object.hasOwn(parsed, 'type')) throw missing();
  const { type } = parsed as { type: unknown };
  if (typeof type !== 'string') throw missing();
  if (!isEventType(type)) throw invalid('type', EVENT_TYPE_RULE);
  return type;
}
