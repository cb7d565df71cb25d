import { randomUUID } from 'node:crypto';
import type { Pool } from 'pg';
import { DEFAULT_TENANT_ID } from '../../lib/domain/limits.ts';
import type { DeadReason } from '../../lib/domain/vocabulary.ts';
import { claimByIds } from '../../lib/store/claims.ts';
import { type Accepted, acceptEvents, type NewEvent } from '../../lib/store/ingest.ts';
import { finish, type SendRecord } from '../../lib/store/settle.ts';

const SEND: SendRecord = {
  class: 'success',
  httpStatus: 200,
  durationMs: 12,
  latenessMs: 1,
  error: null,
  snippet: 'ok',
};

/** Accepts one event for one endpoint and returns its delivery's id. */
export async function givenDelivery(
  pool: Pool,
  event: { endpointId: string; tenantId?: string; type?: string; payload?: Buffer },
): Promise<{ eventId: string; deliveryId: string }> {
  const accepted = await accept(pool, {
    tenantId: event.tenantId ?? DEFAULT_TENANT_ID,
    type: event.type ?? 'order.paid',
    contentType: 'application/json',
    payload: event.payload ?? Buffer.from('{"a":1}'),
    targetEndpointId: event.endpointId,
    deliverAt: null,
    expiresAt: null,
  });
  if (accepted?.kind !== 'accepted') throw new Error(`not accepted: ${accepted?.kind}`);
  return { eventId: accepted.eventId, deliveryId: accepted.deliveryIds[0]! };
}

async function accept(pool: Pool, event: NewEvent): Promise<Accepted | undefined> {
  const client = await pool.connect();
  try {
    return (await acceptEvents(client, [event], { announced: false }))[0];
  } finally {
    client.release();
  }
}

/** Leases a delivery for a minute, as a dispatcher would; returns the claim's token. */
export async function givenClaim(pool: Pool, deliveryId: string): Promise<string> {
  const token = randomUUID();
  const claims = await claimByIds(pool, [deliveryId], { token, leaseMs: 60_000, processNumber: 7 });
  if (claims.length !== 1) throw new Error('not claimed');
  return token;
}

export async function givenSucceeded(pool: Pool, deliveryId: string): Promise<void> {
  const token = await givenClaim(pool, deliveryId);
  await finish(pool, [{ deliveryId, token, status: 'succeeded', reason: null, send: SEND }], {
    processNumber: 7,
  });
}

export async function givenDead(
  pool: Pool,
  deliveryId: string,
  reason: DeadReason = 'permanent_failure',
): Promise<void> {
  const token = await givenClaim(pool, deliveryId);
  const send: SendRecord = { ...SEND, class: 'permanent', httpStatus: 404, snippet: 'no such hook' };
  await finish(pool, [{ deliveryId, token, status: 'dead', reason, send }], { processNumber: 7 });
}
