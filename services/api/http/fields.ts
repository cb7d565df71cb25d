import { z } from 'zod';
import { isUuid } from '../../../lib/domain/uuid.ts';

const UNSTORABLE = /[\0\p{Surrogate}]/u;

/** Text that people write: any characters but those that Postgres cannot store. */
export function text(max: number, min = 0) {
  return z
    .string({ error: 'must be text' })
    .refine((value) => value.length >= min && value.length <= max, {
      error: min > 0 ? `must have ${min} to ${max} characters` : `must have at most ${max} characters`,
    })
    .refine((value) => !UNSTORABLE.test(value), {
      error: 'must not hold the character U+0000 or half of a surrogate pair',
    })
    .meta({ minLength: min, maxLength: max });
}

export function uuid() {
  return z
    .string({ error: 'must be a uuid' })
    .refine(isUuid, { error: 'must be a uuid' })
    .transform((value) => value.toLowerCase())
    .meta({ type: 'string', format: 'uuid' });
}

/** A moment with its zone, such as 2026-12-01T12:00:00Z. */
export function moment() {
  return z
    .string({ error: MOMENT_RULE })
    .refine((value) => z.iso.datetime({ offset: true }).safeParse(value).success, { error: MOMENT_RULE })
    .transform((value) => new Date(value))
    .meta({ type: 'string', format: 'date-time' });
}

const MOMENT_RULE = 'must be a moment with its zone, such as 2026-12-01T12:00:00Z';

export function number(range: { min: number; max: number; whole?: boolean; above?: boolean }) {
  const rule =
    `must be a ${range.whole ? 'whole number' : 'number'} ` +
    (range.above ? `above ${range.min} and up to ${range.max}` : `from ${range.min} to ${range.max}`);
  return z
    .number({ error: rule })
    .refine(
      (value) =>
        value <= range.max &&
        (range.above ? value > range.min : value >= range.min) &&
        (!range.whole || Number.isInteger(value)),
      { error: rule },
    )
    .meta({
      type: range.whole ? 'integer' : 'number',
      maximum: range.max,
      ...(range.above ? { exclusiveMinimum: range.min } : { minimum: range.min }),
    });
}

export const MAX_PAGE = 500;
export const DEFAULT_PAGE = 100;

const toPage = (value: number) => Math.min(MAX_PAGE, Math.max(1, value));
const PAGE_META = { type: 'integer', minimum: 1, maximum: MAX_PAGE, default: DEFAULT_PAGE } as const;

/** How many items a page has: 1 to 500, 100 when nothing is said; what lies outside is drawn to the nearest. */
export function pageLimit() {
  return z
    .string()
    .regex(/^\d{1,9}$/, { error: 'must be a whole number' })
    .transform((value) => toPage(Number(value)))
    .default(DEFAULT_PAGE)
    .meta(PAGE_META);
}

/** The same in a JSON body, or undefined. */
export function bodyLimit() {
  return z.int({ error: 'must be a whole number' }).transform(toPage).optional().meta(PAGE_META);
}

export const idParams = z.strictObject({ id: uuid() });
