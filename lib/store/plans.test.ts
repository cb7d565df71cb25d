import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import {
  acceptedIds,
  death,
  deferral,
  givenEndpoint,
  keyedEvent,
  lease,
  newEvent,
  PROCESS,
  pollLease,
  release,
  retry,
  success,
} from '../../services/testing/given-queue.ts';
import { createExplainingPool, type RanPlan } from '../../services/testing/query-plans.ts';
import { DEFAULT_TENANT_ID } from '../domain/limits.ts';
import { claimByIds, claimDue, readPayload } from './claims.ts';
import { defer } from './defer.ts';
import { cancelStep, finishJob, listJobs, pickRetimable, retime } from './endpoint-jobs.ts';
import { fanOutStep, nextFanOut } from './fan-outs.ts';
import {
  acceptEvents,
  acceptKeyedEvents,
  deleteExpiredKeys,
  firstAnswersOf,
  type KeyedOutcome,
  unannounce,
} from './ingest.ts';
import { createPool } from './pool.ts';
import { reannounceLost } from './reannounce.ts';
import { replayDeliveries } from './replay.ts';
import { finish, keep } from './settle.ts';
import { readHorizons } from './slots.ts';
import { announceDue, endOwed, nextLook, postponeLooks, reclaimExpired, surfaceEnqueued } from './sweep.ts';

type Purpose = 'ingest' | 'hot' | 'sweep' | 'general';
type Explained = Record<Purpose, Awaited<ReturnType<typeof createExplainingPool>>>;

const BATCH = 64;
/** A named statement gets its generic plan, if ever, after five runs. */
const RUNS = 8;

async function explainAll(url: string): Promise<Explained> {
  const of = (purpose: Purpose) => createExplainingPool(url, purpose);
  const [ingest, hot, sweep, general] = await Promise.all([
    of('ingest'),
    of('hot'),
    of('sweep'),
    of('general'),
  ]);
  return { ingest, hot, sweep, general };
}

/** Every hot statement, as the services run it, on the connections that they run it on. */
async function runEverything(
  { ingest, hot, sweep, general }: Explained,
  endpointId: string,
  from: Date | null,
): Promise<void> {
  const [producer, leader] = [await ingest.pool.connect(), await sweep.pool.connect()];
  const all = { limit: 1000, from };
  try {
    for (let run = 0; run < RUNS; run += 1) {
      const events = Array.from({ length: BATCH }, (_, n) =>
        newEvent(n % 2 === 0 ? {} : { targetEndpointId: endpointId, type: 'not.subscribed' }),
      );
      const ids = (await acceptEvents(producer, events, { announced: true })).flatMap(acceptedIds);
      const keyed = events.map((event) => keyedEvent(randomUUID(), event));
      const first = await acceptKeyedEvents(producer, keyed, { announced: true, retentionMs: 0 });
      await acceptKeyedEvents(producer, keyed, { announced: true, retentionMs: 0 });
      await deleteExpiredKeys(general.pool, keyed);
      await firstAnswersOf(
        general.pool,
        first.map((outcome) => (outcome.kind === 'accepted' ? outcome.eventId : '')),
      );
      await unannounce(leader, ids);
      await announceDue(leader, { ...all, drainedUntil: { express: null, bulk: null } });
      await nextLook(leader);
      // From the beginning always, because it follows a flush and no cursor.
      if (from === null) await reannounceLost(leader, { lane: 'express', limit: 10, until: new Date(0) });

      const claims = await claimByIds(hot.pool, ids, lease());
      expect(claims.length).toBe(BATCH);
      await readPayload(hot.pool, claims[0]!.eventId);
      await postponeLooks(leader, all);
      const half = BATCH / 2;
      await keep(
        hot.pool,
        claims.slice(0, half / 2).map((claim, n) => (n % 2 ? retry(claim) : release(claim))),
        PROCESS,
      );
      await defer(
        hot.pool,
        claims.slice(half / 2, half).map((claim) => deferral(claim, { slotVersion: run + 1 })),
        PROCESS,
      );
      await readHorizons(hot.pool, [
        { endpointId, slotVersion: 1, slotEveryMs: 1 },
        { endpointId: randomUUID(), slotVersion: 1, slotEveryMs: 1 },
      ]);
      await runJobs(general.pool, leader, endpointId);
      await runFanOut(general.pool, leader, first[0]!);
      await finish(
        hot.pool,
        claims.slice(half).map((claim, n) => (n % 2 ? success(claim) : death(claim))),
        PROCESS,
      );
      await replayDeliveries(
        general.pool,
        claims.slice(half).map((claim) => claim.deliveryId),
      );
      await surfaceEnqueued(leader, 100);

      const polled = await claimDue(hot.pool, 1_000, from, pollLease({ leaseMs: 0 }));
      expect(polled.claims.length).toBeGreaterThan(0);
      await leader.query(`update relay.queue set lease_expires_at = now() - interval '1 minute', look_at = now(),
        reclaims = case when claimed_by is null then 0 else 9 * (attempts % 2) end where lease_expires_at is not null`);
      expect((await reclaimExpired(leader, all)).length).toBeGreaterThan(0);
      expect((await endOwed(leader, { ...all, mayReclaim: true })).length).toBeGreaterThan(0);
    }
  } finally {
    producer.release();
    leader.release();
  }
}

