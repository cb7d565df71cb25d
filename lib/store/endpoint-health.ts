import type { Pool } from 'pg';

// Unsubscribed in the same statement: fan-out reads nothing else.
const DISABLE_GONE = `
with disabled as (
  update relay.endpoints
  set enabled = false, disabled_reason = 'gone', disabled_at = now(), updated_at = now(), version = version + 1
  where id = $1 and enabled and deleted_at is null
  returning id
),
unsubscribed as (
  delete from relay.subscriptions s where s.endpoint_id = any(array(select id from disabled))
)
select id from disabled`;

/** Disables an endpoint that answered 410. Returns false when it was disabled or deleted before. */
export async function disableGoneEndpoint(pool: Pool, endpointId: string): Promise<boolean> {
  const { rowCount } = await pool.query({
    name: 'relay_disable_gone',
    text: DISABLE_GONE,
    values: [endpointId],
  });
  return (rowCount ?? 0) > 0;
}
