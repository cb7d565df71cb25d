import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import { createExplainingPool, type RanPlan } from '../../services/testing/query-plans.ts';
import { DEFAULT_TENANT_ID } from '../domain/limits.ts';
import { createDatabase, type Database } from './database.ts';
import { findEmailEndpoints, readTargets } from './event-targets.ts';

let database: TestDatabase;
let pool: pg.Pool;
let plans: RanPlan[];
let db: Database;

beforeAll(async () => {
  database = await createTestDatabase();
  ({ pool, plans } = await createExplainingPool(database.url, 'general'));
  db = createDatabase(pool);
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

async function givenEndpoints(count: number, settings: { transport?: string; enabled?: boolean } = {}) {
  const { transport = 'http', enabled = true } = settings;
  const { rows } = await pool.query<{ id: string }>(
    `insert into relay.endpoints (tenant_id, url, secret, transport, enabled, disabled_reason)
     select $1, 'https://sink.example.com/in', '\\x00', $2, $3, case when not $3 then 'operator' end
     from generate_series(1, $4) returning id`,
    [DEFAULT_TENANT_ID, transport, enabled, count],
  );
  return rows.map((row) => row.id);
}

describe('the email endpoints of a tenant', () => {
  it.each(['young', 'analysed'])(
    'are found beside ten thousand others without reading those: %s table',
    async (age) => {
      await pool.query('truncate relay.endpoints cascade');
      await givenEndpoints(5_000);
      await givenEndpoints(3, { transport: 'email', enabled: false });
      const ids = await givenEndpoints(3, { transport: 'email' });
      await givenEndpoints(5_000);
      if (age === 'analysed') await pool.query('analyze relay.endpoints');
      plans.length = 0;
      expect(await findEmailEndpoints(db, DEFAULT_TENANT_ID)).toEqual(ids.sort().slice(0, 2));
      expect(plans[0]?.scans.map(({ index }) => index)).toEqual(['endpoints_email']);
      expect(plans[0]?.buffers).toBeLessThan(20);
      expect(await findEmailEndpoints(db, randomUUID())).toEqual([]);
    },
  );
});

describe('the targets of events', () => {
  it('are those of the tenant, disabled ones too, deleted ones not', async () => {
    const [on] = await givenEndpoints(1);
    const [off] = await givenEndpoints(1, { enabled: false });
    const [gone] = await givenEndpoints(1);
    await pool.query('update relay.endpoints set deleted_at = now() where id = $1', [gone]);
    const ids = [on!, off!, gone!, randomUUID()];
    const found = await readTargets(db, DEFAULT_TENANT_ID, ids);
    expect([...found.keys()].sort()).toEqual([on, off].sort());
    expect(found.get(off!)).toMatchObject({ enabled: false, disabledReason: 'operator', transport: 'http' });
    expect((await readTargets(db, randomUUID(), ids)).size).toBe(0);
  });
});
