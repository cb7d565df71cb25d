import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import { givenEndpoint, givenTenant } from '../../services/testing/given-queue.ts';
import { givenSecretKeys } from '../../services/testing/secret-keys.ts';
import { DEFAULT_TENANT_ID } from '../domain/limits.ts';
import { createDatabase, type Database } from './database.ts';
import { changeEndpoint, type EndpointChange } from './endpoint-change.ts';
import {
  disableEndpoint,
  enableEndpoint,
  type PauseEnd,
  pauseEndpoint,
  resetBreaker,
  resumeEndpoint,
} from './endpoint-switches.ts';
import { deleteEndpoint, type EndpointRef, findEndpoint } from './endpoints.ts';
import { createPool } from './pool.ts';
import { sealSecret } from './secret-box.ts';
import { deleteTenant } from './tenants.ts';

const { keys } = givenSecretKeys();
let database: TestDatabase;
let pool: pg.Pool;
let db: Database;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 10, applicationName: 'test' });
  db = createDatabase(pool);
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

async function given(columns = ''): Promise<EndpointRef> {
  const id = await givenEndpoint(pool);
  if (columns) await pool.query(`update relay.endpoints set ${columns} where id = $1`, [id]);
  return { id, tenantId: DEFAULT_TENANT_ID };
}

const OPEN = `breaker_state = 'open', breaker_trips = 3, breaker_streak = 2, breaker_until = now() + interval '1 minute',
  failing_since = now() - interval '1 hour'`;
const ASKED_FOR = `paused_until = now() + interval '1 hour', paused_reason = 'retry_after'`;

/** How an endpoint's versions stand against those of a new one, and which jobs were asked for how often. */
async function raised({ id }: { id: string }) {
  const { rows } = await pool.query(
    `select version - 1 as version, slot_version - 1 as slots,
       (select coalesce(jsonb_object_agg(kind, round), '{}') from relay.endpoint_jobs where endpoint_id = id) as jobs
     from relay.endpoints where id = $1`,
    [id],
  );
  return rows[0];
}

const NOTHING = { version: 0, slots: 0, jobs: {} };
const VERSION_ONLY = { version: 1, slots: 0, jobs: {} };
const RETIMED = { version: 1, slots: 1, jobs: { retime: 1 } };

async function pause(endpoint: EndpointRef, end: PauseEnd) {
  const result = await pauseEndpoint(db, endpoint, end);
  if (result.kind !== 'paused') throw new Error(result.kind);
  return result.endpoint;
}

const inMs = (ms: number) => new Date(Date.now() + ms);

describe('a pause by an operator', () => {
  it('lasts until it is ended when it is given no end', async () => {
    const endpoint = await given();
    expect(await pause(endpoint, null)).toMatchObject({
      paused: true,
      pausedUntil: null,
      pausedReason: 'operator',
    });
    const { rows } = await pool.query(
      `select paused_until = 'infinity' as endless from relay.endpoints where id = $1`,
      [endpoint.id],
    );
    expect(rows).toEqual([{ endless: true }]);
  });

  it('lasts to its moment, or for its time by the clock of the database', async () => {
    const endpoint = await given();
    const end = inMs(3_600_000);
    expect(await pause(endpoint, end)).toMatchObject({ paused: true, pausedUntil: end });
    const shown = await pause(endpoint, { forMs: 60_000 });
    expect(shown.pausedUntil!.getTime() - Date.now()).toBeGreaterThan(50_000);
    expect(shown.pausedUntil!.getTime() - Date.now()).toBeLessThan(70_000);
  });

  it('with an end that has passed is refused and changes nothing', async () => {
    const endpoint = await given();
    for (const end of [inMs(-1_000), new Date(0)]) {
      expect(await pauseEndpoint(db, endpoint, end)).toEqual({ kind: 'past' });
    }
    expect(await raised(endpoint)).toEqual(NOTHING);
  });

  it('times nothing anew: what waits meets the pause when its slot comes', async () => {
    const endpoint = await given();
    await pause(endpoint, inMs(60_000));
    expect(await raised(endpoint)).toEqual(VERSION_ONLY);
    await pause(endpoint, inMs(120_000));
    await pause(endpoint, null);
    expect(await raised(endpoint)).toEqual({ version: 3, slots: 0, jobs: {} });
  });

  it('that brings the end of a pause forward times what waits anew', async () => {
    for (const [before, end] of [
      [ASKED_FOR, inMs(60_000)],
      [`paused_until = 'infinity', paused_reason = 'operator'`, inMs(86_400_000)],
    ] as const) {
      const endpoint = await given(before);
      expect(await pause(endpoint, end)).toMatchObject({ pausedReason: 'operator', pausedUntil: end });
      expect(await raised(endpoint)).toEqual(RETIMED);
    }
  });

  it('counts from nothing when an earlier pause has ended by itself', async () => {
    const endpoint = await given(`paused_until = now() - interval '1 second', paused_reason = 'retry_after'`);
    expect(await findEndpoint(db, endpoint)).toMatchObject({ paused: false, pausedReason: null });
    await pause(endpoint, inMs(60_000));
    expect(await raised(endpoint)).toEqual(VERSION_ONLY);
  });

  it('said twice is said once; over a pause that the endpoint asked for it is a word of its own', async () => {
    const endpoint = await given();
    const end = inMs(3_600_000);
    await pause(endpoint, end);
    await pause(endpoint, end);
    expect(await raised(endpoint)).toEqual(VERSION_ONLY);
    const asking = await given(ASKED_FOR);
    const { pausedUntil } = (await findEndpoint(db, asking))!;
    await pool.query(`update relay.endpoints set paused_until = $2 where id = $1`, [asking.id, pausedUntil]);
    expect((await pause(asking, pausedUntil)).pausedReason).toBe('operator');
    expect(await raised(asking)).toEqual(VERSION_ONLY);
  });
});

