import type { OperationalEvent } from '../domain/vocabulary.ts';
import type { Queryable } from './pool.ts';

/**
 * Tells the endpoints that subscribe to it of something that happened in a tenant: run it in the transaction that makes it true, or by itself.
 * `data` holds ids and reasons, never a payload or a secret. What cannot be told leaves a warning in the server's log and fails nothing.
 *
 * Endpoints and dead letters tell by themselves (triggers of migration 0013).
 */
export async function emitOperational(
  db: Queryable,
  tenantId: string,
  type: OperationalEvent,
  data: Readonly<Record<string, unknown>>,
): Promise<void> {
  await db.query({
    name: 'relay_emit_operational',
    text: 'select relay.emit_operational($1, $2, $3)',
    values: [tenantId, type, JSON.stringify(data)],
  });
}
