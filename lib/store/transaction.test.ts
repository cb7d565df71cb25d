import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import { createPool } from './pool.ts';
import { createTenant } from './tenants.ts';
import { inOneTransaction } from './transaction.ts';

let database: TestDatabase;
let pool: pg.Pool;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

async function names(): Promise<string[]> {
  const { rows } = await pool.query('select name from relay.tenants order by name');
  return rows.map((row) => row.name);
}

const insert = (name: string) => ({
  text: 'insert into relay.tenants (name) values ($1)',
  values: [name],
});

describe('one transaction', () => {
  it('commits together what was written through the query builder, in transactions of its own, and by hand', async () => {
    await inOneTransaction(pool, async (bound) => {
      await createTenant(bound.db, { name: 'built' });
      await bound.db.transaction().execute((trx) => createTenant(trx as typeof bound.db, { name: 'nested' }));
      await bound.pool.query(insert('by hand'));
      expect(await names()).toEqual(['default']);
    });
    expect(await names()).toEqual(['built', 'by hand', 'default', 'nested']);
  });

  it('leaves nothing of what was written before it failed', async () => {
    const before = await names();
    const failing = inOneTransaction(pool, async ({ db, pool: bound }) => {
      await db.transaction().execute((trx) => createTenant(trx as typeof db, { name: 'lost' }));
      await bound.query(insert('lost too'));
      throw new Error('changed my mind');
    });
    await expect(failing).rejects.toThrow('changed my mind');
    expect(await names()).toEqual(before);
  });

  it('goes on after a step that failed and was caught', async () => {
    await inOneTransaction(pool, async ({ db }) => {
      const step = db.transaction().execute(async (trx) => {
        await createTenant(trx as typeof db, { name: 'undone' });
        await createTenant(trx as typeof db, { name: '' });
      });
      await expect(step).rejects.toMatchObject({ code: '23514' });
      await createTenant(db, { name: 'after all' });
    });
    expect(await names()).toContain('after all');
    expect(await names()).not.toContain('undone');
  });

  it('does not pass for committed when a statement failed outside a step and was caught', async () => {
    const swallowing = inOneTransaction(pool, async ({ db }) => {
      await createTenant(db, { name: 'swallowed' });
      await createTenant(db, { name: '' }).catch(() => undefined);
    });
    await expect(swallowing).rejects.toThrow('rolled back');
    expect(await names()).not.toContain('swallowed');
  });

  it('gives its connection back whatever happened, and none that broke', async () => {
    for (let n = 0; n < 5; n += 1) {
      const cut = inOneTransaction(pool, async ({ pool: bound }) => {
        const { rows } = await bound.query<{ pid: number }>({ text: 'select pg_backend_pid() as pid' });
        await pool.query('select pg_terminate_backend($1)', [rows[0]!.pid]);
        await bound.query({ text: 'select 1' });
      });
      await expect(cut).rejects.toThrow();
    }
    expect(pool.idleCount).toBe(pool.totalCount);
    expect(await names()).toContain('default');
  });
});
