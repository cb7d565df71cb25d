import { sql } from 'kysely';
import type { DeliveryFacts, EndpointFacts, OwedFacts } from '../domain/explain-facts.ts';
import { LANES, type Lane } from '../domain/vocabulary.ts';
import type { Database } from './database.ts';

/** Everything that is known of where a delivery is. */
export interface ExplainedDelivery extends DeliveryFacts {
  id: string;
  endpoint: ExplainedEndpoint | null;
  owed: ExplainedOwed | null;
}

export interface ExplainedEndpoint extends EndpointFacts {
  id: string;
  breakerFailures: number;
  breakerTrips: number;
}

export interface ExplainedOwed extends OwedFacts {
  lane: Lane;
  deferrals: number;
  /** The role is null when the process has left the fleet. */
  lease: { process: number; role: string | null; expiresAt: Date } | null;
  /** How many of its endpoint's deliveries have an earlier slot, counted up to `AHEAD_LIMIT`; null when it waits in none. */
  ahead: number | null;
}

/** Counting goes no further: a million waiting deliveries must not make asking dear. */
export const AHEAD_LIMIT = 10_000;

/** A row's columns by the part that their names begin with. */
interface Parts {
  delivery: Omit<ExplainedDelivery, 'last' | 'endpoint' | 'owed'>;
  last: NonNullable<DeliveryFacts['last']> | Nothing<'class'>;
  endpoint: ExplainedEndpoint | Nothing<'id'>;
  owed: (Omit<ExplainedOwed, 'lane' | 'lease'> & { id: string; lane: number }) | Nothing<'id'>;
  lease: NonNullable<ExplainedOwed['lease']> | Nothing<'expiresAt'>;
}

/** What an outer join gives where there is nothing. */
type Nothing<K extends string> = { [P in K]: null };

const READ = (tenantId: string, id: string) => sql<Record<string, unknown>>`
  select d.id as "delivery.id", now() as "delivery.now", relay.shown_status(d.status, q.lease_expires_at) as "delivery.status",
    d.dead_reason as "delivery.deadReason", d.finished_at as "delivery.finishedAt",
    coalesce(q.attempts, d.attempts) as "delivery.attempts", e.id is null as "delivery.eventMissing",
    e.deliver_at as "delivery.deliverAt",
    coalesce(a.class, d.last_class) as "last.class", coalesce(a.http_status, d.last_http_status) as "last.httpStatus",
    a.error as "last.error", a.at as "last.at",
    n.id as "endpoint.id", n.deleted_at is not null as "endpoint.deleted", n.enabled as "endpoint.enabled",
    n.disabled_reason as "endpoint.disabledReason", n.disabled_at as "endpoint.disabledAt",
    coalesce(n.paused_until > now(), false) as "endpoint.paused",
    case when n.paused_until > now() and n.paused_until < 'infinity' then n.paused_until end as "endpoint.pausedUntil",
    case when n.paused_until > now() then n.paused_reason end as "endpoint.pausedReason",
    n.breaker_state as "endpoint.breakerState", n.breaker_until as "endpoint.breakerUntil",
    n.breaker_failures as "endpoint.breakerFailures", n.breaker_trips as "endpoint.breakerTrips",
    n.rate_per_second as "endpoint.ratePerSecond", n.burst as "endpoint.burst", n.max_in_flight as "endpoint.maxInFlight",
    n.slot_version as "endpoint.slotVersion",
    q.delivery_id as "owed.id", case when q.due_at < 'infinity' then q.due_at end as "owed.dueAt",
    q.announced_at as "owed.announcedAt", q.expires_at as "owed.expiresAt", q.reclaims as "owed.reclaims",
    q.waiting as "owed.waiting", q.slot_version as "owed.slotVersion", q.deferral_reason as "owed.deferralReason",
    q.deferrals as "owed.deferrals", q.cancel_requested as "owed.cancelRequested", q.lane as "owed.lane",
    w.ahead as "owed.ahead",
    q.claimed_by as "lease.process", h.role as "lease.role", q.lease_expires_at as "lease.expiresAt"
  from relay.deliveries d
  left join relay.queue q on q.delivery_id = d.id
  left join relay.events e on e.id = d.event_id
  left join relay.endpoints n on n.id = d.endpoint_id
  left join relay.process_heartbeats h on h.number = q.claimed_by
  left join lateral (${LAST_OUTCOME}) a on true
  left join lateral (${SLOTS_AHEAD}) w on q.waiting = 'slot'
  where d.id = ${id} and d.tenant_id = ${tenantId}`;

// Nothing happened to a delivery before it existed: older days' partitions need not be looked into.
const LAST_OUTCOME = sql`
  select l.class, l.http_status, l.error, l.at
  from relay.delivery_attempts l
  where l.delivery_id = d.id and l.at >= d.created_at and l.class <> 'deferred'
  order by l.seq desc
  limit 1`;

// By the index of what waits. The order says nothing to the count and all to the planner, who takes a queue that was empty when it was
// looked at for one that is read fastest whole.
const SLOTS_AHEAD = sql`
  select count(*)::integer as ahead
  from (
    select from relay.queue o
    where o.endpoint_id = q.endpoint_id and o.slot_version = q.slot_version and o.waiting is not null and o.due_at < q.due_at
    order by o.endpoint_id, o.slot_version, o.due_at
    limit ${sql.lit(AHEAD_LIMIT)}
  ) earlier`;

/** Reads one delivery of a tenant with all that may hold it back, as it stands in one snapshot; null when the tenant has none of this id. */
export async function readDeliveryFacts(
  db: Database,
  tenantId: string,
  id: string,
): Promise<ExplainedDelivery | null> {
  const { rows } = await READ(tenantId, id).execute(db);
  const [row] = rows;
  if (!row) return null;
  const { delivery, last, endpoint, owed, lease } = parted(row);
  return {
    ...delivery,
    last: last.class === null ? null : last,
    endpoint: endpoint.id === null ? null : endpoint,
    owed:
      owed.id === null
        ? null
        : { ...owed, lane: LANES[owed.lane] ?? 'bulk', lease: lease.expiresAt === null ? null : lease },
  };
}

function parted(row: Record<string, unknown>): Parts {
  const parts: Record<string, Record<string, unknown>> = {};
  for (const [name, value] of Object.entries(row)) {
    const [part = '', column = ''] = name.split('.');
    parts[part] = { ...parts[part], [column]: value };
  }
  return parts as unknown as Parts;
}
