import { randomBytes } from 'node:crypto';
import { uuidV7 } from '../domain/uuid.ts';

/** An id for a row that is not an event or a delivery (those are named by the database's clock, in their statement). */
export function newId(): string {
  return uuidV7(Date.now(), randomBytes(10));
}
