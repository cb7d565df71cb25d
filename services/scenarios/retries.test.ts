import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { checkInvariants, violations } from '../../lib/store/invariants.ts';
import { createPool } from '../../lib/store/pool.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';
import { type Fleet, type FleetProcess, startFleet } from '../testing/fleet.ts';
import { createTestRedis } from '../testing/redis.ts';
import { type ScriptedSink, startScriptedSink } from '../testing/scripted-sink.ts';

let database: TestDatabase;
let pool: pg.Pool;
let fleet: Fleet;
let sink: ScriptedSink;
let dispatcher: FleetProcess;

beforeAll(async () => {
  [database, sink] = await Promise.all([createTestDatabase(), startScriptedSink()]);
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
  fleet = await startFleet({
    databaseUrl: database.url,
    redisUrl: createTestRedis().url,
    // How often a delivery is tried is one thing, when its endpoint is left alone another.
    env: { RELAY_BREAKER: 'off' },
  });
  [, dispatcher] = await Promise.all([
    fleet.start('api'),
    fleet.start('dispatcher'),
    fleet.start('reconciler'),
  ]);
});
afterAll(async () => {
  await fleet.stop();
  await Promise.all([sink.close(), pool.end()]);
  await database.drop();
});

async function endpointAt(path: string, type: string, retryPolicy: object): Promise<string> {
  const settings = { url: sink.url + path, event_types: [type], retry_policy: retryPolicy };
  return (await fleet.endpoint('', settings)).id;
}

async function postOne(type: string): Promise<string> {
  const { status, json } = await fleet.call('POST', '/v1/events', { body: { type } });
  expect(status).toBe(202);
  return json.delivery_ids[0];
}

const RETRY_IN_A_MINUTE = { max_attempts: 5, base_ms: 60_000, factor: 1, cap_ms: 60_000 };

/** The first attempt of an event to an endpoint that answers so; with the moment at which it asked for the next, ms. */
async function firstAttempt(path: string, status: number, retryAfter: string | string[] | undefined) {
  sink.script(path, {
    status,
    ...(retryAfter === undefined ? {} : { headers: { 'retry-after': retryAfter } }),
  });
  const type = `t.${path.slice(1)}`;
  await endpointAt(path, type, RETRY_IN_A_MINUTE);
  const id = await postOne(type);
  const attempt = await eventually(async () => {
    const { json } = await fleet.call('GET', `/v1/deliveries/${id}`);
    expect(json.attempts.length).toBe(1);
    expect(json.delivery.next_attempt_at).toBe(json.attempts[0].next_attempt_at);
    return json.attempts[0];
  });
  expect(attempt).toMatchObject({ outcome_class: 'retryable', http_status: status });
  return { at: Date.parse(attempt.at), next: Date.parse(attempt.next_attempt_at) };
}

const inSeconds = (seconds: number) => new Date(Date.now() + seconds * 1000).toUTCString();

describe('Retry-After (O-08)', { timeout: 40_000 }, () => {
  it.each([429, 503])('as a date with %i is honoured: not earlier, and not much later', async (status) => {
    const date = inSeconds(90);
    const { next } = await firstAttempt(`/date-${status}`, status, date);
    expect(next).toBeGreaterThanOrEqual(Date.parse(date));
    expect(next).toBeLessThan(Date.parse(date) + 10_000);
  });

  it.each([
    ['a date that is past', inSeconds(-3600)],
    ['a word', 'soon'],
    ['nothing', ''],
    ['zero', '0'],
    ['two that disagree', ['5', '600']],
    ['no header', undefined],
  ])('of %s falls back to the usual backoff, which is a real moment', async (name, retryAfter) => {
    const { at, next } = await firstAttempt(`/${name.replaceAll(' ', '-')}`, 429, retryAfter);
    expect(next).toBeGreaterThan(at);
    expect(next).toBeLessThanOrEqual(at + 60_001);
  });

  it('made nobody ask at once', () => {
    const paths = [
      '/a-word',
      '/nothing',
      '/zero',
      '/two-that-disagree',
      '/a-date-that-is-past',
      '/no-header',
    ];
    const counts = paths.map((path) => sink.requests(path).length);
    // The shortest of six jittered minutes may be up already, but nothing loops.
    for (const count of counts) expect(count).toBeLessThanOrEqual(2);
  });
});

const COUNT = 20;
const THREE = { max_attempts: 3, base_ms: 1_500, factor: 1, cap_ms: 1_500 };

/** Replaces the one dispatcher by another, without a gap. */
async function restartDispatcher(): Promise<void> {
  const next = await fleet.start('dispatcher');
  expect(await dispatcher.terminate()).toBe(0);
  dispatcher = next;
}

async function attemptsOf(endpointId: string) {
  const { rows } = await pool.query<{ status: string; reason: string; sends: number[]; classes: string[] }>(
    `select d.status, d.dead_reason as reason, array_agg(a.send order by a.seq) as sends, array_agg(a.class order by a.seq) as classes
     from relay.deliveries d join relay.delivery_attempts a on a.delivery_id = d.id
     where d.endpoint_id = $1 and a.class <> 'deferred' group by d.id`,
    [endpointId],
  );
  return rows;
}

describe('a limit of three attempts (O-22)', { timeout: 60_000 }, () => {
  it('is three attempts, all recorded, also when no request can be made and the dispatchers are restarted in between', async () => {
    sink.script('/down', { status: 500 });
    sink.script('/forbidden', { status: 403 });
    const down = await endpointAt('/down', 'down', THREE);
    const forbidden = await endpointAt('/forbidden', 'forbidden', THREE);
    const unusable = await endpointAt('/unusable', 'unusable', THREE);
    await pool.query(`update relay.endpoints set secret = '\\x00', version = version + 1 where id = $1`, [
      unusable,
    ]);
    for (const type of ['down', 'forbidden', 'unusable']) await fleet.post(COUNT, { type });
    await restartDispatcher();
    await eventually(
      async () =>
        expect(
          (
            await pool.query(
              `select from relay.deliveries d where status = 'pending'
        and endpoint_id = any($1)`,
              [[down, forbidden, unusable]],
            )
          ).rowCount,
        ).toBe(0),
      30_000,
    );

    const exhausted = {
      status: 'dead',
      reason: 'attempts_exhausted',
      sends: [1, 2, 3],
      classes: Array(3).fill('retryable'),
    };
    expect(await attemptsOf(down)).toEqual(Array(COUNT).fill(exhausted));
    expect(await attemptsOf(unusable)).toEqual(Array(COUNT).fill(exhausted));
    // 403 is final by policy: its first attempt is its last.
    const refused = { status: 'dead', reason: 'permanent_failure', sends: [1], classes: ['permanent'] };
    expect(await attemptsOf(forbidden)).toEqual(Array(COUNT).fill(refused));
    expect(sink.requests('/down').length).toBe(3 * COUNT);
    expect(sink.requests('/unusable').length).toBe(0);
    expect(violations(await checkInvariants(pool, { repair: false }))).toBe(0);
  });

  it('leaves dead letters that say why', async () => {
    const { json } = await fleet.call('GET', '/v1/dlq?event_type=unusable&limit=500');
    expect(json.count).toBe(COUNT);
    for (const letter of json.items) {
      expect(letter).toMatchObject({ dead_reason: 'attempts_exhausted', attempt: 3 });
      expect(letter.last_error).toContain('cannot be sent to');
    }
  });
});