async function runJobs(general: pg.Pool, leader: pg.PoolClient, endpointId: string): Promise<void> {
  await general.query('update relay.endpoints set slot_version = slot_version + 1 where id = $1', [
    endpointId,
  ]);
  await general.query(
    `insert into relay.endpoint_jobs (endpoint_id, kind) values ($1, 'retime'), (gen_random_uuid(), 'cancel')`,
    [endpointId],
  );
  const jobs = await listJobs(leader, { after: null, limit: 10 });
  for (const job of jobs) {
    const picked = await pickRetimable(leader, endpointId, 16);
    const { slotVersion, ids } = picked!;
    const delaysMs = ids.map(() => 60_000);
    expect(await retime(leader, endpointId, { slotVersion, ids, delaysMs })).toBe(ids.length);
    if (job.kind === 'cancel') await cancelStep(leader, job, BATCH);
    expect(await finishJob(leader, job)).toBe(true);
  }
}

async function runFanOut(general: pg.Pool, leader: pg.PoolClient, accepted: KeyedOutcome): Promise<void> {
  if (accepted.kind !== 'accepted') throw new Error(accepted.kind);
  await general.query(
    `insert into relay.fan_outs (event_id, tenant_id, endpoint_ids, next_tail)
     select $1, gen_random_uuid(), array(select gen_random_uuid() from generate_series(1, 200)), 101`,
    [accepted.eventId],
  );
  expect(await nextFanOut(leader, null)).toBe(accepted.eventId);
  expect(await fanOutStep(leader, accepted.eventId, BATCH)).toEqual({ written: BATCH, ended: false });
  expect(await fanOutStep(leader, accepted.eventId, BATCH)).toEqual({ written: 36, ended: true });
  // What a poll may find is bounded by the batches of the others.
  await general.query(`delete from relay.queue where event_id = $1 and lane = 1`, [accepted.eventId]);
}

const GROWING = new Set([
  'queue',
  'deliveries',
  'events',
  'idempotency_keys',
  'dead_letters',
  'subscriptions',
  'endpoints',
]);

/** What is wrong with a plan, in words; empty when every table that grows is reached by an index condition. */
function faultsOf({ query, scans }: RanPlan): string[] {
  const name = query.trim().slice(0, 60).replaceAll(/\s+/g, ' ');
  return scans
    .filter((scan) => GROWING.has(scan.table))
    .filter((scan) => !(['Index Scan', 'Index Only Scan', 'Tid Scan'].includes(scan.kind) && scan.condition))
    .map(
      (scan) =>
        `${name}: ${scan.kind} of ${scan.table} ${scan.index ?? ''} ${scan.condition ?? 'without a condition'}`,
    );
}

function ownStatements(explained: Explained): RanPlan[] {
  const { general: _, ...hot } = explained;
  return Object.values(hot)
    .flatMap(({ plans }) => plans)
    .filter(({ query }) => query.includes('relay.') && !query.includes(`interval '1 minute'`));
}

async function withExplained(
  work: (explained: Explained, database: TestDatabase) => Promise<void>,
): Promise<void> {
  const database = await createTestDatabase();
  const explained = await explainAll(database.url);
  try {
    await work(explained, database);
  } finally {
    await Promise.all(Object.values(explained).map(({ pool }) => pool.end()));
    await database.drop();
  }
}

describe('on young tables that nobody has analysed', () => {
  it('every hot statement reaches its rows by index conditions', async () => {
    await withExplained(async (explained) => {
      await runEverything(
        explained,
        await givenEndpoint(explained.hot.pool, { patterns: ['order.*'] }),
        null,
      );
      const plans = ownStatements(explained);
      expect(new Set(plans.map(({ query }) => query)).size).toBeGreaterThanOrEqual(20);
      expect(plans.flatMap(faultsOf)).toEqual([]);
    });
  });
});

