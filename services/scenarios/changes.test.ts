import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createPool } from '../../lib/store/pool.ts';
import { verificationKey, verifySignature } from '../receiver/signatures.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';
import { type Fleet, type FleetProcess, startFleet } from '../testing/fleet.ts';
import { accept, newEvent } from '../testing/given-queue.ts';
import { createTestRedis } from '../testing/redis.ts';
import { type ScriptedSink, type SunkRequest, startScriptedSink } from '../testing/scripted-sink.ts';
import { loggedSends } from '../testing/stored-rows.ts';

let database: TestDatabase;
let pool: pg.Pool;
let fleet: Fleet;
let sink: ScriptedSink;
let reconcilers: FleetProcess[];
let dispatchers: FleetProcess[];

beforeAll(async () => {
  [database, sink] = await Promise.all([createTestDatabase(), startScriptedSink()]);
  pool = createPool({ url: database.url, purpose: 'general', max: 4, applicationName: 'test' });
  fleet = await startFleet({
    databaseUrl: database.url,
    redisUrl: createTestRedis().url,
    // What fails here fails so that there is something to retry.
    env: { RELAY_BREAKER_THRESHOLD: '1000' },
  });
  await fleet.start('api');
  dispatchers = await Promise.all([fleet.start('dispatcher'), fleet.start('dispatcher')]);
  reconcilers = await Promise.all([fleet.start('reconciler'), fleet.start('reconciler')]);
});
afterAll(async () => {
  await fleet.stop();
  await Promise.all([sink.close(), pool.end()]);
  await database.drop();
});

/** From the claim to the wire, on a busy machine: what was claimed before a change commits may still go out. */
const CLAIMED_MS = 500;
const EVERY_SECOND = { max_attempts: 50, base_ms: 1_000, factor: 1, cap_ms: 1_000 };

async function endpointAt(path: string, settings: Record<string, unknown> = {}) {
  const type = `t.${path.slice(1)}`;
  const { id, secret } = await fleet.endpoint('', {
    url: sink.url + path,
    event_types: [type],
    retry_policy: EVERY_SECOND,
    ...settings,
  });
  return { id, secret, path, type };
}

async function postTo({ type }: { type: string }, count: number): Promise<string[]> {
  const { deliveryIds, statuses } = await fleet.post(count, { type });
  expect(statuses).toEqual({ 202: count });
  return deliveryIds;
}

/** Calls a route of an endpoint; returns the answer and when it came: the change had been committed by then. */
async function change(method: string, path: string, body?: object) {
  const { status, json, text } = await fleet.call(method, `/v1/endpoints/${path}`, body ? { body } : {});
  expect([status < 300, text]).toEqual([true, expect.any(String)]);
  return { json, atMs: Date.now() };
}

const shown = async (id: string) => (await fleet.call('GET', `/v1/endpoints/${id}`)).json;

const whenRequested = (path: string, count: number, withinMs = 10_000) =>
  eventually(() => expect(sink.requests(path).length).toBeGreaterThanOrEqual(count), withinMs);

const whenWaiting = (endpointId: string, kind: string, count: number, withinMs = 15_000) =>
  eventually(async () => {
    const { rows } = await pool.query(
      'select delivery_id as id, xmin::text, attempts from relay.queue where endpoint_id = $1 and waiting = $2 order by 1',
      [endpointId, kind],
    );
    expect(rows.length).toBe(count);
    return rows;
  }, withinMs);

/** Each delivery's end, with the outcomes of its requests. */
async function ends(ids: readonly string[], withinMs = 10_000) {
  return eventually(async () => {
    const answers = await Promise.all(ids.map((id) => fleet.call('GET', `/v1/deliveries/${id}`)));
    return answers.map(({ status, json }) => {
      expect([status, ['succeeded', 'dead']]).toEqual([200, expect.arrayContaining([json.delivery.status])]);
      const sent = json.attempts.filter((each: { send_no: number | null }) => each.send_no !== null);
      return {
        end: json.delivery.dead_reason ?? json.delivery.status,
        outcomes: sent.map((each: { outcome_class: string }) => each.outcome_class),
      };
    });
  }, withinMs);
}

