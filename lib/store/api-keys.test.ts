import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import {
  adminKeyExists,
  createApiKey,
  findKeyGrant,
  hashApiKey,
  listApiKeys,
  type NewApiKey,
  revokeApiKey,
  touchApiKeys,
} from './api-keys.ts';
import { createDatabase, type Database } from './database.ts';
import { createPool } from './pool.ts';
import { createTenant, deleteTenant } from './tenants.ts';

let database: TestDatabase;
let pool: pg.Pool;
let db: Database;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 4, applicationName: 'test' });
  db = createDatabase(pool);
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

async function givenKey(options: Partial<NewApiKey> = {}) {
  const made = await createApiKey(db, {
    tenantId: null,
    name: 'a key',
    scopes: ['read'],
    expiresAt: null,
    ...options,
  });
  return made!;
}

const grantOf = (key: string) => findKeyGrant(pool, hashApiKey(key));

describe('an API key', () => {
  it('is 32 random bytes, of which only the hash and a prefix are stored', async () => {
    const { key, apiKey } = await givenKey();
    expect(key).toMatch(/^relay_[A-Za-z0-9_-]{43}$/);
    const { rows } = await pool.query('select k::text as row, key_hash from relay.api_keys k where id = $1', [
      apiKey.id,
    ]);
    expect(rows[0].row).not.toContain(key.slice(12));
    expect(rows[0].key_hash.toString('base64')).toBe(hashApiKey(key));
    expect(key.startsWith(apiKey.prefix)).toBe(true);
  });

  it('grants what it was made for', async () => {
    const tenant = await createTenant(db, { name: 'granted' });
    const { key, apiKey } = await givenKey({ tenantId: tenant.id, scopes: ['read', 'events:write'] });
    expect(await grantOf(key)).toEqual({
      keyId: apiKey.id,
      tenantId: tenant.id,
      scopes: ['read', 'events:write'],
      requestsPerSecond: null,
      expiresInMs: null,
    });
    expect(await grantOf(`${key}x`)).toBeNull();
  });

  it('grants nothing once it is revoked, and can be revoked once', async () => {
    const { key, apiKey } = await givenKey();
    expect(await revokeApiKey(db, { tenantId: null, id: apiKey.id })).not.toBeNull();
    expect(await revokeApiKey(db, { tenantId: null, id: apiKey.id })).toBeNull();
    expect(await grantOf(key)).toBeNull();
    expect((await listApiKeys(db, null, { after: null, limit: 500 })).map((one) => one.id)).not.toContain(
      apiKey.id,
    );
  });

  it('grants nothing after its end, by the clock of the database', async () => {
    const { key, apiKey } = await givenKey({ expiresAt: new Date(Date.now() + 3_600_000) });
    const left = (await grantOf(key))!.expiresInMs!;
    expect(left).toBeGreaterThan(3_500_000);
    await pool.query(`update relay.api_keys set expires_at = now() where id = $1`, [apiKey.id]);
    expect(await grantOf(key)).toBeNull();
  });

  it('cannot be revoked by another tenant', async () => {
    const tenant = await createTenant(db, { name: 'owner' });
    const other = await createTenant(db, { name: 'stranger' });
    const { apiKey } = await givenKey({ tenantId: tenant.id });
    expect(await revokeApiKey(db, { tenantId: other.id, id: apiKey.id })).toBeNull();
    expect(await revokeApiKey(db, { tenantId: tenant.id, id: apiKey.id })).not.toBeNull();
  });

  it('dies with its tenant, and is not made for one that is gone', async () => {
    const tenant = await createTenant(db, { name: 'short-lived' });
    const { key } = await givenKey({ tenantId: tenant.id });
    await deleteTenant(db, tenant.id);
    expect(await grantOf(key)).toBeNull();
    const again = { tenantId: tenant.id, name: '', scopes: ['read'], expiresAt: null } as const;
    expect(await createApiKey(db, again)).toBeNull();
  });

  it('notes its use at most once a minute', async () => {
    const { apiKey } = await givenKey();
    const lastUsed = async () => {
      const { rows } = await pool.query('select last_used_at from relay.api_keys where id = $1', [apiKey.id]);
      return rows[0].last_used_at as Date | null;
    };
    expect(await lastUsed()).toBeNull();
    await touchApiKeys(pool, [apiKey.id]);
    const once = await lastUsed();
    expect(once).toBeInstanceOf(Date);
    await touchApiKeys(pool, [apiKey.id]);
    expect(await lastUsed()).toEqual(once);
    await pool.query(`update relay.api_keys set last_used_at = now() - interval '61 s' where id = $1`, [
      apiKey.id,
    ]);
    await touchApiKeys(pool, [apiKey.id]);
    expect((await lastUsed())!.getTime()).toBeGreaterThanOrEqual(once!.getTime());
  });
});

describe('whether an admin key exists', () => {
  it('counts only usable admin keys that may make others', async () => {
    await pool.query('update relay.api_keys set revoked_at = now() where revoked_at is null');
    expect(await adminKeyExists(pool)).toBe(false);
    await givenKey({ scopes: ['read'] });
    const tenant = await createTenant(db, { name: 'a tenant' });
    await givenKey({ tenantId: tenant.id, scopes: ['manage'] });
    await givenKey({ scopes: ['manage'], expiresAt: new Date(Date.now() - 1000) });
    expect(await adminKeyExists(pool)).toBe(false);
    const { apiKey } = await givenKey({ scopes: ['manage'] });
    expect(await adminKeyExists(pool)).toBe(true);
    await revokeApiKey(db, { tenantId: null, id: apiKey.id });
    expect(await adminKeyExists(pool)).toBe(false);
  });
});
