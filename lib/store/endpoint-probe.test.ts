import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import {
  COOLED,
  evidence,
  expectUntouched,
  givenHealth,
  HALF_OPEN,
  healthRow,
  OPEN,
  POLICY,
  PROBE,
} from '../../services/testing/given-health.ts';
import { claimProbe, giveBackProbe, type HealthEvidence, recordEvidence } from './endpoint-health.ts';
import { createPool } from './pool.ts';

let database: TestDatabase;
let pool: pg.Pool;
let other: pg.Pool;

beforeAll(async () => {
  database = await createTestDatabase();
  const open = () => createPool({ url: database.url, purpose: 'hot', max: 8, applicationName: 'test' });
  [pool, other] = [open(), open()];
});
afterAll(async () => {
  await Promise.all([pool.end(), other.end()]);
  await database.drop();
});

const given = (columns?: string) => givenHealth(pool, columns);
const stored = (id: string) => healthRow(pool, id);
const expectUnwritten = (id: string, work: () => Promise<unknown>) => expectUntouched(pool, id, work);

describe('the claim of a probe', () => {
  const claim = (endpointId: string, options: { trips?: number; token?: string; by?: pg.Pool } = {}) =>
    claimProbe(options.by ?? pool, {
      endpointId,
      trips: options.trips ?? 3,
      token: options.token ?? randomUUID(),
      probeMs: 20_000,
    });

  it('is given to exactly one of twenty that ask at once', async () => {
    const id = await given(COOLED);
    const tokens = Array.from({ length: 20 }, () => randomUUID());
    const won = await Promise.all(
      tokens.map((token, n) => claim(id, { token, by: n % 2 === 0 ? pool : other })),
    );
    expect(won.filter(Boolean)).toHaveLength(1);
    const row = await stored(id);
    expect(row).toMatchObject({ state: 'half_open', probe: tokens[won.indexOf(true)], trips: 3, streak: 2 });
    expect(row.until_in).toBeGreaterThan(10_000);
    expect(row.until_in).toBeLessThanOrEqual(20_000);
  });

  it('is refused while the breaker is closed, cools down, is being probed, or is of another era', async () => {
    expect(await claim(await given('breaker_trips = 3'))).toBe(false);
    expect(await claim(await given(OPEN))).toBe(false);
    expect(await claim(await given(HALF_OPEN))).toBe(false);
    expect(await claim(await given(COOLED), { trips: 2 })).toBe(false);
    expect(await claim(randomUUID())).toBe(false);
  });

  it('is refused for an endpoint that is disabled or deleted', async () => {
    expect(await claim(await given(`${COOLED}, enabled = false, disabled_reason = 'operator'`))).toBe(false);
    expect(await claim(await given(`${COOLED}, deleted_at = now()`))).toBe(false);
  });

  it('takes over from a prober that has vanished, one of twenty', async () => {
    const id = await given(HALF_OPEN);
    await pool.query('update relay.endpoints set breaker_until = now() where id = $1', [id]);
    const won = await Promise.all(Array.from({ length: 20 }, () => claim(id)));
    expect(won.filter(Boolean)).toHaveLength(1);
    expect((await stored(id)).probe).not.toBe(PROBE);
  });

  it('can be given back unsent, and then be claimed by another at once', async () => {
    const id = await given(HALF_OPEN);
    expect(await giveBackProbe(pool, { endpointId: id, token: randomUUID() })).toBe(false);
    expect(await stored(id)).toMatchObject({ state: 'half_open', probe: PROBE });
    expect(await giveBackProbe(pool, { endpointId: id, token: PROBE })).toBe(true);
    expect(await stored(id)).toMatchObject({ state: 'open', probe: null, trips: 3, streak: 2 });
    expect(await claim(id)).toBe(true);
    expect(await giveBackProbe(pool, { endpointId: id, token: PROBE })).toBe(false);
    expect(await stored(id)).toMatchObject({ state: 'half_open' });
  });
});

describe('the result of a probe', () => {
  const result = (id: string, item: Partial<HealthEvidence>) =>
    evidence(id, { trips: 3, probe: PROBE, ...item });

  it('closes the breaker when the endpoint answered, if only with 404', async () => {
    const id = await given(HALF_OPEN);
    const changes = await recordEvidence(pool, [result(id, { kind: 'alive' })], POLICY);
    expect(changes).toMatchObject([{ state: 'closed', trips: 3, breakerForMs: null, recovered: true }]);
    expect(await stored(id)).toMatchObject({
      state: 'closed',
      failures: 0,
      trips: 3,
      streak: 0,
      probe: null,
      until_in: null,
    });
  });

  it('opens it for longer, in a new era, when the endpoint failed', async () => {
    const id = await given(HALF_OPEN);
    const changes = await recordEvidence(pool, [result(id, {})], POLICY);
    expect(changes).toMatchObject([{ state: 'open', trips: 4, breakerForMs: 120_000, opened: true }]);
    const row = await stored(id);
    expect(row).toMatchObject({ state: 'open', trips: 4, streak: 3, probe: null });
    expect(row.until_in).toBeGreaterThan(110_000);
  });

  it('has another look for it within 5 s when it proved nothing', async () => {
    const id = await given(HALF_OPEN);
    const changes = await recordEvidence(pool, [result(id, { kind: 'unclear' })], POLICY);
    expect(changes).toMatchObject([{ state: 'open', trips: 3, breakerForMs: 5_000, opened: false }]);
    expect(await stored(id)).toMatchObject({ state: 'open', trips: 3, streak: 2, probe: null });
  });

  it('still counts past its time while nobody else has claimed', async () => {
    const id = await given(HALF_OPEN);
    await pool.query(`update relay.endpoints set breaker_until = now() - interval '1 min' where id = $1`, [
      id,
    ]);
    await recordEvidence(pool, [result(id, { kind: 'alive' })], POLICY);
    expect(await stored(id)).toMatchObject({ state: 'closed' });
  });

  it.each(['alive', 'failing', 'unclear', 'none'] as const)(
    'changes nothing when another has claimed the probe meanwhile (%s)',
    async (kind) => {
      const id = await given(`${HALF_OPEN}, failing_since = now()`);
      await pool.query('update relay.endpoints set breaker_probe = gen_random_uuid() where id = $1', [id]);
      await expectUnwritten(id, () => recordEvidence(pool, [result(id, { kind })], POLICY));
    },
  );

  it('is the only one that counts: the other 499 decide nothing', async () => {
    const id = await given(`${HALF_OPEN}, failing_since = now()`);
    const late = Array.from({ length: 499 }, (_, n) =>
      evidence(id, { trips: 2 + (n % 2), kind: n % 3 === 0 ? 'alive' : 'failing' }),
    );
    await expectUnwritten(id, () => recordEvidence(pool, late, POLICY));
  });
});