const COUNT = 10;
const since = (path: string, atMs: number) => sink.requests(path).filter((request) => request.atMs > atMs);

describe.each([
  ['between attempts', undefined],
  ['while requests are open', 1_500],
])('an endpoint that fails and is changed %s (O-21)', (when, afterMs) => {
  const suffix = when.replaceAll(' ', '-');
  const fails = { status: 500, ...(afterMs === undefined ? {} : { afterMs }) };

  /** An endpoint that has been asked once for each of its deliveries, and owes them all. */
  async function givenFailing(name: string) {
    const endpoint = await endpointAt(`/${name}-${suffix}`);
    sink.script(endpoint.path, fails);
    const ids = await postTo(endpoint, COUNT);
    await whenRequested(endpoint.path, COUNT);
    return { ...endpoint, ids };
  }

  it('gets nothing at its old URL', async () => {
    const { id, ids, path } = await givenFailing('moves');
    sink.script(`${path}-to`, { status: 200 });
    const { atMs } = await change('PATCH', id, { url: `${sink.url}${path}-to` });
    for (const { end, outcomes } of await ends(ids)) {
      expect([end, outcomes.at(-1), outcomes[0]]).toEqual(['succeeded', 'success', 'retryable']);
    }
    expect(sink.requests(`${path}-to`).length).toBe(COUNT);
    expect(since(path, atMs + CLAIMED_MS)).toEqual([]);
  }, 30_000);

  it('gets nothing that is signed without its new secret', async () => {
    const { id, ids, path, secret } = await givenFailing('rotates');
    const { json, atMs } = await change('POST', `${id}/rotate-secret`);
    await eventually(() => expect(since(path, atMs + CLAIMED_MS).length).toBeGreaterThanOrEqual(COUNT));
    for (const request of since(path, atMs + CLAIMED_MS)) expect(verifies(request, json.secret)).toBe(true);
    for (const request of sink.requests(path)) expect(verifies(request, secret)).toBe(true);
    expect(verifies(sink.requests(path)[0]!, json.secret)).toBe(false);
    sink.script(path, { status: 200 });
    for (const { end } of await ends(ids)) expect(end).toBe('succeeded');
  }, 30_000);

  it('gets nothing while it is paused, which spends nothing, and all of it when it is resumed', async () => {
    const { id, ids, path } = await givenFailing('pauses');
    const { atMs } = await change('POST', `${id}/pause`);
    const parked = await whenWaiting(id, 'parked', COUNT);
    expect(since(path, atMs + CLAIMED_MS)).toEqual([]);
    const requests = sink.requests(path).length;
    expect(parked.reduce((sum, row) => sum + row.attempts, 0)).toBe(requests);
    // Some traffic of another endpoint passes before it is looked at again.
    const other = await endpointAt(`/beside-${suffix}`);
    sink.script(other.path, { status: 200 });
    for (const { end } of await ends(await postTo(other, 50))) expect(end).toBe('succeeded');
    expect(await whenWaiting(id, 'parked', COUNT)).toEqual(parked);

    sink.script(path, { status: 200 });
    await change('POST', `${id}/resume`);
    for (const { end } of await ends(ids)) expect(end).toBe('succeeded');
    expect(sink.requests(path).length).toBe(requests + COUNT);
  }, 30_000);

  it('gets nothing when it is deleted; what was owed ends cancelled, with its history', async () => {
    const { id, ids, path } = await givenFailing('goes');
    const { atMs } = await change('DELETE', id);
    for (const { end, outcomes } of await ends(ids, 5_000)) {
      expect(end).toBe('cancelled');
      expect(new Set(outcomes)).toEqual(new Set(['retryable']));
    }
    expect(since(path, atMs + CLAIMED_MS)).toEqual([]);
  }, 30_000);
});

function verifies({ headers, body, atMs }: SunkRequest, secret: string): boolean {
  const nowSeconds = Math.floor(atMs / 1_000);
  const keys = [verificationKey(secret)];
  return verifySignature(headers, body, { keys, nowSeconds, toleranceSeconds: 300, headerPrefix: 'relay' })
    .ok;
}

