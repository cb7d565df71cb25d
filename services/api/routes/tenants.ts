import { z } from 'zod';
import {
  createTenant,
  deleteTenant,
  findTenant,
  listTenants,
  type Tenant,
} from '../../../lib/store/tenants.ts';
import { idCursor } from '../http/cursor.ts';
import { idParams, pageLimit, text } from '../http/fields.ts';
import { pageById } from '../http/page.ts';
import { Problem } from '../http/problem.ts';
import { defineRoute } from '../http/route.ts';
import { pageOf, TenantShape } from './shapes.ts';

const tag = 'Tenants';
const absent = () => new Problem('tenant_not_found', 'there is no tenant of this id');

function shown(tenant: Tenant) {
  return { id: tenant.id, name: tenant.name, created_at: tenant.createdAt };
}

export const tenantRoutes = [
  defineRoute(
    {
      name: 'createTenant',
      method: 'post',
      path: '/v1/tenants',
      access: 'admin',
      tag,
      summary: 'Make a tenant',
      body: z.strictObject({ name: text(200, 1) }),
      answers: [{ status: 201, description: 'The tenant', schema: TenantShape }],
    },
    async ({ context, body }) => {
      const tenant = await createTenant(context.db, body);
      return { status: 201, json: shown(tenant), audit: { tenantId: tenant.id } };
    },
  ),
  defineRoute(
    {
      name: 'listTenants',
      method: 'get',
      path: '/v1/tenants',
      access: 'admin',
      tag,
      summary: 'List tenants, oldest first',
      query: z.strictObject({ limit: pageLimit(), cursor: idCursor() }),
      answers: [{ status: 200, description: 'A page of tenants', schema: pageOf(TenantShape) }],
    },
    async ({ context, query }) => {
      const found = await listTenants(context.db, { after: query.cursor ?? null, limit: query.limit + 1 });
      return { status: 200, json: pageById(found, query.limit, shown) };
    },
  ),
  defineRoute(
    {
      name: 'getTenant',
      method: 'get',
      path: '/v1/tenants/{id}',
      access: 'admin',
      tag,
      summary: 'Get a tenant',
      params: idParams,
      answers: [{ status: 200, description: 'The tenant', schema: TenantShape }],
      problems: ['tenant_not_found'],
    },
    async ({ context, params }) => {
      const tenant = await findTenant(context.db, params.id);
      if (!tenant) throw absent();
      return { status: 200, json: shown(tenant) };
    },
  ),
  defineRoute(
    {
      name: 'deleteTenant',
      method: 'delete',
      path: '/v1/tenants/{id}',
      access: 'admin',
      tag,
      summary: 'Delete a tenant with its keys and endpoints',
      description:
        'Its keys stop working within 5 seconds; what is still owed to its endpoints ends dead, `cancelled`. Its events and deliveries stay for their retention.',
      params: idParams,
      answers: [{ status: 204, description: 'Deleted' }],
      problems: ['tenant_not_found', 'default_tenant'],
    },
    async ({ context, params }) => {
      const deletion = await deleteTenant(context.db, params.id);
      if (deletion === 'not_found') throw absent();
      if (deletion === 'is_default') {
        throw new Problem('default_tenant', 'the default tenant cannot be deleted');
      }
      return { status: 204, audit: { tenantId: params.id } };
    },
  ),
];
