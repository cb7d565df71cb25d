import { sql } from 'kysely';
import type { DeadReason, DeliveryStatus } from '../domain/vocabulary.ts';
import type { Connection } from './database.ts';
import { lastDeliveryId } from './event-ids.ts';

export type CancelResult =
  /** Its end is asked for, by this call or an earlier one, or it has ended so already. */
  | { kind: 'cancelling' }
  /** It has ended in another way. */
  | { kind: 'finished'; status: Exclude<DeliveryStatus, 'pending'> }
  | { kind: 'not_found' }
  /** It is being sent again at this moment. */
  | { kind: 'busy' };

/**
 * Asks for the end of a tenant's delivery, in whatever state it is owed: it ends dead, `cancelled`, by the next sweep, or, while somebody holds
 * it, when that one lets go; a send that is open and succeeds is still a success. Waits for whoever holds the row for the moment.
 */
export async function cancelDelivery(
  db: Connection,
  tenantId: string,
  deliveryId: string,
): Promise<CancelResult> {
  const { rows } = await sql`
    update relay.queue q
    set look_at = case when q.cancel_requested then q.look_at else now() end, cancel_requested = true
    where q.delivery_id = ${deliveryId}
      and exists (select from relay.deliveries d where d.id = ${deliveryId} and d.tenant_id = ${tenantId})
    returning q.delivery_id`.execute(db);
  return rows.length > 0 ? { kind: 'cancelling' } : whyNot(db, tenantId, deliveryId);
}

async function whyNot(db: Connection, tenantId: string, deliveryId: string): Promise<CancelResult> {
  const { rows } = await sql<{ status: DeliveryStatus; dead_reason: DeadReason | null }>`
    select d.status, d.dead_reason from relay.deliveries d
    where d.id = ${deliveryId} and d.tenant_id = ${tenantId}`.execute(db);
  const [found] = rows;
  if (!found) return { kind: 'not_found' };
  if (found.dead_reason === 'cancelled') return { kind: 'cancelling' };
  return found.status === 'pending' ? { kind: 'busy' } : { kind: 'finished', status: found.status };
}

/** Deliveries of one event that are asked to end in one statement. */
export const CANCEL_STEP = 1_000;

export interface EventCancellation {
  /** Deliveries whose end was asked for by this call. */
  cancelled: number;
  /** Whether its fan-out was unfinished: what had no delivery yet gets none. */
  fanOutStopped: boolean;
}

/**
 * Asks for the end of everything that is owed of a tenant's event; null when the tenant has no such event. Its fan-out is stopped first, and a
 * step of it that runs is waited for, so its deliveries are found too. May be called again.
 */
export async function cancelEvent(
  db: Connection,
  tenantId: string,
  eventId: string,
): Promise<EventCancellation | null> {
  const { rows: events } = await sql`
    select from relay.events e where e.id = ${eventId} and e.tenant_id = ${tenantId}`.execute(db);
  if (events.length === 0) return null;
  const { rows: stopped } = await sql`
    delete from relay.fan_outs where event_id = ${eventId} returning event_id`.execute(db);
  let cancelled = 0;
  for (let after: string | null = eventId; after !== null; ) {
    const step = await cancelStep(db, { after, last: lastDeliveryId(eventId) });
    cancelled += step.cancelled;
    after = step.next;
  }
  return { cancelled, fanOutStopped: stopped.length > 0 };
}

// A range of the primary key, in its order, as claims and settles lock theirs. What is finished meanwhile does not count against the limit.
async function cancelStep(db: Connection, range: { after: string; last: string }) {
  const { rows } = await sql<{ id: string }>`
    with picked as materialized (
      select q.delivery_id from relay.queue q
      where q.delivery_id > ${range.after} and q.delivery_id <= ${range.last} and not q.cancel_requested
      order by q.delivery_id
      limit ${CANCEL_STEP}
      for update
    )
    update relay.queue q
    set cancel_requested = true, look_at = now()
    where q.delivery_id = any(array(select delivery_id from picked))
    returning q.delivery_id as id`.execute(db);
  const ids = rows.map((row) => row.id).sort();
  return { cancelled: ids.length, next: ids.length < CANCEL_STEP ? null : ids.at(-1)! };
}
