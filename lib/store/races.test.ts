import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import {
  death,
  deferral,
  givenEndpoint,
  givenOwed,
  lease,
  PROCESS,
  pollLease,
  release,
  retry,
  success,
} from '../../services/testing/given-queue.ts';
import { pause } from '../runtime/pause.ts';
import { type Claim, claimByIds, claimDue } from './claims.ts';
import { type Deferral, defer } from './defer.ts';
import { finishJob, listJobs, pickRetimable, retime } from './endpoint-jobs.ts';
import { sqlState } from './failure.ts';
import { unannounce } from './ingest.ts';
import { checkInvariants, violations } from './invariants.ts';
import { createPool, type PoolPurpose } from './pool.ts';
import { replayDeliveries } from './replay.ts';
import { type Finish, finish, type Keep, keep } from './settle.ts';
import { announceDue, endOwed, postponeLooks, reclaimExpired, surfaceEnqueued } from './sweep.ts';

const ROWS = 3_000;
const RUN_MS = 10_000;
const LEASE_MS = 40;

let database: TestDatabase;
const pools: pg.Pool[] = [];

function openPool(purpose: PoolPurpose, max: number): pg.Pool {
  const pool = createPool({ url: database.url, purpose, max, applicationName: 'test' });
  pools.push(pool);
  return pool;
}

beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(async () => {
  await Promise.all(pools.map((pool) => pool.end()));
  await database.drop();
});

const below = (n: number) => Math.floor(Math.random() * n);
const some = <T>(all: readonly T[], count: number) =>
  Array.from({ length: count }, () => all[below(all.length)]!);

/** Everybody who writes to a delivery, as fast as they can, on leases so short that they are lost all the time. */
class Crowd {
  readonly done = {
    claims: 0,
    settles: 0,
    lost: 0,
    reclaims: 0,
    ended: 0,
    announced: 0,
    replays: 0,
    changes: 0,
    retimed: 0,
    checks: 0,
  };
  readonly faults: string[] = [];
  readonly #ids: readonly string[];
  readonly #open: { claim: Claim; at: number }[] = [];
  readonly #until = performance.now() + RUN_MS;

  readonly #endpointId: string;
  #slotVersion = 1;

  constructor(ids: readonly string[], endpointId: string) {
    this.#ids = ids;
    this.#endpointId = endpointId;
  }