describe('a resume', () => {
  it('ends any pause and times what waits anew', async () => {
    for (const before of [ASKED_FOR, `paused_until = 'infinity', paused_reason = 'operator'`]) {
      const endpoint = await given(before);
      expect(await resumeEndpoint(db, endpoint)).toMatchObject({ paused: false, pausedReason: null });
      expect(await raised(endpoint)).toEqual(RETIMED);
    }
  });

  it('of what is not paused, or whose pause has ended, changes nothing', async () => {
    for (const before of [
      '',
      `paused_until = now() - interval '1 second', paused_reason = 'operator'`,
      OPEN,
    ]) {
      const endpoint = await given(before);
      expect(await resumeEndpoint(db, endpoint)).toMatchObject({ paused: false });
      expect(await raised(endpoint)).toEqual(NOTHING);
    }
  });

  it('asked for by ten at once is one', async () => {
    const endpoint = await given(ASKED_FOR);
    await Promise.all(Array.from({ length: 10 }, () => resumeEndpoint(db, endpoint)));
    expect(await raised(endpoint)).toEqual(RETIMED);
  });
});

describe('the breaker', () => {
  it('is closed by a reset, in a new era, and what waited for its cooldown is timed anew', async () => {
    for (const before of [OPEN, OPEN.replace(`'open'`, `'half_open', breaker_probe = gen_random_uuid()`)]) {
      const endpoint = await given(before);
      expect(await resetBreaker(db, endpoint)).toMatchObject({
        breakerState: 'closed',
        breakerFailures: 0,
        breakerTrips: 4,
        breakerUntil: null,
        failingSince: null,
      });
      const { rows } = await pool.query(
        'select breaker_streak, breaker_probe from relay.endpoints where id = $1',
        [endpoint.id],
      );
      expect(rows).toEqual([{ breaker_streak: 0, breaker_probe: null }]);
      expect(await raised(endpoint)).toEqual(RETIMED);
    }
  });

  it('that is closed forgets its failures by a reset, and times nothing anew', async () => {
    const endpoint = await given('breaker_failures = 4, failing_since = now()');
    expect(await resetBreaker(db, endpoint)).toMatchObject({ breakerFailures: 0, breakerTrips: 1 });
    expect(await raised(endpoint)).toEqual(VERSION_ONLY);
  });

  it('of a healthy endpoint is not changed by a reset', async () => {
    const endpoint = await given();
    expect(await resetBreaker(db, endpoint)).toMatchObject({ breakerTrips: 0 });
    expect(await raised(endpoint)).toEqual(NOTHING);
  });
});

