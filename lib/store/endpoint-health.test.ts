import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import { eventually } from '../../services/testing/eventually.ts';
import { givenEndpoint } from '../../services/testing/given-queue.ts';
import { createExplainingPool } from '../../services/testing/query-plans.ts';
import {
  claimProbe,
  disableGoneEndpoint,
  giveBackProbe,
  type HealthEvidence,
  type HealthPolicy,
  recordEvidence,
} from './endpoint-health.ts';
import { createPool } from './pool.ts';

const DAY_MS = 86_400_000;
const POLICY: HealthPolicy = {
  breaker: { enabled: true, threshold: 5, cooldownMs: 30_000, maxCooldownMs: 300_000 },
  autoDisableMs: 5 * DAY_MS,
};
const PATIENT: HealthPolicy = { ...POLICY, breaker: { ...POLICY.breaker, threshold: 1_000 } };

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

/** An endpoint with columns as an SQL `set` list has them. */
async function given(columns?: string): Promise<string> {
  const id = await givenEndpoint(pool);
  if (columns) await pool.query(`update relay.endpoints set ${columns} where id = $1`, [id]);
  return id;
}

const PROBE = randomUUID();
const OPEN = `breaker_state = 'open', breaker_failures = 5, breaker_trips = 3, breaker_streak = 2, breaker_until = now() + interval '1 min'`;
const COOLED = `breaker_state = 'open', breaker_failures = 5, breaker_trips = 3, breaker_streak = 2, breaker_until = now()`;
const HALF_OPEN = `breaker_state = 'half_open', breaker_failures = 5, breaker_trips = 3, breaker_streak = 2,
  breaker_probe = '${PROBE}', breaker_until = now() + interval '20 s'`;

function evidence(endpointId: string, item: Partial<HealthEvidence> = {}): HealthEvidence {
  return { endpointId, kind: 'failing', success: false, trips: 0, probe: null, retryAfterMs: null, ...item };
}

const success = (endpointId: string, item: Partial<HealthEvidence> = {}) =>
  evidence(endpointId, { kind: 'alive', success: true, ...item });

const fromNow = (column: string) => `(date_part('epoch', ${column}) - date_part('epoch', now())) * 1000`;

interface Row {
  state: string;
  failures: number;
  trips: number;
  streak: number;
  probe: string | null;
  until_in: number | null;
  failing_for: number | null;
  paused_in: number | null;
  paused_reason: string | null;
  enabled: boolean;
  disabled_reason: string | null;
  version: number;
  slot_version: number;
  subscriptions: number;
  /** Which version of the row it is, and whether anybody has locked it. */
  written: string;
}

async function stored(id: string): Promise<Row> {
  const { rows } = await pool.query<Row>(
    `select breaker_state as state, breaker_failures as failures, breaker_trips as trips, breaker_streak as streak,
       breaker_probe as probe, ${fromNow('breaker_until')} as until_in, -${fromNow('failing_since')} as failing_for,
       ${fromNow('paused_until')} as paused_in, paused_reason, enabled, disabled_reason, version, slot_version,
       (select count(*)::integer from relay.subscriptions s where s.endpoint_id = n.id) as subscriptions,
       concat_ws(' ', ctid, xmin, xmax) as written
     from relay.endpoints n where id = $1`,
    [id],
  );
  return rows[0]!;
}

/** Expects that neither a write nor a lock has touched the row. */
async function expectUntouched(id: string, work: () => Promise<unknown>): Promise<void> {
  const before = await stored(id);
  await work();
  expect((await stored(id)).written).toBe(before.written);
}

describe('a healthy endpoint', () => {
  it('is never written by successes', async () => {
    const id = await given();
    await expectUntouched(id, () =>
      recordEvidence(
        pool,
        Array.from({ length: 50 }, () => success(id)),
        POLICY,
      ),
    );
  });

  it('is told as it stands', async () => {
    const id = await given();
    expect(await recordEvidence(pool, [success(id)], POLICY)).toEqual([
      {
        endpointId: id,
        state: 'closed',
        trips: 0,
        failures: 0,
        failing: false,
        breakerForMs: null,
        pausedForMs: null,
        opened: false,
        recovered: false,
        paused: false,
        disabled: false,
      },
    ]);
  });
});