  async run(): Promise<void> {
    const hot = openPool('hot', 11);
    const general = openPool('general', 5);
    await Promise.all([
      ...[1, 2, 3].map(() => this.#repeat(() => this.#claim(hot))),
      this.#repeat(() => this.#poll(hot)),
      ...[1, 2, 3].map(() => this.#repeat(() => this.#settle(hot))),
      ...[1, 2].map(() => this.#sweepAlone()),
      this.#repeat(() => this.#passTime(general)),
      ...[1, 2].map(() => this.#repeat(() => this.#cancel(hot))),
      ...[1, 2].map(() => this.#repeat(() => this.#replay(general))),
      this.#repeat(() => this.#change(general)),
      ...[1, 2].map(() => this.#repeat(() => this.#retime(hot))),
      this.#repeat(() => this.#check(general)),
    ]);
  }

  async #repeat(step: () => Promise<void>): Promise<void> {
    while (performance.now() < this.#until) {
      await step().catch((error: unknown) => this.faults.push(`${sqlState(error)} ${error}`));
    }
  }

  async #claim(pool: pg.Pool): Promise<void> {
    const ids = [...new Set(some(this.#ids, 64))];
    this.#hold(await claimByIds(pool, ids, lease({ leaseMs: LEASE_MS })));
    await pause(below(5));
  }

  async #poll(pool: pg.Pool): Promise<void> {
    this.#hold((await claimDue(pool, 32, null, pollLease({ leaseMs: LEASE_MS }))).claims);
    await pause(20);
  }

  /** Some are lost with their holder; the others are sent for a while. */
  #hold(claims: readonly Claim[]): void {
    this.done.claims += claims.length;
    for (const claim of claims) {
      if (Math.random() < 0.05) continue;
      this.#open.push({ claim, at: performance.now() + below(2 * LEASE_MS) });
    }
  }

  async #settle(pool: pg.Pool): Promise<void> {
    const claims = this.#takeSent(64);
    if (claims.length === 0) return pause(2);
    const ends: Finish[] = [];
    const keeps: Keep[] = [];
    const deferrals: Deferral[] = [];
    for (const claim of claims) {
      const chance = Math.random();
      if (chance < 0.04) ends.push(success(claim));
      else if (chance < 0.4) ends.push(death(claim));
      else if (chance < 0.6)
        deferrals.push(
          deferral(claim, { slotVersion: this.#slotVersion, wait: below(2) ? 'parked' : below(100) }),
        );
      else keeps.push([retry, release][below(2)]!(claim));
    }
    const written = [
      ...(ends.length > 0 ? await finish(pool, ends, PROCESS) : []),
      ...(keeps.length > 0 ? await keep(pool, keeps, PROCESS) : []),
      ...(deferrals.length > 0 ? await defer(pool, deferrals, PROCESS) : []),
    ];
    this.done.settles += written.length;
    this.done.lost += claims.length - written.length;
  }

  #takeSent(limit: number): Claim[] {
    const now = performance.now();
    const taken = new Map<string, Claim>();
    for (let i = this.#open.length - 1; i >= 0 && taken.size < limit; i -= 1) {
      const { claim, at } = this.#open[i]!;
      if (at > now || taken.has(claim.deliveryId)) continue;
      taken.set(claim.deliveryId, claim);
      this.#open.splice(i, 1);
    }
    return [...taken.values()];
  }

  async #sweepAlone(): Promise<void> {
    const client = await openPool('sweep', 1).connect();
    const all = { limit: 500, from: null };
    await this.#repeat(async () => {
      await surfaceEnqueued(client, 100);
      await postponeLooks(client, all);
      this.done.reclaims += (await reclaimExpired(client, all)).length;
      this.done.ended += (await endOwed(client, { ...all, mayReclaim: true })).length;
      const now = new Date();
      const announced = await announceDue(client, { ...all, drainedUntil: { express: now, bulk: now } });
      const ids = [...announced.ids.express, ...announced.ids.bulk];
      this.done.announced += ids.length;
      if (Math.random() < 0.3) await unannounce(client, ids);
      await pause(5);
    });
    client.release();
  }

  /** What a real system waits for: the grace after a lease, the delay after a reclaim. */
  async #passTime(pool: pg.Pool): Promise<void> {
    await pool.query(
      `with s as materialized (
         select delivery_id from relay.queue where lease_expires_at < now() or due_at > now() for update skip locked
       )
       update relay.queue set look_at = now(), due_at = least(due_at, now()),
         lease_expires_at = case when lease_expires_at < now() then now() - interval '6 s' else lease_expires_at end
       where delivery_id = any(array(select delivery_id from s))`,
    );
    await pause(50);
  }

  async #cancel(pool: pg.Pool): Promise<void> {
    await pool.query(
      'update relay.queue set cancel_requested = true, look_at = now() where delivery_id = any($1::uuid[])',
      [some(this.#ids, 4)],
    );
    await pause(20);
  }

  async #replay(pool: pg.Pool): Promise<void> {
    this.done.replays += (await replayDeliveries(pool, [...new Set(some(this.#ids, 200))])).replayed.length;
    await pause(5);
  }

  /** Paused without end and resumed, as the API does it. */
  async #change(pool: pg.Pool): Promise<void> {
    await pool.query(
      `update relay.endpoints set paused_until = 'infinity', paused_reason = 'operator' where id = $1`,
      [this.#endpointId],
    );
    await pause(below(40));
    const { rows } = await pool.query<{ slot_version: number }>(
      `with resumed as (
         update relay.endpoints set paused_until = null, paused_reason = null, slot_version = slot_version + 1
         where id = $1 returning id, slot_version
       ),
       asked as (
         insert into relay.endpoint_jobs (endpoint_id, kind) select id, 'retime' from resumed
         on conflict (endpoint_id, kind) do update set round = endpoint_jobs.round + 1
       )
       select slot_version from resumed`,
      [this.#endpointId],
    );
    await pause(below(40));
    // Gates are judged by what was read before.
    this.#slotVersion = rows[0]!.slot_version;
    this.done.changes += 1;
  }

  async #retime(pool: pg.Pool): Promise<void> {
    for (const job of await listJobs(pool, { after: null, limit: 1 })) {
      const picked = await pickRetimable(pool, job.endpointId, 100);
      if (!picked || picked.ids.length === 0) await finishJob(pool, job);
      else {
        const delaysMs = picked.ids.map((_, n) => n);
        this.done.retimed += await retime(pool, job.endpointId, { ...picked, delaysMs });
      }
    }
    await pause(5);
  }

  async #check(pool: pg.Pool): Promise<void> {
    const report = await checkInvariants(pool, { repair: false });
    if (violations(report) > 0) this.faults.push(JSON.stringify(report));
    this.done.checks += 1;
    await pause(100);
  }
}

/** Deliveries whose log contradicts itself or their counters. */
const INCONSISTENT = `
with log as (
  select delivery_id, count(*)::int as n, min(seq) as first, max(seq) as last, count(distinct seq)::int as different,
    count(send)::int as sends, coalesce(max(send), 0) as last_send, count(*) filter (where class = 'success')::int as successes,
    count(*) filter (where class in ('success', 'retryable', 'permanent'))::int as sent_rows
  from relay.delivery_attempts group by delivery_id
)
select v.id, v.status, v.seq, v.sends, v.attempts, v.generation, log.*
from relay.delivery_view v left join log on log.delivery_id = v.id
where coalesce(log.n, 0) <> v.seq or coalesce(log.sends, 0) <> v.sends
  or (log.n > 0 and (log.first <> 1 or log.last <> log.n or log.different <> log.n or log.last_send <> log.sends
    or log.sent_rows <> log.sends or (log.successes > 0) <> (v.status = 'succeeded') or log.successes > 1))`;

describe('claimers, settlers, sweeps, cancellers, replayers, operators, jobs and the invariant check on the same rows', () => {
  it('never deadlock, and leave a record that agrees with itself', async () => {
    const setUp = openPool('general', 1);
    await setUp.query(
      `alter database ${new URL(database.url).pathname.slice(1)} set deadlock_timeout = '20ms'`,
    );
    const endpointId = await givenEndpoint(setUp);
    const ids = await givenOwed(setUp, ROWS, { endpointId });
    const crowd = new Crowd(ids, endpointId);
    await crowd.run();
    expect([...new Set(crowd.faults)]).toEqual([]);
    for (const [what, count] of Object.entries(crowd.done)) expect(count, what).toBeGreaterThan(5);

    const report = await checkInvariants(setUp, { repair: false });
    expect(violations(report)).toBe(0);
    expect(report.deliveriesChecked).toBe(ROWS);
    expect((await setUp.query(INCONSISTENT)).rows.slice(0, 5)).toEqual([]);
  });
});
