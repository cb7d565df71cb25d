import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import { DEFAULT_TENANT_ID } from '../domain/limits.ts';
import { claimByIds, claimDue } from './claims.ts';
import { acceptEvents, acceptKeyedEvents, type NewEvent } from './ingest.ts';
import { createPool } from './pool.ts';
import { finish, keep } from './settle.ts';

let database: TestDatabase;
let pool: pg.Pool;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'hot', max: 4, applicationName: 'test' });
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

export async function givenEndpoint(patterns = ['*']): Promise<string> {
  const { rows } = await pool.query(
    `insert into relay.endpoints (tenant_id, url, secret) values ($1, 'https://sink.example.test/in', '\\x00') returning id`,
    [DEFAULT_TENANT_ID],
  );
  for (const pattern of patterns) {
    await pool.query('insert into relay.subscriptions values ($1, $2, $3)', [
      DEFAULT_TENANT_ID,
      pattern,
      rows[0].id,
    ]);
  }
  return rows[0].id as string;
}

function event(overrides: Partial<NewEvent> = {}): NewEvent {
  return {
    tenantId: DEFAULT_TENANT_ID,
    type: 'order.paid',
    contentType: 'application/json',
    payload: Buffer.from('{"a":1}'),
    targetEndpointId: null,
    deliverAt: null,
    expiresAt: null,
    ...overrides,
  };
}

const lease = () => ({ token: randomUUID(), leaseMs: 30_000, processNumber: 7 });

describe('smoke', () => {
  it('goes all the way', async () => {
    const endpoint = await givenEndpoint(['order.*']);
    const accepted = await acceptEvents(
      pool,
      [event(), event({ type: 'x' }), event({ targetEndpointId: randomUUID() })],
      { announced: true },
    );
    console.log(accepted);
    const ids = accepted.flatMap((a) => (a.kind === 'accepted' ? a.deliveryIds : []));
    const claims = await claimByIds(pool, ids, lease());
    console.log(claims);
    const first = claims[0]!;
    expect(first.endpointId).toBe(endpoint);
    const send = { httpStatus: 500, durationMs: 12, latenessMs: 3, error: null, snippet: 'oops' };
    expect(
      (
        await keep(
          pool,
          [
            {
              kind: 'retry',
              delayMs: 0,
              deliveryId: first.deliveryId,
              token: first.token,
              send: { ...send, class: 'retryable' },
            },
          ],
          { processNumber: 7 },
        )
      ).size,
    ).toBe(1);
    const again = await claimDue(pool, 10, null, lease());
    console.log(again);
    const second = again.claims[0]!;
    expect(
      (
        await finish(
          pool,
          [
            {
              deliveryId: second.deliveryId,
              token: second.token,
              status: 'dead',
              reason: 'permanent_failure',
              send: { ...send, class: 'permanent' },
            },
          ],
          { processNumber: 7 },
        )
      ).size,
    ).toBe(1);
    console.log(
      (await pool.query('select * from relay.delivery_attempts')).rows,
      (await pool.query('select * from relay.dead_letters')).rows,
      (await pool.query('select * from relay.delivery_view')).rows,
    );
    const keyed = { ...event(), key: 'k', digest: Buffer.alloc(32) };
    console.log(
      await acceptKeyedEvents(pool, [keyed], { announced: true, retentionMs: 1e6 }),
      await acceptKeyedEvents(pool, [keyed, { ...keyed, key: 'b' }], { announced: true, retentionMs: 1e6 }),
    );
  });
});
