import { randomBytes } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import {
  accept,
  acceptKeyed,
  givenEndpoint,
  givenTenant,
  keyedEvent,
  newEvent,
} from '../../services/testing/given-queue.ts';
import { LOCK_TIMEOUT, sqlState } from './failure.ts';
import { deleteExpiredKeys, type KeyedOutcome } from './ingest.ts';
import { createPool } from './pool.ts';

let database: TestDatabase;
let pool: pg.Pool;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'ingest', max: 6, applicationName: 'test' });
  await givenEndpoint(pool);
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

const freshKey = () => `key-${randomBytes(6).toString('hex')}`;

async function acceptOne(...args: Parameters<typeof keyedEvent>): Promise<KeyedOutcome> {
  return (await acceptKeyed(pool, [keyedEvent(...args)]))[0]!;
}

async function eventIdsOf(key: string): Promise<string[]> {
  const { rows } = await pool.query('select event_id from relay.idempotency_keys where key = $1', [key]);
  return rows.map((row) => row.event_id);
}

async function count(table: string): Promise<number> {
  const { rows } = await pool.query(`select count(*)::int as n from relay.${table}`);
  return rows[0].n;
}

describe('a request under an idempotency key', () => {
  it('is accepted once, and repeated afterwards with the first event', async () => {
    const key = freshKey();
    const first = await acceptOne(key);
    const events = await count('events');
    expect(first).toMatchObject({ kind: 'accepted', announce: true });
    expect(await acceptOne(key)).toEqual({
      kind: 'replayed',
      eventId: first.kind === 'accepted' && first.eventId,
    });
    expect(await count('events')).toBe(events);
  });

  it('conflicts when it is another request', async () => {
    const key = freshKey();
    await acceptOne(key);
    expect(await acceptOne(key, { digest: Buffer.alloc(32, 9) })).toEqual({ kind: 'conflict' });
  });

  it('belongs to its tenant', async () => {
    const key = freshKey();
    await acceptOne(key);
    expect(await acceptOne(key, { tenantId: await givenTenant(pool) })).toMatchObject({ kind: 'accepted' });
  });

  it('that was accepted is answered as it was, also when it would be refused today', async () => {
    const endpointId = await givenEndpoint(pool);
    const [targeted, timed] = [freshKey(), freshKey()];
    const before = [
      await acceptOne(targeted, { targetEndpointId: endpointId }),
      await acceptOne(timed, { expiresAt: new Date(Date.now() + 60_000) }),
    ];
    await pool.query(
      `update relay.endpoints set enabled = false, disabled_reason = 'operator' where id = $1`,
      [endpointId],
    );
    const after = [
      await acceptOne(targeted, { targetEndpointId: endpointId }),
      // The end is in the digest, which is the same here: as if it had come.
      await acceptOne(timed, { expiresAt: new Date(Date.now() - 1) }),
    ];
    expect(after).toEqual(
      before.map((result) => ({ kind: 'replayed', eventId: result.kind === 'accepted' && result.eventId })),
    );
  });

  it('takes no key when it is refused', async () => {
    const key = freshKey();
    const targetEndpointId = await givenEndpoint(pool, { disabled: true });
    expect(await acceptOne(key, { targetEndpointId })).toEqual({ kind: 'no_target' });
    expect(await eventIdsOf(key)).toEqual([]);
  });

  it('is judged by itself in a batch of all kinds, in the order of the batch', async () => {
    const [seen, expired] = [freshKey(), freshKey()];
    await acceptOne(seen);
    await acceptKeyed(pool, [keyedEvent(expired)], { retentionMs: 0 });
    const events = await count('events');
    const outcomes = await acceptKeyed(pool, [
      keyedEvent('z' + freshKey()),
      keyedEvent(seen),
      keyedEvent(expired),
      keyedEvent(seen + '-other', { targetEndpointId: '00000000-0000-4000-8000-000000000000' }),
      keyedEvent('a' + freshKey()),
    ]);
    expect(outcomes.map((outcome) => outcome.kind)).toEqual([
      'accepted',
      'replayed',
      'expired_key',
      'no_target',
      'accepted',
    ]);
    expect(await count('events')).toBe(events + 2);
  });
});

