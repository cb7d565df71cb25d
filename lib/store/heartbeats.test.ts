import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import type { WakeMode } from '../domain/vocabulary.ts';
import {
  beat,
  forgetDeadProcesses,
  type ProcessRole,
  registerProcess,
  unregisterProcess,
} from './heartbeats.ts';
import { createPool } from './pool.ts';

let database: TestDatabase;
let pool: pg.Pool;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 4, applicationName: 'test' });
});
beforeEach(async () => {
  await pool.query('truncate relay.process_heartbeats');
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

const register = (role: ProcessRole, wake: WakeMode = 'stream') =>
  registerProcess(pool, { id: randomUUID(), role, wake });

async function silence(number: number, seconds: number): Promise<void> {
  await pool.query(
    `update relay.process_heartbeats set beat_at = beat_at - $2 * interval '1 s' where number = $1`,
    [number, seconds],
  );
}

describe('a process that beats', () => {
  it('has a number of its own, which it keeps when it registers again', async () => {
    const id = randomUUID();
    const number = await registerProcess(pool, { id, role: 'api', wake: 'stream' });
    expect(await register('api')).not.toBe(number);
    expect(await registerProcess(pool, { id, role: 'api', wake: 'poll' })).toBe(number);
  });

  it('hears of every living process, itself included', async () => {
    const number = await register('dispatcher');
    expect(await beat(pool, { number, role: 'dispatcher', wake: 'stream' })).toEqual({
      poll: false,
      liveApis: 0,
      dispatchersBefore: 0,
      liveDispatchers: 1,
    });
    await Promise.all([register('dispatcher'), register('api'), register('reconciler')]);
    expect(await beat(pool, { number, role: 'dispatcher', wake: 'stream' })).toEqual({
      poll: false,
      liveApis: 1,
      dispatchersBefore: 0,
      liveDispatchers: 2,
    });
    const api = await register('api');
    expect(await beat(pool, { number: api, role: 'api', wake: 'stream' })).toEqual({
      poll: false,
      liveApis: 2,
      // Both were there before it.
      dispatchersBefore: 2,
      liveDispatchers: 2,
    });
  });

  it('does not hear of those who have been silent for 5 s, nor of those who left', async () => {
    const number = await register('dispatcher');
    const [silent, left] = [await register('dispatcher'), await register('dispatcher')];
    await silence(silent, 6);
    await unregisterProcess(pool, left);
    expect(await beat(pool, { number, role: 'dispatcher', wake: 'stream' })).toMatchObject({
      liveDispatchers: 1,
    });
    await beat(pool, { number: silent, role: 'dispatcher', wake: 'stream' });
    expect(await beat(pool, { number, role: 'dispatcher', wake: 'stream' })).toMatchObject({
      liveDispatchers: 2,
    });
  });

  it('is told to register again when its row was removed', async () => {
    const number = await register('dispatcher');
    await unregisterProcess(pool, number);
    expect(await beat(pool, { number, role: 'dispatcher', wake: 'stream' })).toBeNull();
  });
});

describe('poll mode', () => {
  it('holds for all while one living process cannot be told of work', async () => {
    const [well, unwell] = [await register('dispatcher'), await register('api')];
    const hear = async () => (await beat(pool, { number: well, role: 'dispatcher', wake: 'stream' }))?.poll;
    expect(await hear()).toBe(false);
    expect((await beat(pool, { number: unwell, role: 'api', wake: 'poll' }))?.poll).toBe(true);
    expect(await hear()).toBe(true);
    await beat(pool, { number: unwell, role: 'api', wake: 'stream' });
    expect(await hear()).toBe(false);
  });

  it('ends with the process that said so', async () => {
    const [well, dead] = [await register('dispatcher'), await register('api', 'poll')];
    const hear = async () => (await beat(pool, { number: well, role: 'dispatcher', wake: 'stream' }))?.poll;
    expect(await hear()).toBe(true);
    await silence(dead, 6);
    expect(await hear()).toBe(false);
  });
});

describe('rows of dead processes', () => {
  it('are forgotten after a day', async () => {
    const [dead, silent] = [await register('api'), await register('api')];
    await silence(dead, 86_401);
    await silence(silent, 3_600);
    expect(await forgetDeadProcesses(pool)).toBe(1);
    const { rows } = await pool.query('select number from relay.process_heartbeats');
    expect(rows).toEqual([{ number: silent }]);
  });
});
