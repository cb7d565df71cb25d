import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import {
  death,
  finishOne,
  givenClaimed,
  givenEndpoint,
  givenOne,
  givenTenant,
  keepOne,
  retry,
  success,
} from '../../services/testing/given-queue.ts';
import { DEFAULT_TENANT_ID } from '../domain/limits.ts';
import { createDatabase, type Database } from './database.ts';
import { findDelivery, listAttempts } from './deliveries-read.ts';
import { createPool } from './pool.ts';
import { resendDelivery } from './resend.ts';

let database: TestDatabase;
let pool: pg.Pool;
let db: Database;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 8, applicationName: 'test' });
  db = createDatabase(pool);
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

const resend = (id: string) => resendDelivery(pool, DEFAULT_TENANT_ID, id);
const shown = async (id: string) => (await findDelivery(db, DEFAULT_TENANT_ID, id))!;

async function givenSucceeded(endpointId?: string): Promise<string> {
  const id = await givenOne(pool, endpointId ? { targetEndpointId: endpointId } : {});
  await keepOne(pool, retry(await givenClaimed(pool, id)));
  await finishOne(pool, success(await givenClaimed(pool, id)));
  return id;
}

describe('sending a delivery again that has succeeded', () => {
  it('makes it pending under its id, one generation on, with a fresh budget and its history', async () => {
    const id = await givenSucceeded();
    expect(await shown(id)).toMatchObject({ status: 'succeeded', attempts: 2, sends: 2, generation: 1 });
    expect(await resend(id)).toEqual({ kind: 'resent', generation: 2 });
    expect(await shown(id)).toMatchObject({
      status: 'pending',
      finishedAt: null,
      attempts: 0,
      sends: 2,
      generation: 2,
    });
    await finishOne(pool, success(await givenClaimed(pool, id)));
    const after = await shown(id);
    expect(after).toMatchObject({ status: 'succeeded', attempts: 1, sends: 3, generation: 2 });
    const { attempts } = await listAttempts(db, after, 10);
    expect(attempts.map(({ seq, generation, send }) => [seq, generation, send])).toEqual([
      [1, 1, 1],
      [2, 1, 2],
      [3, 2, 3],
    ]);
  });

  it('goes also after the end of its event: whoever asks for it means it', async () => {
    const id = await givenSucceeded();
    await pool.query(`update relay.events set expires_at = now() - interval '1 hour' where id = $1`, [
      `${id.slice(0, 32)}0000`,
    ]);
    expect(await resend(id)).toMatchObject({ kind: 'resent' });
    expect(await givenClaimed(pool, id)).toMatchObject({ deliveryId: id });
  });
});

describe('sending a delivery again', () => {
  it('that is dead takes its dead letter away', async () => {
    const id = await givenOne(pool);
    await finishOne(pool, death(await givenClaimed(pool, id)));
    expect(await resend(id)).toEqual({ kind: 'resent', generation: 2 });
    const { rows } = await pool.query('select from relay.dead_letters where delivery_id = $1', [id]);
    expect(rows).toEqual([]);
  });

  it('is done once by ten who ask at the same moment', async () => {
    const id = await givenSucceeded();
    const results = await Promise.all(Array.from({ length: 10 }, () => resend(id)));
    expect(results.filter(({ kind }) => kind === 'resent')).toHaveLength(1);
    for (const { kind } of results) expect(['resent', 'still_owed', 'busy']).toContain(kind);
    expect((await shown(id)).generation).toBe(2);
  });

  it('does not wait for whoever is changing it', async () => {
    const id = await givenSucceeded();
    const holder = await pool.connect();
    await holder.query('begin');
    await holder.query('select from relay.deliveries where id = $1 for update', [id]);
    expect(await resend(id)).toEqual({ kind: 'busy' });
    await holder.query('rollback');
    holder.release();
    expect(await resend(id)).toMatchObject({ kind: 'resent' });
  });

  it('is refused while it is owed, leased or not', async () => {
    const id = await givenOne(pool);
    expect(await resend(id)).toEqual({ kind: 'still_owed' });
    await givenClaimed(pool, id);
    expect(await resend(id)).toEqual({ kind: 'still_owed' });
  });

  it('is refused when there is nowhere to send it, nothing to send, or it was sent again too often', async () => {
    const endpointId = await givenEndpoint(pool);
    const orphan = await givenSucceeded(endpointId);
    await pool.query('update relay.endpoints set deleted_at = now() where id = $1', [endpointId]);
    expect(await resend(orphan)).toEqual({ kind: 'endpoint_deleted' });
    const empty = await givenSucceeded();
    await pool.query('delete from relay.events where id = $1', [`${empty.slice(0, 32)}0000`]);
    expect(await resend(empty)).toEqual({ kind: 'event_missing' });
    const often = await givenSucceeded();
    await pool.query('update relay.deliveries set generation = 32767 where id = $1', [often]);
    expect(await resend(often)).toEqual({ kind: 'too_often' });
    for (const id of [orphan, empty, often]) expect((await shown(id)).status).toBe('succeeded');
  });

  it('is unknown to another tenant, and of an id that nothing has', async () => {
    const id = await givenSucceeded();
    expect(await resendDelivery(pool, await givenTenant(pool), id)).toEqual({ kind: 'not_found' });
    expect(await resend(randomUUID())).toEqual({ kind: 'not_found' });
    expect((await shown(id)).status).toBe('succeeded');
  });
});
