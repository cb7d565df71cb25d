import { sql } from 'kysely';
import type { DisabledReason } from '../domain/vocabulary.ts';
import { plainArray } from './array-literal.ts';
import type { Connection } from './database.ts';

/** What an endpoint is to an event that is addressed to it. */
export interface EventTarget {
  id: string;
  transport: string;
  enabled: boolean;
  disabledReason: DisabledReason | null;
}

/** Those of these endpoints that the tenant has, by id. */
export async function readTargets(
  db: Connection,
  tenantId: string,
  ids: readonly string[],
): Promise<Map<string, EventTarget>> {
  const rows = await db
    .selectFrom('endpoints')
    .select(['id', 'transport', 'enabled', 'disabled_reason as disabledReason'])
    .where('id', '=', sql<string>`any(${plainArray(ids)}::uuid[])`)
    .where('tenant_id', '=', tenantId)
    .where('deleted_at', 'is', null)
    .execute();
  return new Map(rows.map((row) => [row.id, row]));
}

/** The ids of a tenant's enabled email endpoints, oldest first; at most two, which is one too many. */
export async function findEmailEndpoints(db: Connection, tenantId: string): Promise<string[]> {
  const rows = await db
    .selectFrom('endpoints')
    .select('id')
    .where('tenant_id', '=', tenantId)
    .where(sql<boolean>`transport = 'email'`)
    .where('deleted_at', 'is', null)
    .where('enabled', '=', true)
    .orderBy('id')
    .limit(2)
    .execute();
  return rows.map((row) => row.id);
}
