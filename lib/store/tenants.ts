import { sql } from 'kysely';
import { DEFAULT_TENANT_ID } from '../domain/limits.ts';
import type { Connection, Database } from './database.ts';
import { newId } from './new-id.ts';

export interface Tenant {
  id: string;
  name: string;
  createdAt: Date;
}

export async function createTenant(db: Database, tenant: { name: string }): Promise<Tenant> {
  const row = await db
    .insertInto('tenants')
    .values({ id: newId(), name: tenant.name })
    .returning(['id', 'name', 'created_at as createdAt'])
    .executeTakeFirstOrThrow();
  return row;
}

/** Oldest first; `after` is the id that the page before ended with. */
export async function listTenants(
  db: Database,
  page: { after: string | null; limit: number },
): Promise<Tenant[]> {
  const { after } = page;
  return db
    .selectFrom('tenants')
    .select(['id', 'name', 'created_at as createdAt'])
    .where('deleted_at', 'is', null)
    .$if(after !== null, (query) => query.where('id', '>', after))
    .orderBy('id')
    .limit(page.limit)
    .execute();
}

export async function findTenant(db: Database, id: string): Promise<Tenant | null> {
  const row = await db
    .selectFrom('tenants')
    .select(['id', 'name', 'created_at as createdAt'])
    .where('id', '=', id)
    .where('deleted_at', 'is', null)
    .executeTakeFirst();
  return row ?? null;
}

/**
 * Locks a living tenant against deletion until the transaction ends, so that nothing is made under a tenant that is being deleted.
 * Tells whether there is such a tenant.
 */
export async function holdTenant(trx: Connection, id: string): Promise<boolean> {
  const row = await trx
    .selectFrom('tenants')
    .select('id')
    .where('id', '=', id)
    .where('deleted_at', 'is', null)
    .forShare()
    .executeTakeFirst();
  return row !== undefined;
}

export type TenantDeletion = 'deleted' | 'not_found' | 'is_default';

/**
 * Deletes a tenant, its endpoints and its keys in one transaction. Its events and deliveries stay for their retention; what is
 * still owed ends `cancelled`, by a job of each endpoint or by the claim that meets it first.
 */
export async function deleteTenant(db: Database, id: string): Promise<TenantDeletion> {
  if (id === DEFAULT_TENANT_ID) return 'is_default';
  return db.transaction().execute(async (trx) => {
    const deleted = await trx
      .updateTable('tenants')
      .set({ deleted_at: sql`now()` })
      .where('id', '=', id)
      .where('deleted_at', 'is', null)
      .returning('id')
      .executeTakeFirst();
    if (!deleted) return 'not_found';
    await deleteEndpointsOf(trx, id);
    await trx
      .updateTable('api_keys')
      .set({ revoked_at: sql`now()` })
      .where('tenant_id', '=', id)
      .where('revoked_at', 'is', null)
      .execute();
    return 'deleted';
  });
}

async function deleteEndpointsOf(trx: Connection, tenantId: string): Promise<void> {
  const living = trx
    .selectFrom('endpoints')
    .where('tenant_id', '=', tenantId)
    .where('deleted_at', 'is', null);
  // Locked in order of id first: an UPDATE takes its locks in whatever order it finds the rows.
  await living.select('id').orderBy('id').forUpdate().execute();
  await trx
    .insertInto('endpoint_jobs')
    .columns(['endpoint_id', 'kind'])
    .expression(living.select(['id', sql<'cancel'>`'cancel'`.as('kind')]))
    .execute();
  await trx
    .updateTable('endpoints')
    .set({ deleted_at: sql`now()`, updated_at: sql`now()`, version: sql`version + 1` })
    .where('tenant_id', '=', tenantId)
    .where('deleted_at', 'is', null)
    .execute();
  await trx.deleteFrom('subscriptions').where('tenant_id', '=', tenantId).execute();
}