describe('enabling', () => {
  it('closes the breaker, forgets the failure that disabled it and times what waits anew', async () => {
    const endpoint = await given(
      `${OPEN}, enabled = false, disabled_reason = 'failing', disabled_at = now()`,
    );
    expect(await enableEndpoint(db, endpoint)).toMatchObject({
      enabled: true,
      disabledReason: null,
      breakerState: 'closed',
      breakerTrips: 4,
      failingSince: null,
    });
    expect(await raised(endpoint)).toEqual(RETIMED);
  });

  it('what is enabled changes nothing, whatever its breaker', async () => {
    const endpoint = await given(OPEN);
    expect(await enableEndpoint(db, endpoint)).toMatchObject({ breakerState: 'open' });
    expect(await raised(endpoint)).toEqual(NOTHING);
  });

  it('leaves a pause as it is', async () => {
    const endpoint = await given(ASKED_FOR);
    await disableEndpoint(db, endpoint, 'operator');
    expect(await raised(endpoint)).toEqual(VERSION_ONLY);
    expect(await enableEndpoint(db, endpoint)).toMatchObject({ paused: true, pausedReason: 'retry_after' });
  });
});

describe('a change of pace', () => {
  const change = (endpoint: EndpointRef, what: EndpointChange) =>
    changeEndpoint(db, endpoint, what, { keys, overlapMs: 1_000, headerPrefix: 'Relay' });

  it('asks for the job that times what waits anew; each one asks again', async () => {
    const endpoint = await given();
    await pool.query(
      `insert into relay.endpoint_jobs (endpoint_id, kind, round, after_delivery) values ($1, 'retime', 4, $2)`,
      [endpoint.id, randomUUID()],
    );
    await sealSecretOf(endpoint);
    for (const what of [{ ratePerSecond: 1 }, { burst: 1 }, { maxInFlight: 1 }]) await change(endpoint, what);
    expect(await raised(endpoint)).toEqual({ version: 3, slots: 3, jobs: { retime: 7 } });
    const { rows } = await pool.query(
      'select after_delivery from relay.endpoint_jobs where endpoint_id = $1',
      [endpoint.id],
    );
    expect(rows).toEqual([{ after_delivery: null }]);
  });

  it('to the same pace, or of anything else, asks for none', async () => {
    const endpoint = await given();
    await sealSecretOf(endpoint);
    await change(endpoint, { ratePerSecond: 10, burst: 20, maxInFlight: 8, description: 'x' });
    expect(await raised(endpoint)).toEqual(VERSION_ONLY);
  });

  async function sealSecretOf({ id }: EndpointRef) {
    await pool.query('update relay.endpoints set secret = $2 where id = $1', [
      id,
      sealSecret(keys, id, 'a-long-secret'),
    ]);
  }
});

describe('a deletion', () => {
  it('asks for the job that cancels what is owed', async () => {
    const endpoint = await given();
    await deleteEndpoint(db, endpoint);
    expect(await raised(endpoint)).toEqual({ version: 1, slots: 0, jobs: { cancel: 1 } });
  });

  it('of a tenant asks for it for each of its endpoints that is not deleted', async () => {
    const tenantId = await givenTenant(pool);
    const made = [await givenEndpoint(pool, { tenantId }), await givenEndpoint(pool, { tenantId })];
    const gone = await givenEndpoint(pool, { tenantId, deleted: true });
    const other = await given();
    await deleteTenant(db, tenantId);
    for (const id of made) expect((await raised({ id })).jobs).toEqual({ cancel: 1 });
    for (const id of [gone, other.id]) expect((await raised({ id })).jobs).toEqual({});
  });
});

describe('an endpoint of another tenant, or a deleted one', () => {
  it('is as good as none', async () => {
    const mine = await given(`${OPEN}, ${ASKED_FOR}`);
    const foreign = { id: mine.id, tenantId: await givenTenant(pool) };
    const deleted = await given(`${OPEN}, ${ASKED_FOR}, deleted_at = now()`);
    for (const ref of [foreign, deleted]) {
      expect(await pauseEndpoint(db, ref, null)).toEqual({ kind: 'not_found' });
      expect(await resumeEndpoint(db, ref)).toBeNull();
      expect(await resetBreaker(db, ref)).toBeNull();
      expect(await enableEndpoint(db, ref)).toBeNull();
      expect(await disableEndpoint(db, ref, 'operator')).toBeNull();
      expect(await raised(ref)).toEqual(NOTHING);
    }
  });
});
