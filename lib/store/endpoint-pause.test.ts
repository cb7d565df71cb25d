import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import {
  DAY_MS,
  evidence,
  expectUntouched,
  givenHealth,
  healthRow,
  POLICY,
  success,
} from '../../services/testing/given-health.ts';
import { disableGoneEndpoint, type HealthEvidence, recordEvidence } from './endpoint-health.ts';
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

describe('a Retry-After', () => {
  const asked = (id: string, retryAfterMs: number) => evidence(id, { kind: 'alive', retryAfterMs });
  const FAILING = `failing_since = now()`;

  it('pauses the endpoint for the whole fleet', async () => {
    const id = await given();
    const changes = await recordEvidence(
      pool,
      [asked(id, 9_000), asked(id, 60_000), asked(id, 1_000)],
      POLICY,
    );
    expect(changes).toMatchObject([{ paused: true, pausedForMs: 60_000, state: 'closed' }]);
    const row = await stored(id);
    expect(row.paused_reason).toBe('retry_after');
    expect(row.paused_in).toBeGreaterThan(50_000);
    expect(row.paused_in).toBeLessThanOrEqual(60_000);
  });

  it('prolongs a pause and never shortens one', async () => {
    const pausedFor = (ms: number) =>
      `${FAILING}, paused_until = now() + interval '${ms} ms', paused_reason = 'retry_after'`;
    const [short, long] = [await given(pausedFor(5_000)), await given(pausedFor(600_000))];
    await recordEvidence(pool, [asked(short, 60_000)], POLICY);
    expect((await stored(short)).paused_in).toBeGreaterThan(50_000);
    await expectUnwritten(long, async () => {
      const changes = await recordEvidence(pool, [asked(long, 60_000)], POLICY);
      expect(changes).toMatchObject([{ paused: false }]);
      expect(changes[0]?.pausedForMs).toBeGreaterThan(500_000);
    });
  });

  it('is not written when the pause would hardly move', async () => {
    const id = await given(
      `${FAILING}, paused_until = now() + interval '60 s', paused_reason = 'retry_after'`,
    );
    await expectUnwritten(id, () => recordEvidence(pool, [asked(id, 60_000)], POLICY));
  });

  it("leaves an operator's pause its reason, and one without end as it is", async () => {
    const ends = await given(`${FAILING}, paused_until = now() + interval '5 s', paused_reason = 'operator'`);
    const endless = await given(`${FAILING}, paused_until = 'infinity', paused_reason = 'operator'`);
    await recordEvidence(pool, [asked(ends, 60_000)], POLICY);
    expect(await stored(ends)).toMatchObject({ paused_reason: 'operator' });
    expect((await stored(ends)).paused_in).toBeGreaterThan(50_000);
    await expectUnwritten(endless, async () => {
      const changes = await recordEvidence(pool, [asked(endless, 60_000)], POLICY);
      expect(changes).toMatchObject([{ paused: false, pausedForMs: Number.POSITIVE_INFINITY }]);
    });
    await recordEvidence(pool, [success(endless)], POLICY);
    expect(await stored(endless)).toMatchObject({
      paused_in: Number.POSITIVE_INFINITY,
      paused_reason: 'operator',
    });
  });

  it("takes the place of an operator's pause that is over", async () => {
    const id = await given(`paused_until = now() - interval '1 h', paused_reason = 'operator'`);
    expect(await recordEvidence(pool, [asked(id, 2_000)], POLICY)).toMatchObject([{ paused: true }]);
    expect(await stored(id)).toMatchObject({ paused_reason: 'retry_after' });
  });
});

describe('an endpoint that does nothing but fail', () => {
  const failingFor = (interval: string) => given(`failing_since = now() - interval '${interval}'`);
  const record = (batch: HealthEvidence[], policy = POLICY) => recordEvidence(pool, batch, policy);

  it('is disabled and unsubscribed at a failure five days after the first', async () => {
    const id = await failingFor('5 days 1 second');
    expect(await record([evidence(id, { kind: 'alive' })])).toMatchObject([{ disabled: true }]);
    const row = await stored(id);
    expect(row).toMatchObject({ enabled: false, disabled_reason: 'failing', version: 2, slot_version: 1 });
    expect(row).toMatchObject({ subscriptions: 0 });
    expect(row.failing_for).toBeGreaterThan(5 * DAY_MS);
  });

  it('is disabled for a name that has not resolved for days', async () => {
    const id = await failingFor('6 days');
    await record([evidence(id, { kind: 'unclear' })]);
    expect(await stored(id)).toMatchObject({ enabled: false, disabled_reason: 'failing' });
  });

  it('is not disabled earlier, by what was never sent, or when that is switched off', async () => {
    const [early, unsent, off] = [
      await failingFor('4 days 23 hours'),
      await failingFor('9 days'),
      await failingFor('9 days'),
    ];
    await record([evidence(early)]);
    await record([evidence(unsent, { kind: 'none' })]);
    await record([evidence(off)], { ...POLICY, autoDisableMs: null });
    for (const id of [early, unsent, off]) {
      expect(await stored(id)).toMatchObject({ enabled: true, version: 1, subscriptions: 1 });
    }
  });

  it('begins anew with every success, before or after the failure', async () => {
    const [before, after, earlier] = [
      await failingFor('9 days'),
      await failingFor('9 days'),
      await failingFor('9 days'),
    ];
    await record([success(before), evidence(before)]);
    await record([evidence(after), success(after)]);
    await record([success(earlier)]);
    await record([evidence(earlier)]);
    for (const id of [before, after, earlier]) expect(await stored(id)).toMatchObject({ enabled: true });
    expect((await stored(before)).failing_for).toBeLessThan(60_000);
    expect((await stored(after)).failing_for).toBeNull();
    expect((await stored(earlier)).failing_for).toBeLessThan(60_000);
  });

  it('is disabled once when two find out together', async () => {
    const id = await failingFor('6 days');
    const changes = await Promise.all([pool, other].map((by) => recordEvidence(by, [evidence(id)], POLICY)));
    expect(changes.flat().filter((change) => change.disabled)).toHaveLength(1);
    expect(await stored(id)).toMatchObject({ enabled: false, version: 2 });
  });
});

describe('an endpoint that answered 410', () => {
  it('is disabled and unsubscribed, once', async () => {
    const id = await given();
    const gone = await Promise.all([pool, other].map((by) => disableGoneEndpoint(by, id)));
    expect(gone.filter(Boolean)).toHaveLength(1);
    expect(await stored(id)).toMatchObject({
      enabled: false,
      disabled_reason: 'gone',
      version: 2,
      subscriptions: 0,
    });
  });
});