describe.each([
  ['young', ''],
  ['analysed', 'analyze relay.subscriptions; analyze relay.endpoints'],
])('among 10,000 endpoints of one tenant, in %s tables', (_, prepare) => {
  async function givenSubscribers(pool: pg.Pool): Promise<void> {
    await pool.query(
      `insert into relay.endpoints (tenant_id, url, secret)
       select $1, 'https://sink.example.test', '\\x00' from generate_series(1, 10000)`,
      [DEFAULT_TENANT_ID],
    );
    await pool.query(
      `insert into relay.subscriptions (tenant_id, pattern, endpoint_id)
       select tenant_id, 'type.' || (row_number() over () - 1) / 3, id from relay.endpoints`,
    );
    await pool.query(prepare);
  }

  const subscriptions = (plans: readonly RanPlan[]) =>
    plans.flatMap(({ scans }) => scans).filter(({ table }) => table === 'subscriptions');

  it('the fan-out of an event that matches three reads three', async () => {
    await withExplained(async ({ ingest: { pool, plans } }) => {
      await givenSubscribers(pool);
      plans.length = 0;
      const client = await pool.connect();
      for (let run = 0; run < RUNS; run += 1) {
        const events = Array.from({ length: BATCH }, (_, n) => newEvent({ type: `type.${n + 1}` }));
        const accepted = (await acceptEvents(client, events, { announced: true })).flatMap(acceptedIds);
        expect(accepted.length).toBe(3 * BATCH);
      }
      client.release();
      expect(plans.flatMap(faultsOf)).toEqual([]);
      expect(subscriptions(plans).length).toBe(RUNS);
      for (const { rowsRemoved } of subscriptions(plans)) expect(rowsRemoved).toBe(0);
      expect(Math.max(...plans.map(({ buffers }) => buffers))).toBeLessThan(60 * BATCH);
    });
  });

  it('the same for one that a producer enqueues, whatever the settings of its connection', async () => {
    await withExplained(async ({ general: { pool, plans } }) => {
      await givenSubscribers(pool);
      await pool.query('set auto_explain.log_nested_statements = on');
      for (const setting of ['', 'set enable_indexscan = off; set enable_indexonlyscan = off']) {
        await pool.query(setting);
        plans.length = 0;
        for (let run = 0; run < RUNS; run += 1)
          await pool.query(`select relay.enqueue('type.${run}', '{}', gen_random_uuid()::text)`);
        const inner = plans.filter(({ query }) => !query.startsWith('select relay.enqueue('));
        expect(inner.length).toBeGreaterThanOrEqual(8 * RUNS);
        expect(inner.flatMap(faultsOf)).toEqual([]);
        const matching = inner.filter((plan) => subscriptions([plan]).length > 0);
        expect(matching.length).toBe(RUNS);
        for (const { buffers } of matching) expect(buffers).toBeLessThan(20);
      }
    });
  });
});

// What a planner makes of a queue that was empty when it was looked at: about 25 rows in thousands of pages, so that one probe
// of an index costs hundreds of pages to its mind.
describe('on a queue that was analysed empty, with 200,000 dead entries that an open snapshot keeps', () => {
  it('every hot statement reaches its rows by index conditions and reads few pages', async () => {
    await withExplained(async (explained, database) => {
      const pool = createPool({ url: database.url, purpose: 'migrate', max: 1, applicationName: 'test' });
      const snapshot = createPool({ url: database.url, purpose: 'migrate', max: 1, applicationName: 'test' });
      try {
        await snapshot.query('begin isolation level repeatable read');
        await snapshot.query('select from relay.queue');
        const endpointId = await givenEndpoint(pool, { patterns: ['order.*'] });
        await leaveDeadEntries(pool, endpointId);
        await runEverything(explained, endpointId, new Date(Date.now() - 5_000));
        const plans = ownStatements(explained);
        expect(plans.flatMap(faultsOf)).toEqual([]);
        for (const { query, buffers } of plans) expect(buffers, query).toBeLessThan(40 * BATCH);
      } finally {
        await Promise.all([pool.end(), snapshot.end()]);
      }
    });
  });
});

async function leaveDeadEntries(pool: pg.Pool, endpointId: string): Promise<void> {
  await pool.query(
    `insert into relay.queue (delivery_id, endpoint_id, event_id, due_at, look_at, announced_at)
     select ('018f0000-0000-7' || lpad(to_hex(n / 65536), 3, '0') || '-8000-' || lpad(to_hex(n), 12, '0'))::uuid, $1,
       gen_random_uuid(), m.at, m.at, m.at
     from generate_series(1, 200000) n, lateral (select now() - interval '1 minute' - n * interval '1 ms' as at) m`,
    [endpointId],
  );
  await pool.query('delete from relay.queue');
  await pool.query('analyze relay.queue');
}
