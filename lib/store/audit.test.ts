import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import { createExplainingPool } from '../../services/testing/query-plans.ts';
import {
  AUDIT_SCAN_ROWS,
  type AuditCursor,
  type AuditEntry,
  type AuditFilter,
  listAudit,
  type NewAuditEntry,
  recordAudit,
} from './audit.ts';
import { createDatabase, type Database } from './database.ts';
import { createPool } from './pool.ts';

let database: TestDatabase;
let pool: pg.Pool;
let db: Database;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
  db = createDatabase(pool);
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

async function given(entry: Partial<NewAuditEntry> = {}): Promise<void> {
  await recordAudit(db, {
    tenantId: null,
    actor: 'admin',
    actorId: null,
    action: 'changeEndpoint',
    resource: 'endpoint',
    resourceId: null,
    changes: {},
    requestId: 'r',
    ...entry,
  });
}

/** Every page of a list, and how many there were. */
async function all(tenantId: string | null, filter: AuditFilter = {}, limit = 2) {
  const entries: AuditEntry[] = [];
  let before: AuditCursor | null = null;
  let pages = 0;
  do {
    const page = await listAudit(db, tenantId, { filter, before, limit });
    entries.push(...page.entries);
    before = page.next;
    pages += 1;
  } while (before !== null);
  return { entries, pages };
}

const requestIds = ({ entries }: { entries: AuditEntry[] }) => entries.map((entry) => entry.requestId);

describe('the audit log', () => {
  it('keeps what was written, and shows each tenant its own, newest first, page by page', async () => {
    const [tenantId, other, actorId, resourceId] = [randomUUID(), randomUUID(), randomUUID(), randomUUID()];
    await given({ tenantId: other, requestId: 'other' });
    // One transaction, so that they share a moment.
    await db.transaction().execute(async (trx) => {
      for (let n = 0; n < 5; n += 1)
        await recordAudit(trx, {
          tenantId,
          actor: 'key',
          actorId,
          action: 'rotateKey',
          resource: 'key',
          resourceId,
          changes: { n, nested: { a: [1, null] } },
          requestId: `${n}`,
        });
    });
    const listed = await all(tenantId);
    expect(requestIds(listed)).toEqual(['4', '3', '2', '1', '0']);
    expect(listed.pages).toBe(3);
    expect(listed.entries[0]).toMatchObject({
      tenantId,
      actor: 'key',
      actorId,
      action: 'rotateKey',
      resource: 'key',
      resourceId,
      changes: { n: 4, nested: { a: [1, null] } },
      at: expect.any(Date),
    });
    expect(requestIds(await all(null))).toEqual(['4', '3', '2', '1', '0', 'other']);
  });

  it('is narrowed by action, resource, actor and time', async () => {
    const [tenantId, key, resourceId] = [randomUUID(), randomUUID(), randomUUID()];
    await given({ tenantId, requestId: 'a', action: 'pauseEndpoint', resourceId });
    const between = (await pool.query('select clock_timestamp() as now')).rows[0].now as Date;
    await given({ tenantId, requestId: 'b', actor: 'key', actorId: key });
    await given({ tenantId: randomUUID(), requestId: 'c', resourceId });
    const of = async (filter: AuditFilter) => requestIds(await all(tenantId, filter));
    expect(await of({ action: 'pauseEndpoint' })).toEqual(['a']);
    expect(await of({ resourceId })).toEqual(['a']);
    expect(await of({ actor: 'admin' })).toEqual(['a']);
    expect(await of({ actor: key })).toEqual(['b']);
    expect(await of({ from: between })).toEqual(['b']);
    expect(await of({ to: between })).toEqual(['a']);
    expect(await of({ action: 'pauseEndpoint', actor: key })).toEqual([]);
    expect(requestIds(await all(null, { resourceId }))).toEqual(['c', 'a']);
  });

  it.each([
    ['changed', `update relay.audit_log set action = 'nothing'`],
    ['deleted', 'delete from relay.audit_log'],
    ['emptied', 'truncate relay.audit_log'],
  ])('cannot be %s', async (_verb, statement) => {
    await given();
    await expect(pool.query(statement)).rejects.toThrow('append-only');
  });

  it('names an actor, or the admin that has no name', async () => {
    await expect(given({ actor: 'key', actorId: null })).rejects.toThrow('audit_actor_has_a_name');
    await expect(given({ actor: 'admin', actorId: randomUUID() })).rejects.toThrow('audit_actor_has_a_name');
  });

  it.each(['never analysed', 'analysed'])('is read by an index, however long it is: %s', async (state) => {
    const [tenantId, resourceId, rare] = [randomUUID(), randomUUID(), randomUUID()];
    await pool.query(
      `insert into relay.audit_log (id, tenant_id, at, actor, action, resource, resource_id, changes, request_id)
       select gen_random_uuid(), $1, now() - n * interval '1 s', 'admin', 'changeEndpoint', 'endpoint',
         case when n % 1000 = 0 then $2::uuid else gen_random_uuid() end, '{}', 'r' from generate_series(1, 25000) n`,
      [tenantId, resourceId],
    );
    if (state === 'analysed') await pool.query('analyze relay.audit_log');
    const { pool: explaining, plans } = await createExplainingPool(database.url, 'search');
    const buffers = async (tenant: string | null, filter: AuditFilter) => {
      plans.length = 0;
      await listAudit(createDatabase(explaining), tenant, { filter, before: null, limit: 100 });
      expect(plans.flatMap((plan) => plan.scans).every((scan) => scan.kind.startsWith('Index'))).toBe(true);
      return plans[0]!.buffers;
    };
    expect(await buffers(tenantId, {})).toBeLessThan(1_000);
    expect(await buffers(null, {})).toBeLessThan(1_000);
    expect(await buffers(tenantId, { resourceId })).toBeLessThan(1_000);
    expect(await buffers(tenantId, { actor: rare })).toBeLessThan(3 * AUDIT_SCAN_ROWS);
    await explaining.end();
    const { entries, pages } = await all(tenantId, { actor: rare }, 100);
    expect([entries.length, pages]).toEqual([0, 3]);
  });
});