describe('what a dispatcher has in hand when an endpoint is changed', { timeout: 30_000 }, () => {
  it('goes as it was claimed within two seconds, the local wait and that for a token, or not at all', async () => {
    const endpoint = await endpointAt('/in-hand', { max_in_flight: 2 });
    sink.script(endpoint.path, { status: 200, afterMs: 900 });
    sink.script('/in-hand-to', { status: 200 });
    const ids = await postTo(endpoint, 10);
    await whenRequested(endpoint.path, 1);
    const { atMs } = await change('PATCH', endpoint.id, { url: `${sink.url}/in-hand-to` });
    for (const { end } of await ends(ids, 20_000)) expect(end).toBe('succeeded');
    expect(since(endpoint.path, atMs + 2_000 + CLAIMED_MS)).toEqual([]);
    expect(sink.requests('/in-hand-to').length).toBeGreaterThan(0);
  });

  it('may still succeed when the endpoint is deleted meanwhile', async () => {
    const endpoint = await endpointAt('/last-word');
    sink.script(endpoint.path, { status: 200, afterMs: 1_000 }, { status: 500, afterMs: 1_000 });
    const ids = await postTo(endpoint, 2);
    await whenRequested(endpoint.path, 2);
    await change('DELETE', endpoint.id);
    expect((await ends(ids)).map(({ end }) => end).sort()).toEqual(['cancelled', 'succeeded']);
  });
});

describe('an endpoint that is deleted', { timeout: 30_000 }, () => {
  it('ends what waits for it in slots, parked or for a retry, within seconds and unsent', async () => {
    const slots = await endpointAt('/slots', { rate_per_second: 0.5, burst: 1 });
    const parked = await endpointAt('/parks');
    const retries = await endpointAt('/retries', { retry_policy: { base_ms: 3_600_000, cap_ms: 3_600_000 } });
    sink.script(slots.path, { status: 200 });
    sink.script(retries.path, { status: 500 });
    await change('POST', `${parked.id}/pause`);
    const [inSlots, areParked, inRetry] = await Promise.all(
      [slots, parked, retries].map((each) => postTo(each, 20)),
    );
    await Promise.all([
      whenWaiting(slots.id, 'slot', 19),
      whenWaiting(parked.id, 'parked', 20),
      eventually(async () => {
        const { rows } = await pool.query(
          'select from relay.queue where endpoint_id = $1 and attempts = 1 and claim_token is null',
          [retries.id],
        );
        expect(rows.length).toBe(20);
      }),
    ]);
    const sent = [slots, parked, retries].map(({ path }) => sink.requests(path).length);
    expect(sent).toEqual([1, 0, 20]);

    await Promise.all([slots, parked, retries].map(({ id }) => change('DELETE', id)));
    const counts = await Promise.all([inSlots!, areParked!, inRetry!].map((ids) => ends(ids, 5_000)));
    const cancelled = counts.map((each) => each.filter(({ end }) => end === 'cancelled').length);
    expect(cancelled).toEqual([19, 20, 20]);
    expect([slots, parked, retries].map(({ path }) => sink.requests(path).length)).toEqual(sent);
    expect((await pool.query('select from relay.endpoint_jobs')).rowCount).toBe(0);
  });
});

