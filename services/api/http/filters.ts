import { z } from 'zod';
import { validatePattern } from '../../../lib/domain/event-type.ts';
import { DEAD_REASONS, SHOWN_STATUSES } from '../../../lib/domain/vocabulary.ts';
import { moment } from './fields.ts';

/** What lists are narrowed by. */

export function statusFilter() {
  return z.enum(SHOWN_STATUSES, { error: `must be one of ${SHOWN_STATUSES.join(', ')}` }).optional();
}

export function reasonFilter() {
  return z.enum(DEAD_REASONS, { error: `must be one of ${DEAD_REASONS.join(', ')}` }).optional();
}

const TYPE_RULE = 'must be an event type, a prefix followed by .* or *; operational events begin with ~';

/** A pattern over event types. */
export function typeFilter() {
  return z
    .string({ error: TYPE_RULE })
    .refine((value) => isTypePattern(value), { error: TYPE_RULE })
    .optional()
    .meta({ description: 'An event type, a prefix such as `order.*`, or `*`.' });
}

function isTypePattern(value: string): boolean {
  return (
    validatePattern(value) === null || (value.startsWith('~') && validatePattern(value.slice(1)) === null)
  );
}

/** A range of time, by when the event was accepted. */
export const acceptedRange = {
  from: moment().optional().meta({ description: 'Accepted at this moment or later.' }),
  to: moment().optional().meta({ description: 'Accepted before this moment.' }),
};

export function flagFilter() {
  return z.enum(['true', 'false'], { error: 'must be true or false' }).optional();
}
