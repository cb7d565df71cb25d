import type { Pool, PoolClient } from 'pg';
import type { Breaker } from '../domain/breaker.ts';
import {
  type Health,
  type HealthChange,
  type HealthEvidence,
  type HealthPolicy,
  judgeHealth,
  type Verdict,
} from '../domain/endpoint-health.ts';
import type { DisabledReason } from '../domain/vocabulary.ts';
import { plainArray } from './array-literal.ts';
import { LOCK_TIMEOUT, sqlState } from './failure.ts';
import type { Queryable } from './pool.ts';

export type { HealthChange, HealthEvidence, HealthPolicy } from '../domain/endpoint-health.ts';

// Said as `deleted_at is null`, it would let the planner take the index of each tenant's endpoints and walk all of that for an id.
const LIVE = `enabled and coalesce(deleted_at, 'infinity') = 'infinity'`;

// Doubles, because a pause without end has no interval to now.
const LOOK = `
select id, breaker_state as state, breaker_failures as failures, breaker_trips as trips, breaker_streak as streak,
  breaker_probe as probe, date_part('epoch', now()) * 1000 as now_ms,
  date_part('epoch', breaker_until) * 1000 as until_ms,
  date_part('epoch', failing_since) * 1000 as failing_since_ms,
  case when paused_until > now() then (date_part('epoch', paused_until) - date_part('epoch', now())) * 1000 end as paused_for_ms
from relay.endpoints
where id = any($1::uuid[]) and ${LIVE}
order by id`;

// No key changes: whoever adds a subscription to the endpoint need not wait.
const READS = {
  look: { name: 'relay_health_look', text: LOOK },
  lock_free: { name: 'relay_health_lock_free', text: `${LOOK}\nfor no key update skip locked` },
  lock: { name: 'relay_health_lock', text: `${LOOK}\nfor no key update` },
} as const;

// A process that freezes in between must not hold endpoints that others wait for.
const BEGIN = `begin; set local lock_timeout = 2000; set local idle_in_transaction_session_timeout = 1000`;

// Moments are told in ms from now, which in one transaction is the same now as that of the read they were judged by.
const WRITE = `
update relay.endpoints n
set (breaker_state, breaker_failures, breaker_trips, breaker_streak, breaker_probe, breaker_until, failing_since,
    paused_until, paused_reason) = (
  select ($2::text[])[a.i], ($3::integer[])[a.i], ($4::integer[])[a.i], ($5::integer[])[a.i], ($6::uuid[])[a.i],
    now() + ($7::double precision[])[a.i] * interval '1 ms',
    case ($8::text[])[a.i] when 'same' then n.failing_since when 'now' then now() end,
    case when p.pause is null then n.paused_until else greatest(n.paused_until, now() + p.pause) end,
    case
      when p.pause is null or (n.paused_until > now() and n.paused_reason = 'operator') then n.paused_reason
      else 'retry_after'
    end
  from (select array_position($1::uuid[], n.id) as i) a,
    lateral (select ($9::double precision[])[a.i] * interval '1 ms' as pause) p
)
where n.id = any($1::uuid[])`;

// Unsubscribed in the same statement: fan-out reads nothing else.
const DISABLE = `
with disabled as (
  update relay.endpoints
  set enabled = false, disabled_reason = $2, disabled_at = now(), updated_at = now(), version = version + 1
  where id = any($1::uuid[]) and ${LIVE}
  returning id
),
unsubscribed as (
  delete from relay.subscriptions s where s.endpoint_id = any(array(select id from disabled))
)
select id from disabled`;

// An expired half-open too: a prober that vanished must hold nothing up for longer than its time.
const CLAIM_PROBE = `
update relay.endpoints
set breaker_state = 'half_open', breaker_probe = $3, breaker_until = now() + $4::double precision * interval '1 ms'
where id = $1 and breaker_state <> 'closed' and breaker_trips = $2 and breaker_until <= now()
  and ${LIVE}`;

const GIVE_BACK_PROBE = `
update relay.endpoints
set breaker_state = 'open', breaker_probe = null, breaker_until = now()
where id = $1 and breaker_state = 'half_open' and breaker_probe = $2`;

/**
 * Judges results of endpoints (at most a few hundred), those of one endpoint in the order of the batch, and writes what they change in one transaction,
 * each endpoint under its lock. What changes nothing costs one read, no lock and no write. Returns each endpoint that was judged as it
 * now stands; endpoints that are disabled, deleted or missing, or stay locked for 2 s, are left alone and left out.
 *
 * Evidence that is lost with an error or a lock does no harm: failures come again, and a probe ends at its time. Given again after a lost
 * connection, it may count twice.
 */
export async function recordEvidence(
  pool: Pool,
  batch: readonly HealthEvidence[],
  policy: HealthPolicy,
): Promise<HealthChange[]> {
  const evidence = byEndpoint(batch);
  if (evidence.size === 0) return [];
  const verdicts = await judgeAll(pool, 'look', evidence, policy);
  const stirred = verdicts.filter((verdict) => verdict.changes).map(({ change }) => change.endpointId);
  if (stirred.length === 0) return verdicts.map(({ change }) => change);
  const free = await judgeAndWrite(pool, 'lock_free', only(evidence, stirred), policy);
  const written = new Set(free.map(({ change }) => change.endpointId));
  const missed = stirred.filter((id) => !written.has(id));
  const held = await awaitHeld(pool, only(evidence, missed), policy);
  return [...verdicts.filter((verdict) => !verdict.changes), ...free, ...held].map(({ change }) => change);
}

