import type pg from 'pg';
import type { DeadReason, DeliveryStatus } from '../../lib/domain/vocabulary.ts';

export interface History {
  tenantId: string;
  /** Each event has a delivery to each of them. */
  endpointIds: readonly string[];
  events: number;
  /** Taken in turn by the events. */
  types?: readonly string[];
  /** Taken in turn by the deliveries. */
  statuses?: readonly DeliveryStatus[];
  /** Taken in turn by the dead. */
  reasons?: readonly DeadReason[];
  /** From one event to the next, ms; the last is an hour old. */
  everyMs?: number;
}

/** Events of the past and what became of their deliveries, in one statement however many there are: the record, the queue and the dead letters agree. */
export async function givenHistory(pool: pg.Pool, history: History): Promise<void> {
  await pool.query(
    `with e as (
       insert into relay.events (id, tenant_id, type, content_type, payload, created_at)
       select (lpad(to_hex((extract(epoch from m.at) * 1000)::bigint), 12, '0') || '7000' || '8' ||
           lpad(to_hex((random() * 1e12)::bigint), 11, '0') || '0000')::uuid,
         $1, ($4::text[])[1 + n % cardinality($4::text[])], 'application/json', '{}', m.at
       from generate_series(0, $3::integer - 1) n,
         lateral (select now() - interval '1 hour' - ($3 - 1 - n) * $7::float8 * interval '1 ms' as at) m
       returning id, created_at
     ),
     d as (
       insert into relay.deliveries (id, event_id, endpoint_id, tenant_id, created_at, status, finished_at, dead_reason, attempts, sends, seq)
       select (left(p.id::text, 32) || lpad(to_hex(p.k), 4, '0'))::uuid, p.id, p.endpoint_id, $1, p.created_at, s.status,
         case when s.status <> 'pending' then p.created_at + interval '2 s' end,
         case when s.status = 'dead' then ($6::text[])[1 + p.place / cardinality($5::text[]) % cardinality($6::text[])] end, 1, 1, 1
       from (
         select e.*, t.endpoint_id, t.k, (row_number() over (order by e.id, t.k))::integer - 1 as place
         from e, unnest($2::uuid[]) with ordinality t(endpoint_id, k)
       ) p, lateral (select ($5::text[])[1 + p.place % cardinality($5::text[])] as status) s
       returning id, event_id, endpoint_id, tenant_id, status, finished_at, dead_reason
     ),
     q as (
       insert into relay.queue (delivery_id, endpoint_id, event_id, due_at, look_at, attempts, sends, seq)
       select id, endpoint_id, event_id, now() + interval '1 day', now() + interval '1 day', 1, 1, 1 from d where status = 'pending'
     )
     insert into relay.dead_letters (delivery_id, endpoint_id, event_id, tenant_id, reason, died_at)
     select id, endpoint_id, event_id, tenant_id, dead_reason, finished_at from d where status = 'dead'`,
    [
      ...[history.tenantId, history.endpointIds, history.events],
      ...[history.types ?? ['order.paid'], history.statuses ?? ['dead'], history.reasons ?? ['gone']],
      history.everyMs ?? 1_000,
    ],
  );
}