describe('evidence that changes nothing', () => {
  it('costs one read, which locks nothing, however many endpoints it is about', async () => {
    const unwell = await given(`${OPEN}, failing_since = now() - interval '1 h'`);
    const wrongPath = await given(`failing_since = now() - interval '1 h'`);
    const ids = [unwell, wrongPath, await given()];
    const batch = [
      evidence(unwell),
      evidence(unwell, { trips: 3 }),
      evidence(wrongPath, { kind: 'alive' }),
      success(ids[2]!),
    ];
    const { pool: explained, plans } = await createExplainingPool(database.url, 'hot');
    const before = await Promise.all(ids.map(stored));
    await recordEvidence(explained, batch, POLICY);
    await explained.end();
    expect(plans.map(({ query }) => query.includes('for no key update'))).toEqual([false]);
    expect((await Promise.all(ids.map(stored))).map((row) => row.written)).toEqual(
      before.map((row) => row.written),
    );
  });

  it('is also what cancels itself out', async () => {
    const id = await given();
    await expectUntouched(id, () => recordEvidence(pool, [evidence(id), success(id)], POLICY));
  });

  it('is no statement at all when there is none', async () => {
    const { pool: explained, plans } = await createExplainingPool(database.url, 'hot');
    expect(await recordEvidence(explained, [], POLICY)).toEqual([]);
    await explained.end();
    expect(plans).toEqual([]);
  });
});

describe('failures in a row', () => {
  it('are all counted when two dispatchers record them at once', async () => {
    const id = await given();
    const record = (by: pg.Pool) => recordEvidence(by, [evidence(id)], PATIENT);
    await Promise.all(Array.from({ length: 80 }, (_, n) => record(n % 2 === 0 ? pool : other)));
    expect(await stored(id)).toMatchObject({ state: 'closed', failures: 80, trips: 0 });
  });

  it('open the breaker once, whoever records the last one', async () => {
    const id = await given();
    const record = (by: pg.Pool) => recordEvidence(by, [evidence(id)], POLICY);
    const changes = await Promise.all(
      Array.from({ length: 20 }, (_, n) => record(n % 2 === 0 ? pool : other)),
    );
    expect(changes.flat().filter((change) => change.opened)).toHaveLength(1);
    const row = await stored(id);
    expect(row).toMatchObject({ state: 'open', failures: 5, trips: 1, streak: 1, probe: null });
    expect(row.until_in).toBeGreaterThan(20_000);
    expect(row.until_in).toBeLessThanOrEqual(30_000);
  });

  it('are judged in the order of the batch', async () => {
    const [spared, opened] = [await given(), await given()];
    const failures = (id: string, count: number) => Array.from({ length: count }, () => evidence(id));
    const batch = [...failures(spared, 4), success(spared), ...failures(spared, 4), ...failures(opened, 6)];
    const changes = await recordEvidence(pool, batch, POLICY);
    const changeOf = (id: string) => changes.find((change) => change.endpointId === id);
    expect(changeOf(spared)).toMatchObject({ state: 'closed', failures: 4, opened: false, failing: true });
    expect(changeOf(opened)).toMatchObject({ state: 'open', failures: 5, trips: 1, opened: true });
    expect(changeOf(opened)?.breakerForMs).toBe(30_000);
    expect(await stored(spared)).toMatchObject({ state: 'closed', failures: 4 });
    expect(await stored(opened)).toMatchObject({ state: 'open', failures: 5 });
  });

  it('bump neither version: what is cached and timed stays valid', async () => {
    const id = await given('version = 4, slot_version = 6');
    await recordEvidence(
      pool,
      Array.from({ length: 5 }, () => evidence(id, { retryAfterMs: 5_000 })),
      POLICY,
    );
    expect(await stored(id)).toMatchObject({ state: 'open', version: 4, slot_version: 6 });
  });

  it('of another era are ignored', async () => {
    const id = await given(`breaker_trips = 3, failing_since = now()`);
    await expectUntouched(id, () =>
      recordEvidence(
        pool,
        Array.from({ length: 9 }, (_, n) => evidence(id, { trips: n % 2 === 0 ? 2 : 4 })),
        POLICY,
      ),
    );
  });

  it('leave the breaker alone when it is switched off', async () => {
    const id = await given();
    const off = { ...POLICY, breaker: { ...POLICY.breaker, enabled: false } };
    await recordEvidence(
      pool,
      Array.from({ length: 9 }, () => evidence(id)),
      off,
    );
    const row = await stored(id);
    expect(row).toMatchObject({ state: 'closed', failures: 0, trips: 0 });
    expect(row.failing_for).not.toBeNull();
  });
});

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
      await expectUntouched(id, () => recordEvidence(pool, [result(id, { kind })], POLICY));
    },
  );

  it('is the only one that counts: the other 499 decide nothing', async () => {
    const id = await given(`${HALF_OPEN}, failing_since = now()`);
    const late = Array.from({ length: 499 }, (_, n) =>
      evidence(id, { trips: 2 + (n % 2), kind: n % 3 === 0 ? 'alive' : 'failing' }),
    );
    await expectUntouched(id, () => recordEvidence(pool, late, POLICY));
  });
});

