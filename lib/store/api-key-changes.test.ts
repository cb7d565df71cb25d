import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import { changeApiKey, rotateApiKey } from './api-key-changes.ts';
import {
  createApiKey,
  findApiKey,
  findKeyGrant,
  hashApiKey,
  type NewApiKey,
  revokeApiKey,
} from './api-keys.ts';
import { createDatabase, type Database } from './database.ts';
import { createPool } from './pool.ts';
import { createTenant, deleteTenant } from './tenants.ts';

const DAY_MS = 86_400_000;

let database: TestDatabase;
let pool: pg.Pool;
let db: Database;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 8, applicationName: 'test' });
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
    scopes: ['read', 'replay'],
    expiresAt: null,
    ...options,
  });
  return { ...made!.apiKey, key: made!.key, ref: { tenantId: null, id: made!.apiKey.id } };
}

const grantOf = (key: string) => findKeyGrant(pool, hashApiKey(key));

async function rotated(
  ref: { tenantId: string | null; id: string },
  overlapMs = DAY_MS,
  expiresAt?: Date | null,
) {
  const result = await rotateApiKey(db, ref, { overlapMs, expiresAt });
  if (result.kind !== 'rotated') throw new Error(result.kind);
  return result;
}

describe('a key that is rotated', () => {
  it('has an heir with the same grants, and works beside it for the overlap', async () => {
    const tenant = await createTenant(db, { name: 'a tenant' });
    const old = await givenKey({ tenantId: tenant.id, requestsPerSecond: 7 });
    const { key, apiKey, previous } = await rotated(old.ref);
    expect(apiKey).toMatchObject({
      tenantId: tenant.id,
      name: 'a key',
      scopes: ['read', 'replay'],
      requestsPerSecond: 7,
      expiresAt: null,
      replacedBy: null,
    });
    expect(previous).toMatchObject({ id: old.id, replacedBy: apiKey.id });
    const overlap = previous.expiresAt!.getTime() - Date.now();
    expect(overlap).toBeGreaterThan(DAY_MS - 60_000);
    expect(overlap).toBeLessThan(DAY_MS + 60_000);
    expect([await grantOf(key), await grantOf(old.key)]).toMatchObject([
      { keyId: apiKey.id },
      { keyId: old.id },
    ]);
    await pool.query('update relay.api_keys set expires_at = now() where id = $1', [old.id]);
    expect([await grantOf(key), await grantOf(old.key)]).toMatchObject([{ keyId: apiKey.id }, null]);
  });

  it('ends at once without an overlap, and never later than it was to', async () => {
    const now = await givenKey();
    await rotated(now.ref, 0);
    expect(await grantOf(now.key)).toBeNull();
    const soon = new Date(Date.now() + 3_600_000);
    const ending = await givenKey({ expiresAt: soon });
    expect((await rotated(ending.ref)).previous.expiresAt).toEqual(soon);
  });

  it('has an heir that lives as long as it was made to, unless another end is said', async () => {
    const old = await givenKey({ expiresAt: new Date(Date.now() + 30 * DAY_MS) });
    await pool.query(
      `update relay.api_keys set created_at = created_at - interval '29 days', expires_at = expires_at - interval '29 days' where id = $1`,
      [old.id],
    );
    const { apiKey } = await rotated(old.ref);
    const lives = apiKey.expiresAt!.getTime() - apiKey.createdAt.getTime();
    expect(Math.abs(lives - 30 * DAY_MS)).toBeLessThan(60_000);
    const end = new Date(Date.now() + DAY_MS);
    expect((await rotated({ tenantId: null, id: apiKey.id }, DAY_MS, end)).apiKey.expiresAt).toEqual(end);
    const endless = await givenKey({ expiresAt: end });
    expect((await rotated(endless.ref, DAY_MS, null)).apiKey.expiresAt).toBeNull();
  });

  it('has one heir, however many rotate it at the same moment', async () => {
    const old = await givenKey();
    const results = await Promise.all(
      Array.from({ length: 8 }, () => rotateApiKey(db, old.ref, { overlapMs: DAY_MS })),
    );
    const kinds = results.map(({ kind }) => kind).sort();
    expect(kinds).toEqual([...Array.from({ length: 7 }, () => 'replaced'), 'rotated']);
    const heir = (await findApiKey(db, old.ref))!.replacedBy;
    expect(results.filter((result) => result.kind === 'replaced').every((result) => result.by === heir)).toBe(
      true,
    );
    const { rows } = await pool.query(
      'select count(*)::int as n from relay.api_keys where created_at >= $1',
      [old.createdAt],
    );
    expect(rows[0].n).toBe(2);
  });

  it('must be one’s own, and must not have ended', async () => {
    const [tenant, stranger] = [await createTenant(db, { name: 'a' }), await createTenant(db, { name: 'b' })];
    const own = await givenKey({ tenantId: tenant.id });
    const kindOf = async (ref: { tenantId: string | null; id: string }, expiresAt?: Date) =>
      (await rotateApiKey(db, ref, { overlapMs: 0, expiresAt })).kind;
    expect(await kindOf({ tenantId: stranger.id, id: own.id })).toBe('not_found');
    expect(await kindOf({ tenantId: tenant.id, id: (await givenKey()).id })).toBe('not_found');
    expect(await kindOf(own.ref, new Date(Date.now() - 1_000))).toBe('past');
    const revoked = await givenKey();
    await revokeApiKey(db, revoked.ref);
    const expired = await givenKey();
    await pool.query('update relay.api_keys set expires_at = now() where id = $1', [expired.id]);
    await deleteTenant(db, tenant.id);
    for (const { ref } of [revoked, expired, own]) expect(await kindOf(ref)).toBe('ended');
  });

  it('leaves no heir behind when its tenant is deleted at the same moment', async () => {
    for (let round = 0; round < 8; round += 1) {
      const tenant = await createTenant(db, { name: 'short-lived' });
      const old = await givenKey({ tenantId: tenant.id });
      const [result] = await Promise.all([
        rotateApiKey(db, old.ref, { overlapMs: DAY_MS }),
        deleteTenant(db, tenant.id),
      ]);
      expect(['rotated', 'ended']).toContain(result.kind);
      const { rows } = await pool.query(
        'select count(*)::int as n from relay.api_keys where tenant_id = $1 and revoked_at is null',
        [tenant.id],
      );
      expect(rows[0].n).toBe(0);
    }
  });
});