describe('a key that has expired', () => {
  it('is told from a live one, and can be taken anew once it is removed', async () => {
    const [old, live] = [freshKey(), freshKey()];
    await acceptKeyed(pool, [keyedEvent(old)], { retentionMs: 0 });
    await acceptOne(live);
    expect(await acceptOne(old)).toEqual({ kind: 'expired_key' });
    const { tenantId } = newEvent();
    await deleteExpiredKeys(
      pool,
      [old, live].map((key) => ({ tenantId, key })),
    );
    expect(await acceptOne(old)).toMatchObject({ kind: 'accepted' });
    expect(await acceptOne(live)).toMatchObject({ kind: 'replayed' });
  });
});

describe('a key that an open transaction holds', () => {
  async function holding(key: string, use: (holder: pg.PoolClient) => Promise<void>): Promise<void> {
    const holder = await pool.connect();
    try {
      await holder.query('begin');
      await holder.query(
        `insert into relay.idempotency_keys (tenant_id, key, digest, event_id, expires_at)
         values ($1, $2, $3, gen_random_uuid(), now() + interval '1 day')`,
        [newEvent().tenantId, key, keyedEvent(key).digest],
      );
      await use(holder);
    } finally {
      await holder.query('rollback');
      holder.release();
    }
  }

  it('stops a statement that names it, for 250 ms, with nothing committed', async () => {
    const [key, neighbour] = [freshKey(), freshKey()];
    await holding(key, async () => {
      const started = performance.now();
      const failed = await acceptKeyed(pool, [keyedEvent(key), keyedEvent(neighbour)]).catch(sqlState);
      expect(failed).toBe(LOCK_TIMEOUT);
      expect(performance.now() - started).toBeLessThan(2_000);
      expect(await eventIdsOf(neighbour)).toEqual([]);
    });
  });

  it('stops neither other keys nor requests without one', async () => {
    await holding(freshKey(), async () => {
      expect(await acceptOne(freshKey())).toMatchObject({ kind: 'accepted' });
      expect((await accept(pool, [newEvent()]))[0]).toMatchObject({ kind: 'accepted' });
    });
  });

  it('is looked at again when its holder commits meanwhile, and then seen', async () => {
    const key = freshKey();
    await holding(key, async (holder) => {
      const waiting = acceptOne(key);
      await someoneWaitsForLock();
      await holder.query('commit');
      expect(await waiting).toEqual({ kind: 'look_again' });
      expect(await acceptOne(key)).toMatchObject({ kind: 'replayed' });
    });
  });

  it('is free when its holder rolls back', async () => {
    const key = freshKey();
    await holding(key, async (holder) => {
      const waiting = acceptOne(key);
      await someoneWaitsForLock();
      await holder.query('rollback');
      expect(await waiting).toMatchObject({ kind: 'accepted' });
    });
  });

  async function someoneWaitsForLock(): Promise<void> {
    await expect
      .poll(
        async () => {
          const { rowCount } = await pool.query(
            `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
          );
          return rowCount;
        },
        { interval: 5, timeout: 5_000 },
      )
      .toBeGreaterThan(0);
  }
});

describe('statements with crossing keys on several connections', () => {
  it('never deadlock, and make one event for each key', async () => {
    const patient = createPool({ url: database.url, purpose: 'hot', max: 4, applicationName: 'test' });
    const keys = Array.from({ length: 60 }, freshKey);
    const before = await count('events');
    const shuffled = () => [...keys].sort(() => Math.random() - 0.5).slice(0, 40);
    try {
      const kinds = new Map<string, number>();
      const eventOf = new Map<string, string>();
      await Promise.all(
        Array.from({ length: 4 }, async () => {
          for (let round = 0; round < 12; round += 1) {
            const batch = shuffled();
            const outcomes = await acceptKeyed(
              patient,
              batch.map((key) => keyedEvent(key)),
            );
            outcomes.forEach((outcome, i) => {
              kinds.set(outcome.kind, (kinds.get(outcome.kind) ?? 0) + 1);
              if (outcome.kind !== 'accepted' && outcome.kind !== 'replayed') return;
              const known = eventOf.get(batch[i]!) ?? outcome.eventId;
              expect(outcome.eventId).toBe(known);
              eventOf.set(batch[i]!, known);
            });
          }
        }),
      );
      expect(
        [...kinds.keys()].filter((kind) => !['accepted', 'replayed', 'look_again'].includes(kind)),
      ).toEqual([]);
      expect(kinds.get('accepted')).toBe(keys.length);
      expect(await count('events')).toBe(before + keys.length);
    } finally {
      await patient.end();
    }
  });
});
