import { z } from 'zod';
import { isUuid } from '../../../lib/domain/uuid.ts';
import type { DeadLetterCursor } from '../../../lib/store/dead-letters.ts';
import { wrongCursor } from './list-cursor.ts';

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

/** A place in a list that is ordered by moments. The moment is the database's own text, because a Date would cut off its microseconds. */
export interface MomentPlace {
  at: string;
  id: string;
}

export function printMomentPlace(place: MomentPlace | null): string | null {
  return place === null ? null : `${place.at}|${place.id}`;
}

/** Throws the 400 Problem for what was not printed so. */
export function parseMomentPlace(place: string | null): MomentPlace | null {
  if (place === null) return null;
  const [at = '', id = ''] = place.split('|');
  if (!isUuid(id) || !isMoment(at)) throw wrongCursor();
  return { at, id };
}

/** A place in the dead letters, which are ordered by when they died. */
export function printDeadLetterPlace(cursor: DeadLetterCursor | null): string | null {
  return cursor && printMomentPlace({ at: cursor.diedAt, id: cursor.deliveryId });
}

export function parseDeadLetterPlace(place: string | null): DeadLetterCursor | null {
  const parsed = parseMomentPlace(place);
  return parsed && { diedAt: parsed.at, deliveryId: parsed.id };
}

/** The form in which the database prints a moment, and one that exists: the 30th of February would be an error there. */
function isMoment(text: string): boolean {
  if (!MOMENT.test(text)) return false;
  const parsed = new Date(`${text.slice(0, 10)}T${text.slice(11, 19)}Z`);
  return parsed.getUTCFullYear() >= 1 && parsed.toISOString().startsWith(text.slice(0, 10));
}