describe('a key that is changed', () => {
  it('keeps what is not named', async () => {
    const end = new Date(Date.now() + DAY_MS);
    const { ref } = await givenKey({ expiresAt: end, requestsPerSecond: 3 });
    const changed = async (change: Parameters<typeof changeApiKey>[2]) => {
      const result = await changeApiKey(db, ref, change);
      return result.kind === 'changed' ? result.apiKey : result.kind;
    };
    expect(await changed({ name: 'renamed' })).toMatchObject({
      name: 'renamed',
      expiresAt: end,
      requestsPerSecond: 3,
    });
    expect(await changed({ expiresAt: null })).toMatchObject({ name: 'renamed', expiresAt: null });
    expect(await changed({ requestsPerSecond: null })).toMatchObject({ requestsPerSecond: null });
    expect(await changed({})).toMatchObject({ name: 'renamed', expiresAt: null });
    expect(await changed({ expiresAt: new Date(Date.now() - 60_000) })).toBe('past');
  });

  it('is not brought back when it has ended, and is not found by another tenant', async () => {
    const [tenant, stranger] = [await createTenant(db, { name: 'a' }), await createTenant(db, { name: 'b' })];
    const { ref, key } = await givenKey({ tenantId: tenant.id });
    const change = { expiresAt: null };
    expect((await changeApiKey(db, { ...ref, tenantId: stranger.id }, change)).kind).toBe('not_found');
    await pool.query('update relay.api_keys set expires_at = now() where id = $1', [ref.id]);
    expect((await changeApiKey(db, ref, change)).kind).toBe('ended');
    expect(await grantOf(key)).toBeNull();
  });
});