describe('two batches about the same endpoints', () => {
  it('never wait for each other in a circle, whatever their order', async () => {
    const ids = await Promise.all(Array.from({ length: 40 }, () => given()));
    const forth = ids.map((id) => evidence(id));
    const back = [...forth].reverse();
    for (let round = 0; round < 15; round += 1) {
      await Promise.all([
        recordEvidence(pool, forth, PATIENT),
        recordEvidence(other, back, PATIENT),
        recordEvidence(pool, back, PATIENT),
        recordEvidence(other, forth, PATIENT),
      ]);
    }
    const rows = await Promise.all(ids.map(stored));
    expect(new Set(rows.map((row) => row.failures))).toEqual(new Set([60]));
  });
});

describe('an endpoint that somebody else holds', () => {
  async function held(id: string): Promise<pg.PoolClient> {
    const holder = await other.connect();
    await holder.query('begin');
    await holder.query('update relay.endpoints set description = description where id = $1', [id]);
    return holder;
  }

  it('keeps no neighbour from being recorded, and is recorded when it is let go', async () => {
    const [stuck, neighbour] = [await given(), await given()];
    const holder = await held(stuck);
    const recording = recordEvidence(pool, [evidence(stuck), evidence(neighbour)], POLICY);
    await eventually(async () => expect(await stored(neighbour)).toMatchObject({ failures: 1 }), 1_500);
    await holder.query('commit');
    holder.release();
    expect(await recording).toHaveLength(2);
    expect(await stored(stuck)).toMatchObject({ failures: 1 });
  });

  it('is judged by what its holder made of it', async () => {
    const id = await given();
    const holder = await held(id);
    const recording = recordEvidence(pool, [evidence(id)], POLICY);
    await eventually(async () => {
      const { rows } = await pool.query(`select from pg_locks where not granted`);
      expect(rows).toHaveLength(1);
    }, 1_500);
    await holder.query('update relay.endpoints set breaker_failures = 4 where id = $1', [id]);
    await holder.query('commit');
    holder.release();
    expect(await recording).toMatchObject([{ state: 'open', opened: true }]);
  });

  it('is left out when it is not let go', async () => {
    const [stuck, neighbour] = [await given(), await given()];
    const holder = await held(stuck);
    const changes = await recordEvidence(pool, [evidence(stuck), evidence(neighbour)], POLICY);
    expect(changes.map((change) => change.endpointId)).toEqual([neighbour]);
    await holder.query('rollback');
    holder.release();
    expect(await stored(stuck)).toMatchObject({ failures: 0 });
  });

  it('is let go by a dispatcher that freezes', async () => {
    const id = await given();
    const frozen = new Proxy(other, {
      get: (target, name) =>
        name === 'connect'
          ? async () => freezing(await target.connect())
          : Reflect.get(target, name).bind(target),
    });
    const lost = expect(recordEvidence(frozen, [evidence(id)], POLICY)).rejects.toThrow();
    await eventually(async () => {
      const { rows } = await pool.query(
        `select from pg_stat_activity where datname = current_database() and state = 'idle in transaction'`,
      );
      expect(rows).toHaveLength(1);
    });
    expect(await recordEvidence(pool, [evidence(id)], POLICY)).toMatchObject([{ failures: 1 }]);
    await lost;
  });
});

