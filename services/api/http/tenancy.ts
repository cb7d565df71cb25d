import { LRUCache } from 'lru-cache';
import { DEFAULT_TENANT_ID } from '../../../lib/domain/limits.ts';
import { isUuid } from '../../../lib/domain/uuid.ts';
import type { Principal } from './authentication.ts';
import { invalid, Problem } from './problem.ts';

export const TENANT_HEADER = 'relay-tenant-id';
const TTL_MS = 5_000;

/**
 * Picks the tenant that a request acts for: its key's own; for an admin the one that the header names, else the default. Whether a tenant
 * exists is kept for 5 s, as long as a revoked key may still work.
 */
export class Tenancy {
  readonly #exists: (tenantId: string) => Promise<boolean>;
  readonly #known = new LRUCache<string, true>({ max: 10_000, ttl: TTL_MS });

  constructor(exists: (tenantId: string) => Promise<boolean>) {
    this.#exists = exists;
  }

  /** Throws a 400, 403 or 404 Problem. */
  tenantFor(principal: Principal, header: string | string[] | undefined): string | Promise<string> {
    if (header === undefined) return principal.tenantId ?? DEFAULT_TENANT_ID;
    if (typeof header !== 'string' || !isUuid(header)) throw invalid(TENANT_HEADER, 'must be a uuid');
    const tenantId = header.toLowerCase();
    if (principal.tenantId === tenantId || (principal.tenantId === null && tenantId === DEFAULT_TENANT_ID)) {
      return tenantId;
    }
    if (principal.tenantId !== null) {
      throw new Problem('forbidden', 'the API key belongs to another tenant');
    }
    return this.#known.has(tenantId) ? tenantId : this.#find(tenantId);
  }

  async #find(tenantId: string): Promise<string> {
    if (!(await this.#exists(tenantId))) throw new Problem('tenant_not_found', 'there is no such tenant');
    this.#known.set(tenantId, true);
    return tenantId;
  }
}
