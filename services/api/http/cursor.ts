import { z } from 'zod';
import { isUuid } from '../../../lib/domain/uuid.ts';
import type { DeadLetterCursor } from '../../../lib/store/dead-letters.ts';

const RULE = 'must be the next_cursor of an earlier page';

/** A cursor that names a row by its id. Opaque to whoever passes it on. */
export function idCursor() {
  return z
    .string({ error: RULE })
    .transform((text, context): string => {
      const id = Buffer.from(text, 'base64url').toString('latin1');
      if (!isUuid(id)) context.addIssue({ code: 'custom', message: RULE });
      return id.toLowerCase();
    })
    .optional()
    .meta({ type: 'string' });
}

export function printIdCursor(id: string | null): string | null {
  return id === null ? null : Buffer.from(id, 'latin1').toString('base64url');
}

const MOMENT = /^\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}(\.\d{1,6})?\+00$/;

/** A cursor into the dead letters, which are ordered by when they died. */
export function deadLetterCursor() {
  return z
    .string({ error: RULE })
    .transform((text, context): DeadLetterCursor => {
      const [diedAt = '', deliveryId = ''] = Buffer.from(text, 'base64url').toString('latin1').split('|');
      if (!isUuid(deliveryId) || !isMoment(diedAt)) context.addIssue({ code: 'custom', message: RULE });
      return { diedAt, deliveryId };
    })
    .optional()
    .meta({ type: 'string' });
}

export function printDeadLetterCursor(cursor: DeadLetterCursor | null): string | null {
  return cursor === null
    ? null
    : Buffer.from(`${cursor.diedAt}|${cursor.deliveryId}`, 'latin1').toString('base64url');
}

/** The form in which the database prints a moment, and one that exists: the 30th of February would be an error there. */
function isMoment(text: string): boolean {
  if (!MOMENT.test(text)) return false;
  const parsed = new Date(`${text.slice(0, 10)}T${text.slice(11, 19)}Z`);
  return !Number.isNaN(parsed.getTime()) && parsed.toISOString().startsWith(text.slice(0, 10));
}
