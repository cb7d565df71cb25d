import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import { createExplainingPool } from '../../services/testing/query-plans.ts';
import { createPool } from './pool.ts';
import { readHorizons } from './slots.ts';

let database: TestDatabase;
let pool: pg.Pool;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'hot', max: 2, applicationName: 'test' });
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

/** Rows that wait for an endpoint, at these moments in seconds from now. */
async function givenSlots(
  endpointId: string,
  seconds: readonly (number | 'infinity')[],
  row: { slotVersion?: number; waiting?: 'slot' | 'parked' | null } = {},
): Promise<void> {
  await pool.query(
    `insert into relay.queue (delivery_id, endpoint_id, event_id, due_at, look_at, waiting, slot_version)
     select gen_random_uuid(), $1, gen_random_uuid(), m.at, m.at, $3, $4
     from unnest($2::text[]) s, lateral (select case s when 'infinity' then 'infinity'::timestamptz
       else now() + s::float8 * interval '1 s' end as at) m`,
    [endpointId, seconds.map(String), row.waiting === undefined ? 'slot' : row.waiting, row.slotVersion ?? 1],
  );
}

const range = (from: number, to: number) => Array.from({ length: to - from + 1 }, (_, n) => from + n);
const asked = (endpointId: string, slotEveryMs = 1_000) => ({ endpointId, slotVersion: 1, slotEveryMs });

async function horizonOf(endpointId: string, slotEveryMs?: number): Promise<number | undefined> {
  return (await readHorizons(pool, [asked(endpointId, slotEveryMs)])).get(endpointId);
}

describe('the horizon of an endpoint', () => {
  it('is its furthest slot', async () => {
    const id = randomUUID();
    await givenSlots(id, range(1, 30));
    expect(await horizonOf(id)).toBeGreaterThan(25_000);
    expect(await horizonOf(id)).toBeLessThanOrEqual(30_000);
  });

  it('is not there when nothing waits for it', async () => {
    const id = randomUUID();
    await givenSlots(id, [10], { waiting: null });
    expect(await horizonOf(id)).toBeUndefined();
  });

  it('leaves out what is parked, and slots of another version', async () => {
    const id = randomUUID();
    await givenSlots(id, [5]);
    await givenSlots(id, ['infinity'], { waiting: 'parked' });
    await givenSlots(id, [90], { slotVersion: 2 });
    expect(await horizonOf(id, 60_000)).toBeLessThanOrEqual(5_000);
    expect((await readHorizons(pool, [{ ...asked(id, 600_000), slotVersion: 2 }])).get(id)).toBeGreaterThan(
      60_000,
    );
  });

  it('is no further than as many slots as there are, when the others of a long row are gone', async () => {
    const id = randomUUID();
    await givenSlots(id, [1, 2, 3_600]);
    const horizon = (await horizonOf(id))!;
    expect(horizon).toBeGreaterThan(3_900);
    expect(horizon).toBeLessThanOrEqual(5_000);
  });

  it('behind a pause is counted from its end', async () => {
    const id = randomUUID();
    await givenSlots(id, range(301, 320));
    const horizon = (await horizonOf(id))!;
    expect(horizon).toBeGreaterThan(310_000);
    expect(horizon).toBeLessThanOrEqual(320_000);
  });

  it('has passed when all slots have', async () => {
    const id = randomUUID();
    await givenSlots(id, [-20, -10]);
    expect(await horizonOf(id)).toBe(0);
  });

  it('is read for many endpoints at once, each by its own version and spacing', async () => {
    const ids = Array.from({ length: 40 }, () => randomUUID());
    for (const [n, id] of ids.entries()) await givenSlots(id, [100 * (n + 1)], { slotVersion: n });
    const horizons = await readHorizons(
      pool,
      ids.map((endpointId, n) => ({ endpointId, slotVersion: n, slotEveryMs: 1e9 })),
    );
    for (const [n, id] of ids.entries()) {
      expect(horizons.get(id)).toBeGreaterThan(100_000 * (n + 1) - 60_000);
      expect(horizons.get(id)).toBeLessThanOrEqual(100_000 * (n + 1));
    }
  });
});

describe('with 100,000 deliveries waiting for one endpoint', () => {
  it('reads two ends of the index, whatever lies between', async () => {
    const id = randomUUID();
    await pool.query(
      `insert into relay.queue (delivery_id, endpoint_id, event_id, due_at, look_at, waiting, slot_version)
       select gen_random_uuid(), $1, gen_random_uuid(), m.at, m.at, 'slot', 1
       from generate_series(1, 100000) n, lateral (select now() + n * interval '100 ms' as at) m`,
      [id],
    );
    const { pool: explained, plans } = await createExplainingPool(database.url, 'hot');
    for (let run = 0; run < 8; run += 1) {
      const horizons = await readHorizons(explained, [asked(id, 100), asked(randomUUID())]);
      expect(horizons.get(id)).toBeGreaterThan(9_900_000);
    }
    await explained.end();
    const [plan] = plans.slice(-1);
    const scans = plan!.scans.filter((scan) => scan.table === 'queue');
    expect(scans.length).toBe(2);
    for (const scan of scans) {
      expect(scan).toMatchObject({ index: 'queue_waiting', rowsRemoved: 0 });
      expect(scan.condition).toContain('slot_version');
      expect(scan.condition).toContain('due_at');
    }
    expect(plan!.buffers).toBeLessThan(2_500);
  });
});
