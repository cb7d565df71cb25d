import { z } from 'zod';
import {
  CLASH_RULE,
  type CustomHeaders,
  MAX_CUSTOM_HEADERS,
  MAX_HEADER_VALUE_LENGTH,
  prefixClash,
  validateHeaderName,
  validateHeaderNames,
  validateHeadersLength,
  validateHeaderValue,
} from '../../../lib/domain/custom-headers.ts';
import { HEADER_PREFIX, HEADER_PREFIX_RULE } from '../../../lib/domain/header-names.ts';
import { invalid } from '../http/problem.ts';

type Context = z.core.$RefinementCtx<unknown>;

const VALUE_META = { type: 'string', minLength: 1, maxLength: MAX_HEADER_VALUE_LENGTH } as const;
const OBJECT_META = { type: 'object', maxProperties: MAX_CUSTOM_HEADERS } as const;

/** The custom headers of a new endpoint, by name. Judged by hand: a record of zod drops a member named `__proto__` silently. */
export const newHeaders = z
  .unknown()
  .superRefine((value, context) => judge(value, context))
  .transform((value) => value as CustomHeaders)
  .meta({
    ...OBJECT_META,
    additionalProperties: VALUE_META,
    description: 'Sent with every request. Values are never shown again.',
  });

/** The same of a change, where null keeps the value that is stored under the name. */
export const changedHeaders = z
  .unknown()
  .superRefine((value, context) => judge(value, context, { nullKeeps: true }))
  .transform((value) => value as Readonly<Record<string, string | null>>)
  .meta({
    ...OBJECT_META,
    additionalProperties: { ...VALUE_META, type: ['string', 'null'] },
    description: 'Takes the place of all headers; null keeps the value that is stored under the name.',
  });

export const headerPrefix = z
  .string({ error: 'must be text' })
  .regex(HEADER_PREFIX, { error: HEADER_PREFIX_RULE })
  .nullable()
  .meta({ description: "First part of the names of Relay's own headers; null for the configured one." });

function judge(value: unknown, context: Context, { nullKeeps = false } = {}): void {
  const fault = (path: string[], message: string) => context.addIssue({ code: 'custom', path, message });
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    return fault([], 'must be an object of header names and values');
  }
  const rule = validateHeaderNames(Object.keys(value));
  if (rule !== null) return fault([], rule);
  for (const [name, one] of Object.entries(value)) {
    const broken = validateHeaderName(name) ?? (one === null && nullKeeps ? null : valueRule(one));
    if (broken !== null) fault([name], broken);
  }
}

function valueRule(value: unknown): string | null {
  return typeof value === 'string' ? validateHeaderValue(value) : 'must be text';
}

/** Throws a 400 Problem when headers that are fine one by one cannot be sent together, or beside Relay's own. */
export function requireHeaders(headers: CustomHeaders, prefix: string): void {
  const clash = prefixClash(Object.keys(headers), prefix);
  if (clash !== null) throw invalid(`headers.${clash}`, `${clash} ${CLASH_RULE}`);
  const rule = validateHeadersLength(headers);
  if (rule !== null) throw invalid('headers', rule);
}
