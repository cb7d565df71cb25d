import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { claimByIds } from '../../lib/store/claims.ts';
import { keep } from '../../lib/store/settle.ts';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import {
  givenClaimed,
  givenEndpoint,
  givenOwed,
  lease,
  PROCESS,
  sendRecord,
} from '../../services/testing/given-queue.ts';
import { type TouchLog, watchTouches } from './touches.ts';

const ALWAYS = { fromMs: 0, toMs: 4_102_444_800_000 };

let database: TestDatabase;
let pool: pg.Pool;
let log: TouchLog;
let bad: string;
let healthy: string;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = new pg.Pool({ connectionString: database.url, max: 2 });
  bad = await givenEndpoint(pool);
  healthy = await givenEndpoint(pool);
  log = await watchTouches(database.url, [bad]);
});
afterAll(async () => {
  await log.close();
  await pool.end();
  await database.drop();
});

const giveBack = (claim: { deliveryId: string; token: string }) =>
  keep(pool, [{ kind: 'release', deliveryId: claim.deliveryId, token: claim.token, delayMs: 0 }], PROCESS);

describe('the log of touches', () => {
  it('has each claim of a bad delivery, those that left no trace too, and which came again', async () => {
    const [one, other] = await givenOwed(pool, 2, { endpointId: bad });
    await giveBack(await givenClaimed(pool, one!));
    await giveBack(await givenClaimed(pool, one!));
    await givenClaimed(pool, other!);
    const claims = (await log.touches(ALWAYS)).filter(({ kind }) => kind === 'claimed');
    expect(claims.map(({ again }) => again)).toEqual([false, true, false]);
    expect(claims.every(({ endpointId }) => endpointId === bad)).toBe(true);
    const [first] = claims;
    expect(await log.touches({ fromMs: 0, toMs: first!.atMs - 1 })).toEqual([]);
  });

  it('has announcements, and no write that is neither', async () => {
    const before = (await log.touches(ALWAYS)).length;
    const [id] = await givenOwed(pool, 1, { endpointId: bad, announced: false });
    await pool.query('update relay.queue set announced_at = now() where delivery_id = $1', [id]);
    await pool.query('update relay.queue set look_at = now(), announced_at = null where delivery_id = $1', [
      id,
    ]);
    const touches = await log.touches(ALWAYS);
    expect(touches.slice(before)).toMatchObject([{ kind: 'announced', again: false }]);
  });

  it('knows nothing of the others', async () => {
    const before = (await log.touches(ALWAYS)).length;
    const ids = await givenOwed(pool, 3, { endpointId: healthy });
    expect(await claimByIds(pool, ids, lease())).toHaveLength(3);
    expect(await log.touches(ALWAYS)).toHaveLength(before);
  });
});

describe('a first pass', () => {
  it('is over when each delivery is held, was sent or was deferred', async () => {
    const untouched = await log.untouched();
    const owed = await log.owed();
    const [one, two] = await givenOwed(pool, 2, { endpointId: bad });
    await givenOwed(pool, 1, { endpointId: healthy });
    expect(await log.untouched()).toBe(untouched + 2);
    expect(await log.owed()).toBe(owed + 2);
    const claim = await givenClaimed(pool, one!);
    expect(await log.untouched()).toBe(untouched + 1);
    await giveBack(claim);
    expect(await log.untouched()).toBe(untouched + 2);
    const { deliveryId, token } = await givenClaimed(pool, two!);
    const send = sendRecord({ class: 'retryable', httpStatus: 503 });
    await keep(pool, [{ kind: 'retry', deliveryId, token, delayMs: 60_000, send }], PROCESS);
    expect(await log.untouched()).toBe(untouched + 1);
  });
});

describe('attempt rows', () => {
  it('are counted by class, those of the bad endpoint alone', async () => {
    expect(await log.written(ALWAYS)).toEqual({ retryable: 1 });
    expect(await log.written({ fromMs: 0, toMs: 1 })).toEqual({});
  });
});

describe('the cooldown', () => {
  it('is what is left of it, and 0 while the breaker is closed', async () => {
    expect(await log.cooldownMs()).toBe(0);
    await pool.query(
      `update relay.endpoints set breaker_state = 'open', breaker_until = now() + interval '30 s' where id = $1`,
      [bad],
    );
    const left = await log.cooldownMs();
    expect(left).toBeGreaterThan(1_000);
    expect(left).toBeLessThanOrEqual(30_000);
  });
});