describe('an endpoint that Relay disables', { timeout: 40_000 }, () => {
  it('by a 410 is matched no more, and what waits for it is parked until it is enabled', async () => {
    const endpoint = await endpointAt('/gone', { rate_per_second: 4, burst: 1 });
    sink.script(endpoint.path, { status: 410 }, { status: 200 });
    await change('POST', `${endpoint.id}/pause`);
    const ids = await postTo(endpoint, 6);
    await whenWaiting(endpoint.id, 'parked', 6);
    await change('POST', `${endpoint.id}/resume`);
    await eventually(async () =>
      expect(await shown(endpoint.id)).toMatchObject({ enabled: false, disabled_reason: 'gone' }),
    );
    expect(
      (await fleet.call('POST', '/v1/events', { body: { type: endpoint.type } })).json.delivery_ids,
    ).toEqual([]);
    await whenWaiting(endpoint.id, 'parked', 5);
    expect(sink.requests(endpoint.path).length).toBe(1);

    expect((await change('POST', `${endpoint.id}/enable`)).json).toMatchObject({
      enabled: true,
      disabled_reason: null,
    });
    const [gone, ...others] = (await ends(ids)).map(({ end }) => end).sort();
    expect([gone, others]).toEqual(['gone', Array(5).fill('succeeded')]);
    const again = await postTo(endpoint, 1);
    expect((await ends(again)).map(({ end }) => end)).toEqual(['succeeded']);
  });

  it('after days of nothing but failure loses its subscriptions, and the operator is told', async () => {
    const endpoint = await endpointAt('/fails-for-days');
    sink.script(endpoint.path, { status: 500 });
    await postTo(endpoint, 2);
    await eventually(async () => expect((await shown(endpoint.id)).failing_since).not.toBeNull());
    await pool.query(
      `update relay.endpoints set failing_since = now() - interval '5 days 1 minute' where id = $1`,
      [endpoint.id],
    );
    await eventually(async () =>
      expect(await shown(endpoint.id)).toMatchObject({ enabled: false, disabled_reason: 'failing' }),
    );
    const { rowCount } = await pool.query('select from relay.subscriptions where endpoint_id = $1', [
      endpoint.id,
    ]);
    expect(rowCount).toBe(0);
    await whenWaiting(endpoint.id, 'parked', 2);
    await eventually(async () => {
      const told = dispatchers
        .flatMap((each) => each.log())
        .filter((line) => String(line.msg).includes('fail for days'));
      expect(told).toMatchObject([{ endpoint_id: endpoint.id }]);
      const metrics = await Promise.all(
        dispatchers.map(async ({ url }) => (await fetch(`${url}/metrics`)).text()),
      );
      const counted = metrics.map((text) =>
        Number(/^relay_endpoints_disabled_total\{reason="failing"\} (\d+)/m.exec(text)?.[1]),
      );
      expect(counted.sort()).toEqual([0, 1]);
    });
  });
});

describe('a reconciler that is killed while it times anew what waits', { timeout: 60_000 }, () => {
  const WAITING = 3_000;

  it('leaves the rest to the next leader, and everything goes once', async () => {
    const endpoint = await endpointAt('/retimed', { rate_per_second: 1_000, burst: 100 });
    sink.script(endpoint.path, { status: 200 });
    await change('POST', `${endpoint.id}/pause`);
    for (let posted = 0; posted < WAITING; posted += 500) {
      const event = newEvent({ type: endpoint.type, targetEndpointId: endpoint.id });
      await accept(pool, Array(500).fill(event), { announced: false });
    }
    await whenWaiting(endpoint.id, 'parked', WAITING, 30_000);
    const leading = await eventually(leader);
    // While somebody holds some of the rows the job cannot end.
    const holder = await pool.connect();
    await holder.query('begin');
    await holder.query(
      'select from relay.queue where endpoint_id = $1 order by delivery_id desc limit 50 for update',
      [endpoint.id],
    );
    await change('POST', `${endpoint.id}/resume`);
    await whenRequested(endpoint.path, 1);
    await leading.kill();
    await holder.query('rollback');
    holder.release();

    await eventually(() => expect(new Set(idsAt(endpoint.path)).size).toBe(WAITING), 40_000);
    await eventually(async () => {
      const { successes, sends } = await loggedSends(pool, endpoint.id);
      expect(successes).toBe(WAITING);
      expect(idsAt(endpoint.path).length).toBeLessThanOrEqual(sends);
    });
    await eventually(async () =>
      expect((await pool.query('select from relay.endpoint_jobs')).rowCount).toBe(0),
    );
    expect(await leader()).not.toBe(leading);
  });

  async function leader(): Promise<FleetProcess> {
    const alive = reconcilers.filter((each) => each.alive());
    const texts = await Promise.all(alive.map(async ({ url }) => (await fetch(`${url}/metrics`)).text()));
    const leading = alive.filter((_, place) => /^relay_leader 1$/m.test(texts[place]!));
    expect(leading.length).toBe(1);
    return leading[0]!;
  }

  const idsAt = (path: string) => sink.requests(path).map(({ headers }) => headers['relay-delivery-id']);
});
