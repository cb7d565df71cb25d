import type { ClientBase } from 'pg';
import { STALL_MS } from '../domain/limits.ts';
import { LANES, type Lane } from '../domain/vocabulary.ts';

// An announced row is looked at 30 s after its announcement at the latest, so this range holds every row that was announced and that nobody
// has leased; rows of later announcements fail the test of the moment.
const REANNOUNCE = `
with s as materialized (
  select delivery_id from relay.queue
  where look_at <= now() + interval '${STALL_MS} ms' and announced_at <= $2::timestamptz and lease_expires_at is null
    and due_at <= now() and not cancel_requested and lane = $3
  order by look_at limit $1
  for update skip locked
)
update relay.queue q
set announced_at = now(), look_at = least(now() + interval '${STALL_MS} ms', q.expires_at)
where q.delivery_id = any(array(select delivery_id from s))
returning q.delivery_id`;

/**
 * Marks rows as announced anew whose announcements are known to be lost: the stream of their lane was flushed after `until`. Returns the
 * ids to be put on that stream; `limit` of them means that there may be more.
 */
export async function reannounceLost(
  client: ClientBase,
  options: { lane: Lane; limit: number; until: Date },
): Promise<string[]> {
  const { rows } = await client.query<{ delivery_id: string }>({
    name: 'relay_reannounce',
    text: REANNOUNCE,
    values: [options.limit, options.until, LANES.indexOf(options.lane)],
  });
  return rows.map((row) => row.delivery_id);
}
