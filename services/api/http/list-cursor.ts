import { createHash } from 'node:crypto';
import { z } from 'zod';
import { isUuid } from '../../../lib/domain/uuid.ts';
import { invalid } from './problem.ts';

/** What a cursor belongs to: the list, its tenant, and what it is narrowed by. */
export interface ListName {
  list: string;
  tenantId: string;
  [filter: string]: unknown;
}

const RULE = 'must be the next_cursor of an earlier page of the same list, with the same filters';
const DIGEST_BYTES = 8;

/** The text of a cursor; `openPlace` and `openIdPlace` read it. */
export function listCursor() {
  return z.string({ error: RULE }).max(500, { error: RULE }).optional();
}

/**
 * A place in a list as a text that fits this list only: it ends in a digest of the place and of what the list is narrowed by. The digest is no
 * secret. Whoever makes a cursor up gets to a place of a list that they may read anyway.
 */
export function sealPlace(place: string | null, list: ListName): string | null {
  return place === null
    ? null
    : Buffer.concat([digestOf(place, list), Buffer.from(place, 'latin1')]).toString('base64url');
}

/** The place that a cursor names; null without one. Throws the 400 Problem for a cursor that was not made for this list. */
export function openPlace(cursor: string | undefined, list: ListName): string | null {
  if (cursor === undefined) return null;
  const place = Buffer.from(cursor, 'base64url').subarray(DIGEST_BYTES).toString('latin1');
  // Compared as it is written: a decoder forgives what it does not know.
  if (sealPlace(place, list) !== cursor) throw wrongCursor();
  return place;
}

/** The same for a place that is an id. */
export function openIdPlace(cursor: string | undefined, list: ListName): string | null {
  const place = openPlace(cursor, list);
  if (place !== null && !isUuid(place)) throw wrongCursor();
  return place;
}

export const wrongCursor = () => invalid('cursor', RULE);

function digestOf(place: string, list: ListName): Buffer {
  return createHash('sha256')
    .update(JSON.stringify([list, place]))
    .digest()
    .subarray(0, DIGEST_BYTES);
}