/** A connection on which nothing is sent after the lock until the server has cut it. */
function freezing(client: pg.PoolClient): pg.PoolClient {
  const cut = new Promise<void>((resolve) => client.once('error', () => resolve()));
  return new Proxy(client, {
    get: (target, name) => {
      const value = Reflect.get(target, name);
      if (name !== 'query') return typeof value === 'function' ? value.bind(target) : value;
      return async (statement: pg.QueryConfig) => {
        if (statement.name === 'relay_health_write') await cut;
        return target.query(statement);
      };
    },
  });
}

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
    await expectUntouched(long, async () => {
      const changes = await recordEvidence(pool, [asked(long, 60_000)], POLICY);
      expect(changes).toMatchObject([{ paused: false }]);
      expect(changes[0]?.pausedForMs).toBeGreaterThan(500_000);
    });
  });

  it('is not written when the pause would hardly move', async () => {
    const id = await given(
      `${FAILING}, paused_until = now() + interval '60 s', paused_reason = 'retry_after'`,
    );
    await expectUntouched(id, () => recordEvidence(pool, [asked(id, 60_000)], POLICY));
  });

  it("leaves an operator's pause its reason, and one without end as it is", async () => {
    const ends = await given(`${FAILING}, paused_until = now() + interval '5 s', paused_reason = 'operator'`);
    const endless = await given(`${FAILING}, paused_until = 'infinity', paused_reason = 'operator'`);
    await recordEvidence(pool, [asked(ends, 60_000)], POLICY);
    expect(await stored(ends)).toMatchObject({ paused_reason: 'operator' });
    expect((await stored(ends)).paused_in).toBeGreaterThan(50_000);
    await expectUntouched(endless, async () => {
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

describe('an endpoint that is disabled, deleted or missing', () => {
  it('is left alone and left out', async () => {
    const ids = [
      await given(`enabled = false, disabled_reason = 'operator', failing_since = now() - interval '9 days'`),
      await given(`deleted_at = now()`),
    ];
    for (const id of ids) {
      await expectUntouched(id, async () => {
        const batch = [evidence(id, { retryAfterMs: 60_000 }), evidence(randomUUID())];
        expect(await recordEvidence(pool, batch, POLICY)).toEqual([]);
      });
    }
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

describe('each statement', () => {
  it('finds its endpoints by their ids among 10,000', async () => {
    await pool.query(
      `insert into relay.endpoints (tenant_id, url, secret)
       select id, 'https://sink.example.test', '\\x00' from relay.tenants, generate_series(1, 10000)`,
    );
    const [failed, cooled] = [await given(`failing_since = now() - interval '9 days'`), await given(COOLED)];
    const { pool: explained, plans } = await createExplainingPool(database.url, 'hot');
    await recordEvidence(explained, [evidence(failed), evidence(cooled)], POLICY);
    await claimProbe(explained, { endpointId: cooled, trips: 3, token: PROBE, probeMs: 1_000 });
    await giveBackProbe(explained, { endpointId: cooled, token: PROBE });
    await explained.end();
    const scans = plans.flatMap((plan) => plan.scans);
    expect(scans.filter((scan) => scan.kind !== 'Index Scan' || scan.condition === null)).toEqual([]);
    expect(new Set(scans.map((scan) => scan.index))).toEqual(
      new Set(['endpoints_pkey', 'endpoints_unwell', 'subscriptions_endpoint']),
    );
    expect(plans).toHaveLength(6);
  });
});
