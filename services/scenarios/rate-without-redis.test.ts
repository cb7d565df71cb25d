import type pg from 'pg';
import { afterEach, describe, expect, it } from 'vitest';
import { createPool } from '../../lib/store/pool.ts';
import { Arrivals, countWithin, mostInASecond, Stillness } from '../testing/arrivals.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';
import { type Fleet, startFleet } from '../testing/fleet.ts';
import {
  deliveredWithoutRepeats,
  firstPassDone,
  givenBacklog,
  knowEachOther,
  owedTo,
  waitUntil,
} from '../testing/given-backlog.ts';
import { type PrivateRedis, startPrivateRedis } from '../testing/private-servers.ts';

const RATE = 50;
const BURST = 20;
const LIMITS = { rate_per_second: RATE, burst: BURST };

const stillness = new Stillness();
let ends: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const end of ends.reverse()) await end();
  ends = [];
});

/** Two dispatchers that know of each other. */
async function givenFleet(redisUrl: string | null) {
  const database: TestDatabase = await createTestDatabase();
  ends.push(() => database.drop());
  const pool: pg.Pool = createPool({
    url: database.url,
    purpose: 'general',
    max: 2,
    applicationName: 'test',
  });
  ends.push(() => pool.end());
  const arrivals = new Arrivals();
  const receiver = { onDelivery: arrivals.note };
  const fleet: Fleet = await startFleet({ databaseUrl: database.url, redisUrl, receiver });
  ends.push(() => fleet.stop());
  await Promise.all([
    fleet.start('api'),
    fleet.start('dispatcher'),
    fleet.start('dispatcher'),
    fleet.start('reconciler'),
  ]);
  await knowEachOther(pool, 2);
  return { fleet, pool, arrivals };
}

describe('an endpoint for which more waits than it takes, in a fleet without any Redis', {
  timeout: 60_000,
}, () => {
  it('is sent no more than its rate, and most of it: each dispatcher keeps to its part', async () => {
    const { fleet, pool, arrivals } = await givenFleet(null);
    const backlog = await givenBacklog({ fleet, pool }, '/sink', { count: 1_500, ...LIMITS });
    await firstPassDone(pool, backlog);
    const from = Date.now();
    stillness.reset();
    await waitUntil(from + 10_000);
    const late = stillness.latenessSeconds;
    const seen = arrivals.moments(backlog.path).filter((moment) => moment >= from);
    expect(await owedTo(pool, backlog)).toBeGreaterThan(500);
    expect(mostInASecond(seen)).toBeLessThanOrEqual(RATE + BURST + RATE * late);
    expect(countWithin(seen, from, from + 10_000)).toBeGreaterThanOrEqual(0.8 * 10 * RATE);
  });
});

describe('Redis stopped while more waits than an endpoint takes, and started again', {
  timeout: 90_000,
}, () => {
  it('lets no second hold more than before, and delivery goes on', async () => {
    const redis: PrivateRedis = await startPrivateRedis();
    ends.push(() => redis.stop());
    const { fleet, pool, arrivals } = await givenFleet(redis.url);
    const said = (text: string) =>
      fleet.processes.flatMap((process) => process.log()).filter(({ msg }) => String(msg).includes(text))
        .length;
    const backlog = await givenBacklog({ fleet, pool }, '/sink', { count: 2_000, ...LIMITS });
    await firstPassDone(pool, backlog);
    const from = Date.now();
    stillness.reset();
    await waitUntil(from + 2_000);
    await redis.stop();
    await eventually(() => expect(said('poll mode')).toBe(4));
    const away = Date.now();
    await waitUntil(away + 5_000);
    await redis.start();
    await eventually(() => expect(said('stream mode')).toBe(8), 15_000);
    const back = Date.now();
    await waitUntil(back + 5_000);
    const late = stillness.latenessSeconds;
    const seen = arrivals.moments(backlog.path).filter((moment) => moment >= from);
    expect(mostInASecond(seen)).toBeLessThanOrEqual(RATE + BURST + RATE * late);
    expect(countWithin(seen, away, away + 5_000)).toBeGreaterThanOrEqual(0.8 * 5 * RATE);
    expect(countWithin(seen, back, back + 5_000)).toBeGreaterThanOrEqual(0.8 * 5 * RATE);
    await fleet.call('PATCH', `/v1/endpoints/${backlog.endpointId}`, {
      body: { rate_per_second: 1e6, burst: 1e6 },
    });
    await deliveredWithoutRepeats({ fleet, pool, arrivals }, backlog);
  });
});
