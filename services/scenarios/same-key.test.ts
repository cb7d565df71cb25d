import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createPool } from '../../lib/store/pool.ts';
import { ADMIN_KEY } from '../testing/api.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { type Fleet, type FleetProcess, startFleet } from '../testing/fleet.ts';
import { createTestRedis } from '../testing/redis.ts';

const REPLICAS = 3;
const AT_ONCE = 50;

let database: TestDatabase;
let pool: pg.Pool;
let fleet: Fleet;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
  fleet = await startFleet({ databaseUrl: database.url, redisUrl: createTestRedis().url });
  await Promise.all(Array.from({ length: REPLICAS }, () => fleet.start('api')));
  await fleet.endpoint('/sink', { event_types: ['same.key'] });
});
afterAll(async () => {
  await fleet.stop();
  await pool.end();
  await database.drop();
});

interface Answer {
  /** 0: none came. */
  status: number;
  eventId: string | null;
}

async function post({ url }: FleetProcess, key: string): Promise<Answer> {
  try {
    const response = await fetch(`${url}/v1/events`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${ADMIN_KEY}`,
        'idempotency-key': key,
        'relay-event-type': 'same.key',
      },
      body: `{"key":"${key}"}`,
    });
    const { event_id: eventId = null } = (await response.json()) as { event_id?: string };
    return { status: response.status, eventId };
  } catch {
    return { status: 0, eventId: null };
  }
}

const living = () => fleet.processes.filter((process) => process.alive());

/** As many posts with one key, in turn to each replica, all at the same time. */
function postTogether(key: string): Promise<Answer[]> {
  const apis = living();
  return Promise.all(Array.from({ length: AT_ONCE }, (_, n) => post(apis[n % apis.length]!, key)));
}

async function storedUnder(
  keys: readonly string[],
): Promise<{ key: string; id: string; deliveries: number }[]> {
  const { rows } = await pool.query(
    `select e.id, (select count(*)::integer from relay.deliveries d where d.event_id = e.id) as deliveries
     from relay.events e join relay.idempotency_keys k on k.event_id = e.id
     where k.key = any($1::text[]) order by k.key`,
    [keys],
  );
  return rows;
}

async function eventsWith(keys: readonly string[]): Promise<number> {
  const { rows } = await pool.query(
    `select count(*)::integer as n from relay.events where convert_from(payload, 'UTF8')::json ->> 'key' = any($1::text[])`,
    [keys],
  );
  return rows[0].n;
}

/** Every answer with an event names the same one. */
function theEvent(answers: readonly Answer[]): string {
  const ids = new Set(answers.flatMap(({ eventId }) => eventId ?? []));
  expect(ids.size).toBe(1);
  return [...ids][0]!;
}

describe('one idempotency key posted by fifty at once to three replicas (O-19)', { timeout: 90_000 }, () => {
  it('makes one event when a replica is killed meanwhile, and the post that is sent again returns it', async () => {
    const keys = Array.from({ length: 5 }, (_, n) => `killed-${n}`);
    const victim = living()[0]!;
    // What is begun is neither answered nor refused when the process goes.
    const posting = Promise.all(keys.map(postTogether));
    await post(living()[1]!, 'one-more');
    await victim.kill();
    const answers = await posting;
    expect(answers.flat().filter(({ status }) => ![0, 202, 409].includes(status))).toEqual([]);
    const again = await Promise.all(keys.map((key) => post(living()[0]!, key)));
    for (const [n, answer] of again.entries()) {
      expect(answer.status).toBe(202);
      expect(theEvent([...answers[n]!, answer])).toBe(answer.eventId);
    }
    expect((await storedUnder(keys)).map(({ id, deliveries }) => [id, deliveries])).toEqual(
      again.map(({ eventId }) => [eventId, 1]),
    );
    expect(await eventsWith(keys)).toBe(keys.length);
  });
});
