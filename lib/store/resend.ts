import { type DeliveryStatus, FINISHED_STATUSES } from '../domain/vocabulary.ts';
import type { Queryable } from './pool.ts';
import { LAST_GENERATION, reviveDeliveries } from './replay.ts';

export type ResendResult =
  | { kind: 'resent'; generation: number }
  /** It is owed: its own attempt comes, and another beside it would be sent twice. */
  | { kind: 'still_owed' }
  | { kind: 'endpoint_deleted' }
  | { kind: 'event_missing' }
  | { kind: 'too_often' }
  /** Somebody else is changing it at this moment. */
  | { kind: 'busy' }
  | { kind: 'not_found' };

interface State {
  status: DeliveryStatus;
  generation: number;
  endpointThere: boolean;
  eventThere: boolean;
}

const STATE = `
select d.status, d.generation, n.id is not null as "endpointThere", e.id is not null as "eventThere"
from relay.deliveries d
left join relay.endpoints n on n.id = d.endpoint_id and n.deleted_at is null
left join relay.events e on e.id = d.event_id
where d.id = $1 and d.tenant_id = $2`;

/**
 * Sends a delivery of a tenant again that has ended, however it ended: it is pending and due now, under the same id, one generation on, with a
 * fresh budget of attempts and its history kept.
 */
export async function resendDelivery(db: Queryable, tenantId: string, id: string): Promise<ResendResult> {
  const before = await readState(db, tenantId, id);
  if (!before) return { kind: 'not_found' };
  const obstacle = obstacleOf(before);
  if (obstacle) return { kind: obstacle };
  const revived = await reviveDeliveries(db, [id], { from: FINISHED_STATUSES, endedBy: null });
  const after = revived.length > 0 ? await readState(db, tenantId, id) : null;
  return after ? { kind: 'resent', generation: after.generation } : { kind: 'busy' };
}

async function readState(db: Queryable, tenantId: string, id: string): Promise<State | null> {
  const { rows } = await db.query<State>({ name: 'relay_resend_state', text: STATE, values: [id, tenantId] });
  return rows[0] ?? null;
}

function obstacleOf(state: State) {
  if (state.status === 'pending') return 'still_owed';
  if (!state.endpointThere) return 'endpoint_deleted';
  if (!state.eventThere) return 'event_missing';
  return state.generation >= LAST_GENERATION ? 'too_often' : null;
}
