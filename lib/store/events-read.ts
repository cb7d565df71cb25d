import { sql } from 'kysely';
import type { Database } from './database.ts';

/** An event as people see it: without its payload. */
export interface Event {
  id: string;
  type: string;
  contentType: string;
  payloadBytes: number;
  deliverAt: Date | null;
  expiresAt: Date | null;
  createdAt: Date;
}

export async function findEvent(db: Database, tenantId: string, id: string): Promise<Event | null> {
  const row = await db
    .selectFrom('events')
    .select([
      'id',
      'type',
      'content_type as contentType',
      // Known without reading the payload itself.
      sql<number>`octet_length(payload)`.as('payloadBytes'),
      'deliver_at as deliverAt',
      'expires_at as expiresAt',
      'created_at as createdAt',
    ])
    .where('id', '=', id)
    .where('tenant_id', '=', tenantId)
    .executeTakeFirst();
  return row ?? null;
}
