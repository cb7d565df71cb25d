/** When an event may go to its endpoints, and until when it is worth sending. */
export interface DeliveryTimes {
  /** Not before; null or a moment that has passed: at once. */
  deliverAt: Date | null;
  /** What has not arrived by then ends dead, `expired`; null: never. */
  expiresAt: Date | null;
}

/** How far ahead an event may be put off, ms: a year. */
export const MAX_DELAY_MS = 366 * 86_400_000;

/** The rules in words, for error messages. */
export const MOMENT_RULE = 'must be a moment with its zone, such as 2026-12-01T12:00:00Z';
export const DELIVER_AT_RULE = 'must lie at most 366 days ahead';
export const EXPIRES_AT_RULE = 'must be later than the moment before which it may not go';
export const EXPIRED_RULE = 'must lie in the future';

const RFC_3339 =
  /^(\d{4})-(\d{2})-(\d{2})T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$/i;

/** Reads a moment as RFC 3339 writes it, to the millisecond; null when it is none, or of no day that exists. */
export function parseMoment(text: string): Date | null {
  const match = RFC_3339.exec(text);
  if (!match) return null;
  const [year = 0, month = 0, day = 0] = match.slice(1, 4).map(Number);
  // A day that its month does not have would roll over into the next.
  const date = new Date(Date.UTC(year, month - 1, day));
  if (date.getUTCFullYear() !== year || date.getUTCMonth() !== month - 1 || date.getUTCDate() !== day)
    return null;
  return new Date(text.toUpperCase());
}

/**
 * Returns null when the two go together, else which of them breaks which rule. Whether `expiresAt` has passed already is for the database to
 * say, when it knows that the request is no repeated one.
 */
export function validateDeliveryTimes(
  { deliverAt, expiresAt }: DeliveryTimes,
  nowMs: number,
): { at: keyof DeliveryTimes; rule: string } | null {
  if (deliverAt && deliverAt.getTime() > nowMs + MAX_DELAY_MS)
    return { at: 'deliverAt', rule: DELIVER_AT_RULE };
  if (deliverAt && expiresAt && expiresAt <= deliverAt) return { at: 'expiresAt', rule: EXPIRES_AT_RULE };
  return null;
}