/** Those that somebody else holds, when the others are written: a row that stays locked costs no neighbour its breaker. */
async function awaitHeld(pool: Pool, evidence: EvidenceOf, policy: HealthPolicy): Promise<Verdict[]> {
  if (evidence.size === 0) return [];
  try {
    return await judgeAndWrite(pool, 'lock', evidence, policy);
  } catch (error) {
    if (sqlState(error) === LOCK_TIMEOUT) return [];
    throw error;
  }
}

type EvidenceOf = ReadonlyMap<string, readonly HealthEvidence[]>;

function byEndpoint(batch: readonly HealthEvidence[]): Map<string, HealthEvidence[]> {
  const grouped = new Map<string, HealthEvidence[]>();
  for (const item of batch) {
    const earlier = grouped.get(item.endpointId);
    if (earlier) earlier.push(item);
    else grouped.set(item.endpointId, [item]);
  }
  return grouped;
}

function only(evidence: EvidenceOf, ids: readonly string[]): EvidenceOf {
  return new Map(ids.map((id) => [id, evidence.get(id)!]));
}

interface HealthRow extends Omit<Breaker, 'untilMs' | 'failingSinceMs'> {
  id: string;
  now_ms: number;
  until_ms: number | null;
  failing_since_ms: number | null;
  paused_for_ms: number | null;
}

/** With a lock, the rows are held until the transaction ends, and are read as they were last committed. */
async function judgeAll(
  client: Queryable,
  how: keyof typeof READS,
  evidence: EvidenceOf,
  policy: HealthPolicy,
): Promise<Verdict[]> {
  const { rows } = await client.query<HealthRow>({
    ...READS[how],
    values: [plainArray([...evidence.keys()])],
  });
  return rows.map((row) => judgeHealth(toHealth(row), evidence.get(row.id)!, policy));
}

function toHealth(row: HealthRow): Health {
  const { id, now_ms, until_ms, failing_since_ms, paused_for_ms, ...breaker } = row;
  return {
    endpointId: id,
    breaker: { ...breaker, untilMs: until_ms, failingSinceMs: failing_since_ms },
    pausedForMs: paused_for_ms,
    nowMs: now_ms,
  };
}

/** Judges anew what the rows say under their locks: somebody else may have changed them since they were looked at. */
function judgeAndWrite(
  pool: Pool,
  how: 'lock_free' | 'lock',
  evidence: EvidenceOf,
  policy: HealthPolicy,
): Promise<Verdict[]> {
  return inTransaction(pool, async (client) => {
    const verdicts = await judgeAll(client, how, evidence, policy);
    const changed = verdicts.filter((verdict) => verdict.changes);
    if (changed.length > 0) await write(client, changed);
    const failed = changed.filter(({ change }) => change.disabled).map(({ change }) => change.endpointId);
    if (failed.length > 0) await disable(client, failed, 'failing');
    return verdicts;
  });
}

async function write(client: Queryable, verdicts: readonly Verdict[]): Promise<void> {
  const column = (pick: (verdict: Verdict) => string | number | null) => plainArray(verdicts.map(pick));
  await client.query({
    name: 'relay_health_write',
    text: WRITE,
    values: [
      column(({ change }) => change.endpointId),
      column(({ breaker }) => breaker.state),
      column(({ breaker }) => breaker.failures),
      column(({ breaker }) => breaker.trips),
      column(({ breaker }) => breaker.streak),
      column(({ breaker }) => breaker.probe),
      column(({ change }) => change.breakerForMs),
      column(({ failingSince }) => failingSince),
      column(({ pauseMs }) => pauseMs),
    ],
  });
}

async function disable(client: Queryable, ids: readonly string[], reason: DisabledReason): Promise<string[]> {
  const { rows } = await client.query<{ id: string }>({
    name: 'relay_disable',
    text: DISABLE,
    values: [plainArray(ids), reason],
  });
  return rows.map((row) => row.id);
}

async function inTransaction<T>(pool: Pool, work: (client: PoolClient) => Promise<T>): Promise<T> {
  const client = await pool.connect();
  try {
    await client.query(BEGIN);
    const result = await work(client);
    await client.query('commit');
    client.release();
    return result;
  } catch (error) {
    client.release(true);
    throw error;
  }
}

/** Disables an endpoint that answered 410. Returns false when it was disabled or deleted before. */
export async function disableGoneEndpoint(pool: Pool, endpointId: string): Promise<boolean> {
  return (await disable(pool, [endpointId], 'gone')).length > 0;
}

/**
 * Claims the one probe of the fleet for an endpoint whose cooldown is over, or whose last probe has not reported in its time. False when there is
 * nothing to probe, somebody else probes, or the breaker has changed its era since `trips` was read.
 *
 * @param probe `token` names the probe in its evidence; `probeMs` is the time in which it must report
 */
export async function claimProbe(
  pool: Pool,
  probe: { endpointId: string; trips: number; token: string; probeMs: number },
): Promise<boolean> {
  const { rowCount } = await pool.query({
    name: 'relay_claim_probe',
    text: CLAIM_PROBE,
    values: [probe.endpointId, probe.trips, probe.token, probe.probeMs],
  });
  return rowCount === 1;
}

/** Gives back a probe that was not sent, so that somebody else may probe at once. False when it was no longer this one's. */
export async function giveBackProbe(
  pool: Pool,
  probe: { endpointId: string; token: string },
): Promise<boolean> {
  const { rowCount } = await pool.query({
    name: 'relay_give_back_probe',
    text: GIVE_BACK_PROBE,
    values: [probe.endpointId, probe.token],
  });
  return rowCount === 1;
}
