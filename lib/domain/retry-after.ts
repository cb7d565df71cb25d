import type { SendResult } from './send-result.ts';

/** What an endpoint may ask for is bounded: below a second it is no pause, above an hour it would park the delivery. */
export const RETRY_AFTER_MIN_MS = 1_000;
export const RETRY_AFTER_MAX_MS = 3_600_000;

/** Beyond a year nobody means it. */
const ABSURD_MS = 366 * 24 * 3_600_000;

/**
 * The pause that a result asks for, in ms, or null for the usual backoff. Only 429 and 503 ask: elsewhere the header
 * means something else (a redirect's, for instance) or nothing.
 */
export function askedDelayMs(result: SendResult, nowMs: number): number | null {
  if (result.kind !== 'response' || (result.status !== 429 && result.status !== 503)) return null;
  return parseRetryAfter(result.retryAfter, nowMs);
}

/**
 * Reads Retry-After: seconds (fractions too) or an HTTP date in any of its three forms, clamped to 1 s to 1 h and, within
 * that, never earlier than asked. Null, and so the usual backoff, for what asks for nothing sensible: absent, empty,
 * words, zero, negative, past, over a year, or two headers that disagree. None of these may mean "at once".
 *
 * @param nowMs Unix time in ms
 */
export function parseRetryAfter(values: readonly string[], nowMs: number): number | null {
  const [value, ...others] = values.map((each) => each.trim());
  if (value === undefined || others.some((other) => other !== value)) return null;
  const delayMs = secondsToMs(value) ?? msUntil(httpDate(value, nowMs), nowMs);
  if (delayMs === null || !(delayMs > 0) || delayMs > ABSURD_MS) return null;
  return Math.min(RETRY_AFTER_MAX_MS, Math.max(RETRY_AFTER_MIN_MS, Math.ceil(delayMs)));
}

function secondsToMs(value: string): number | null {
  return /^\d{1,15}(?:\.\d{1,15})?$/.test(value) ? Number(value) * 1_000 : null;
}

function msUntil(dateMs: number | null, nowMs: number): number | null {
  return dateMs === null ? null : dateMs - nowMs;
}

const MONTHS = ['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec'];
const DAY = '(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)';
const LONG_DAY = '(?:Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday)';
const MONTH = `(?<month>${MONTHS.join('|')})`;
const TIME = '(?<hour>\\d\\d):(?<minute>\\d\\d):(?<second>\\d\\d)';

/** RFC 9110 §5.6.7: IMF-fixdate, then the two old forms that a recipient must still read. */
const HTTP_DATES = [
  new RegExp(`^${DAY}, (?<day>\\d\\d) ${MONTH} (?<year>\\d{4}) ${TIME} GMT$`),
  new RegExp(`^${LONG_DAY}, (?<day>\\d\\d)-${MONTH}-(?<year>\\d\\d) ${TIME} GMT$`),
  new RegExp(`^${DAY} ${MONTH} (?<day>[ \\d]\\d) ${TIME} (?<year>\\d{4})$`),
];

/** Written out instead of left to Date.parse, which takes almost anything and reads some of it in local time. */
function httpDate(value: string, nowMs: number): number | null {
  for (const form of HTTP_DATES) {
    const parts = form.exec(value)?.groups;
    if (parts !== undefined) return toUnixMs(parts, nowMs);
  }
  return null;
}

function toUnixMs(parts: Record<string, string>, nowMs: number): number | null {
  const year = fullYear(parts.year ?? '', nowMs);
  const month = MONTHS.indexOf(parts.month ?? '');
  const [day, hour, minute, second] = ['day', 'hour', 'minute', 'second'].map((name) => Number(parts[name]));
  if (day === undefined || hour === undefined || minute === undefined || second === undefined) return null;
  // 60 is a leap second.
  if (hour > 23 || minute > 59 || second > 60) return null;
  const midnight = new Date(Date.UTC(year, month, day));
  const dayExists = midnight.getUTCDate() === day && midnight.getUTCMonth() === month;
  return dayExists ? midnight.getTime() + ((hour * 60 + minute) * 60 + second) * 1_000 : null;
}

/** A two-digit year that seems more than 50 years ahead is the most recent past year with these digits. */
function fullYear(digits: string, nowMs: number): number {
  if (digits.length === 4) return Number(digits);
  const thisYear = new Date(nowMs).getUTCFullYear();
  const year = thisYear - (thisYear % 100) + Number(digits);
  return year > thisYear + 50 ? year - 100 : year;
}
