import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { z } from 'zod';
import { registerProcess } from '../../lib/store/heartbeats.ts';
import { createPool } from '../../lib/store/pool.ts';
import { type Answer, startTestApi, type TestApi } from '../testing/api.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { givenClaim, givenDead, givenDelivery, givenSucceeded } from '../testing/given-deliveries.ts';
import { DeliveryExplanationShape, EventExplanationShape } from './routes/explain-shapes.ts';
import { EndpointShape, ProblemShape } from './routes/shapes.ts';

let database: TestDatabase;
let pool: pg.Pool;
let api: TestApi;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
  api = await startTestApi(database.url);
});
afterAll(async () => {
  await api.stop();
  await pool.end();
  await database.drop();
});

const SINK = 'https://sink.example.com/in';

async function givenEndpoint(body: object = {}, headers: Record<string, string> = {}): Promise<string> {
  const made = await api.call('POST', '/v1/endpoints', { body: { url: SINK, ...body }, headers });
  expect(made.status).toBe(201);
  return made.json.id;
}

async function givenTenant(): Promise<string> {
  return (await api.call('POST', '/v1/tenants', { body: { name: 'other' } })).json.id;
}

const post = (id: string, suffix: string, body?: object) =>
  api.call('POST', `/v1/endpoints/${id}/${suffix}`, body ? { body } : {});
const setEndpoint = (id: string, columns: string) =>
  pool.query(`update relay.endpoints set ${columns} where id = $1`, [id]);
const setQueue = (id: string, columns: string) =>
  pool.query(`update relay.queue set ${columns} where delivery_id = $1`, [id]);

/** An answer is what its documentation says: no field more, none less. */
function expectShape(shape: z.ZodType, answer: Answer): void {
  expect(shape.safeParse(answer.json).error?.issues ?? []).toEqual([]);
}

const refusal = (answer: Answer) => ({
  status: answer.status,
  code: answer.json.code,
  fields: answer.json.errors?.map((error: { field: string }) => error.field),
});

describe('pausing an endpoint', () => {
  it('lasts until it is resumed when no end is named', async () => {
    for (const body of [undefined, {}, { until: null }]) {
      const id = await givenEndpoint();
      const paused = await post(id, 'pause', body);
      expect(paused.status).toBe(200);
      expectShape(EndpointShape, paused);
      expect(paused.json).toMatchObject({ paused: true, paused_until: null, paused_reason: 'operator' });
      const resumed = await post(id, 'resume');
      expectShape(EndpointShape, resumed);
      expect(resumed.json).toMatchObject({ paused: false, paused_until: null, paused_reason: null });
    }
  });

  it('lasts to the moment, or for the seconds, that are named', async () => {
    const id = await givenEndpoint();
    const until = new Date(Date.now() + 3_600_000).toISOString();
    expect((await post(id, 'pause', { until })).json.paused_until).toBe(until);
    const { json } = await post(id, 'pause', { for_seconds: 0.5 + 60 });
    const lastsMs = Date.parse(json.paused_until) - Date.now();
    expect(lastsMs).toBeGreaterThan(50_000);
    expect(lastsMs).toBeLessThan(70_000);
    expect((await api.call('GET', `/v1/endpoints/${id}`)).json).toEqual(json);
  });

  it.each([
    ['an end that has passed', { until: '2020-01-01T00:00:00Z' }, 'until'],
    ['an end without its zone', { until: '2036-01-01T00:00:00' }, 'until'],
    ['an end that is no moment', { until: 60 }, 'until'],
    ['both', { until: '2036-01-01T00:00:00Z', for_seconds: 60 }, 'for_seconds'],
    ['seconds beside no end', { until: null, for_seconds: 60 }, 'for_seconds'],
    ['no time at all', { for_seconds: 0 }, 'for_seconds'],
    ['less than nothing', { for_seconds: -1 }, 'for_seconds'],
    ['more than a year', { for_seconds: 1e9 }, 'for_seconds'],
    ['seconds in text', { for_seconds: '60' }, 'for_seconds'],
    ['an unknown field', { minutes: 5 }, 'minutes'],
  ])('is refused with %s, naming the field', async (_, body, field) => {
    const id = await givenEndpoint();
    const answer = await post(id, 'pause', body);
    expectShape(ProblemShape, answer);
    expect(refusal(answer)).toEqual({ status: 400, code: 'invalid_request', fields: [field] });
    expect((await api.call('GET', `/v1/endpoints/${id}`)).json).toMatchObject({ paused: false, version: 1 });
  });

  it('ended by a resume twice is ended once', async () => {
    const id = await givenEndpoint();
    const before = await post(id, 'resume');
    expect([before.status, before.json.version]).toEqual([200, 1]);
    await post(id, 'pause');
    expect((await post(id, 'resume')).json.version).toBe(3);
    expect((await post(id, 'resume')).json.version).toBe(3);
  });
});

describe('the breaker of an endpoint', () => {
  it('is shown, and closed by a reset', async () => {
    const id = await givenEndpoint();
    await setEndpoint(
      id,
      `breaker_state = 'open', breaker_trips = 2, breaker_failures = 5, breaker_streak = 2,
       breaker_until = now() + interval '1 minute', failing_since = '2026-12-01T00:00:00Z'`,
    );
    const shown = await api.call('GET', `/v1/endpoints/${id}`);
    expectShape(EndpointShape, shown);
    expect(shown.json).toMatchObject({
      breaker: { state: 'open', failures: 5, trips: 2, until: expect.stringMatching(/Z$/) },
      failing_since: '2026-12-01T00:00:00.000Z',
    });
    const reset = await post(id, 'breaker/reset');
    expectShape(EndpointShape, reset);
    expect(reset.json).toMatchObject({
      breaker: { state: 'closed', failures: 0, trips: 3, until: null },
      failing_since: null,
    });
    expect((await post(id, 'breaker/reset')).json).toEqual(reset.json);
  });

  it('starts anew with an endpoint that is enabled after days of nothing but failure', async () => {
    const id = await givenEndpoint();
    await setEndpoint(
      id,
      `enabled = false, disabled_reason = 'failing', disabled_at = now(), breaker_state = 'open',
       breaker_until = now() + interval '1 minute', failing_since = now() - interval '6 days'`,
    );
    const disabled = await api.call('GET', `/v1/endpoints/${id}`);
    expectShape(EndpointShape, disabled);
    expect(disabled.json.disabled_reason).toBe('failing');
    const enabled = await post(id, 'enable');
    expect(enabled.json).toMatchObject({ enabled: true, breaker: { state: 'closed' }, failing_since: null });
  });
});

describe('the switches of an endpoint', () => {
  it('are not there for what does not exist, for another tenant, and for what is no id', async () => {
    const foreign = await givenEndpoint({}, { 'relay-tenant-id': await givenTenant() });
    for (const suffix of ['pause', 'resume', 'breaker/reset', 'enable', 'disable']) {
      for (const id of [randomUUID(), foreign]) {
        expect(refusal(await post(id, suffix))).toMatchObject({ status: 404, code: 'endpoint_not_found' });
      }
      expect(refusal(await post('42', suffix)).fields).toEqual(['id']);
    }
  });

  it('take no field that they do not know', async () => {
    const id = await givenEndpoint();
    for (const suffix of ['resume', 'breaker/reset']) {
      expect(refusal(await post(id, suffix, { force: true }))).toMatchObject({
        status: 400,
        fields: ['force'],
      });
    }
  });
});

async function explain(deliveryId: string) {
  const answer = await api.call('GET', `/v1/deliveries/${deliveryId}/explain`);
  expect(answer.status).toBe(200);
  expectShape(DeliveryExplanationShape, answer);
  return answer.json;
}

async function givenOwed(body: object = {}) {
  const endpointId = await givenEndpoint({ event_types: ['nobody.posts.this'], ...body });
  return { endpointId, ...(await givenDelivery(pool, { endpointId })) };
}

describe('explaining a delivery', () => {
  it('that is new says that nothing but its turn is missing', async () => {
    const { deliveryId, endpointId } = await givenOwed({ rate_per_second: 5 });
    const explained = await explain(deliveryId);
    expect(explained).toMatchObject({
      delivery_id: deliveryId,
      status: 'pending',
      gate: { reason: 'unannounced' },
      waiting: null,
      attempts: 0,
      deferrals: 0,
      last_outcome: null,
      endpoint: { id: endpointId, enabled: true, paused: false, rate_per_second: 5 },
      lease: null,
      ahead: null,
      queue: { lane: 'express', announced_at: null, reclaims: 0, cancel_requested: false },
    });
    expect(explained.next_attempt_at).toBe(explained.queue.due_at);
    await setQueue(deliveryId, 'announced_at = now(), lane = 1');
    expect(await explain(deliveryId)).toMatchObject({ gate: { reason: 'unread' }, queue: { lane: 'bulk' } });
  });

  it('that is held names its holder, and until when', async () => {
    const { deliveryId } = await givenOwed();
    const holder = await registerProcess(pool, { id: randomUUID(), role: 'dispatcher', wake: 'stream' });
    await givenClaim(pool, deliveryId);
    await setQueue(deliveryId, `claimed_by = ${holder}`);
    expect(await explain(deliveryId)).toMatchObject({
      status: 'inflight',
      gate: { reason: 'inflight' },
      lease: { process: holder, role: 'dispatcher' },
    });
    await setQueue(deliveryId, `claimed_by = 999, lease_expires_at = now() - interval '1 second'`);
    expect(await explain(deliveryId)).toMatchObject({
      status: 'pending',
      gate: { reason: 'lease_ended' },
      lease: { process: 999, role: null },
    });
  });

  it('that waits in a slot says why, until when, and how many go before it', async () => {
    const first = await givenOwed();
    const { endpointId } = first;
    const waiting = [first.deliveryId];
    for (let n = 1; n < 4; n++) waiting.push((await givenDelivery(pool, { endpointId })).deliveryId);
    for (const [n, id] of waiting.entries()) {
      await setQueue(
        id,
        `waiting = 'slot', slot_version = 1, due_at = now() + ${n + 60} * interval '1 second',
         deferral_reason = 'rate_limit', deferrals = 2`,
      );
    }
    // Neither of these has an earlier slot: one is parked, one has a slot of an older version.
    await setQueue(waiting[0]!, 'slot_version = 0');
    await setQueue(waiting[1]!, `waiting = 'parked', due_at = 'infinity'`);
    const last = await explain(waiting[3]!);
    expect(last).toMatchObject({
      gate: { reason: 'rate_limit' },
      waiting: 'slot',
      deferrals: 2,
      ahead: { count: 1, capped: false },
    });
    expect(last.summary).toContain(`Its slot is at ${last.next_attempt_at}.`);
    expect(await explain(waiting[0]!)).toMatchObject({ gate: { reason: 'retiming' } });
  });

  it('that is parked has no moment, and says what it waits for', async () => {
    const { deliveryId, endpointId } = await givenOwed();
    await post(endpointId, 'pause');
    await setQueue(
      deliveryId,
      `waiting = 'parked', slot_version = 1, due_at = 'infinity', deferral_reason = 'paused'`,
    );
    const paused = await explain(deliveryId);
    expect(paused).toMatchObject({
      gate: { reason: 'paused' },
      waiting: 'parked',
      next_attempt_at: null,
      endpoint: { paused: true, paused_until: null, paused_reason: 'operator' },
      queue: { due_at: null },
    });
    expect(JSON.stringify(paused)).not.toMatch(/infinity/i);
    await post(endpointId, 'resume');
    expect(await explain(deliveryId)).toMatchObject({ gate: { reason: 'retiming' } });
    await post(endpointId, 'disable');
    expect(await explain(deliveryId)).toMatchObject({
      gate: { reason: 'disabled' },
      endpoint: { enabled: false, disabled_reason: 'operator' },
    });
  });

  it('behind a breaker shows the breaker', async () => {
    const { deliveryId, endpointId } = await givenOwed();
    await setEndpoint(
      endpointId,
      `breaker_state = 'open', breaker_trips = 1, breaker_until = now() + interval '30 s'`,
    );
    expect(await explain(deliveryId)).toMatchObject({
      gate: { reason: 'breaker_open' },
      endpoint: { breaker: { state: 'open', trips: 1, failures: 0, until: expect.stringMatching(/Z$/) } },
    });
    await setEndpoint(endpointId, `breaker_state = 'half_open', breaker_probe = gen_random_uuid()`);
    expect(await explain(deliveryId)).toMatchObject({ gate: { reason: 'probe' } });
  });

  it('that will end says so', async () => {
    const { deliveryId, endpointId } = await givenOwed();
    await setQueue(deliveryId, `expires_at = now() - interval '1 second'`);
    expect((await explain(deliveryId)).gate.reason).toBe('expired');
    await setQueue(deliveryId, 'cancel_requested = true');
    expect((await explain(deliveryId)).gate.reason).toBe('cancelling');
    await setQueue(deliveryId, 'cancel_requested = false, expires_at = null');
    await api.call('DELETE', `/v1/endpoints/${endpointId}`);
    expect(await explain(deliveryId)).toMatchObject({
      gate: { reason: 'endpoint_deleted' },
      endpoint: { deleted: true },
    });
    await pool.query('delete from relay.events where id = $1', [`${deliveryId.slice(0, -4)}0000`]);
    expect((await explain(deliveryId)).gate.reason).toBe('missing');
  });

  it('that has ended says when and how', async () => {
    const { deliveryId } = await givenOwed();
    await givenSucceeded(pool, deliveryId);
    const done = await explain(deliveryId);
    expect(done).toMatchObject({
      status: 'succeeded',
      gate: null,
      last_outcome: { class: 'success', http_status: 200 },
      queue: null,
      lease: null,
      next_attempt_at: null,
    });
    expect(done.summary).toBe(`It arrived at ${done.finished_at} with attempt 1: HTTP 200.`);
    const dead = await givenOwed();
    await givenDead(pool, dead.deliveryId);
    expect(await explain(dead.deliveryId)).toMatchObject({
      status: 'dead',
      dead_reason: 'permanent_failure',
      gate: null,
      summary: expect.stringMatching(/refused it for good \(HTTP 404\)/),
    });
  });

  it('says what the last attempt met, whatever was deferred after it', async () => {
    const { deliveryId } = await givenOwed();
    await pool.query(
      `insert into relay.delivery_attempts (delivery_id, seq, attempt, generation, class, http_status, error, reason)
       values ($1, 1, 1, 1, 'retryable', null, 'timeout', null), ($1, 2, 1, 1, 'deferred', null, null, 'rate_limit')`,
      [deliveryId],
    );
    await setQueue(deliveryId, `attempts = 1, seq = 2, due_at = now() + interval '1 minute'`);
    expect(await explain(deliveryId)).toMatchObject({
      gate: { reason: 'retry', detail: expect.stringMatching(/\(timeout\)/) },
      attempts: 1,
      last_outcome: { class: 'retryable', http_status: null, error: 'timeout' },
    });
  });

  it('is not for what does not exist, for another tenant, or for what is no id', async () => {
    const { deliveryId } = await givenOwed();
    const headers = { 'relay-tenant-id': await givenTenant() };
    for (const [id, options] of [
      [randomUUID(), {}],
      [deliveryId, { headers }],
    ] as const) {
      const answer = await api.call('GET', `/v1/deliveries/${id}/explain`, options);
      expect(refusal(answer)).toMatchObject({ status: 404, code: 'delivery_not_found' });
    }
    expect(refusal(await api.call('GET', '/v1/deliveries/42/explain')).fields).toEqual(['id']);
  });
});

describe('explaining an event', () => {
  const explainEvent = async (id: string, query = '', headers: Record<string, string> = {}) => {
    const answer = await api.call('GET', `/v1/events/${id}/explain${query}`, { headers });
    expect(answer.status).toBe(200);
    expectShape(EventExplanationShape, answer);
    return answer.json;
  };

  async function givenPosted(headers: Record<string, string>, type = 'order.paid'): Promise<string> {
    const answer = await api.call('POST', '/v1/events', {
      raw: '{}',
      headers: { ...headers, 'relay-event-type': type },
    });
    expect(answer.status).toBe(202);
    return answer.json.event_id;
  }

  it('says of each endpoint of the tenant whether it was matched, and why not', async () => {
    const headers = { 'relay-tenant-id': await givenTenant() };
    const call = (method: string, path: string) => api.call(method, path, { headers });
    const matched = await givenEndpoint({ event_types: ['order.*'] }, headers);
    const otherType = await givenEndpoint({ event_types: ['user.*'] }, headers);
    const disabled = await givenEndpoint({}, headers);
    await call('POST', `/v1/endpoints/${disabled}/disable`);
    const paused = await givenEndpoint({}, headers);
    await call('POST', `/v1/endpoints/${paused}/pause`);
    const gone = await givenEndpoint({}, headers);
    const deletedBefore = await givenEndpoint({}, headers);
    await call('DELETE', `/v1/endpoints/${deletedBefore}`);
    const eventId = await givenPosted(headers);
    await call('DELETE', `/v1/endpoints/${gone}`);
    const late = await givenEndpoint({}, headers);

    const explained = await explainEvent(eventId, '', headers);
    expect(explained).toMatchObject({ event_id: eventId, event_type: 'order.paid', next_cursor: null });
    const reasons = Object.fromEntries(
      explained.items.map((item: { endpoint_id: string; matched: boolean; reason: string | null }) => [
        item.endpoint_id,
        item.matched || item.reason,
      ]),
    );
    expect(reasons).toEqual({
      [matched]: true,
      [otherType]: 'type',
      [disabled]: 'disabled',
      [paused]: true,
      [gone]: true,
      [late]: 'created_after',
    });
    expect(explained.items[0]).toMatchObject({
      endpoint_id: matched,
      delivery_id: expect.any(String),
      delivery_status: 'pending',
      event_types: ['order.*'],
      reason: null,
    });
    const asked = await explainEvent(eventId, `?endpoint_id=${deletedBefore}`, headers);
    expect(asked.items).toMatchObject([{ endpoint_id: deletedBefore, matched: false, reason: 'deleted' }]);
  });

  it('that was addressed to one endpoint says that others may match now', async () => {
    const headers = { 'relay-tenant-id': await givenTenant() };
    const [target, other] = [await givenEndpoint({}, headers), await givenEndpoint({}, headers)];
    const eventId = await givenPosted({ ...headers, 'relay-endpoint-id': target });
    const { items } = await explainEvent(eventId, '', headers);
    expect(items).toMatchObject([
      { endpoint_id: target, matched: true },
      { endpoint_id: other, matched: false, reason: 'not_matched_then' },
    ]);
    const one = await explainEvent(eventId, `?endpoint_id=${other}`, headers);
    expect(one.items).toEqual([items[1]]);
  });

  it('gives no hint of what other tenants have', async () => {
    const headers = { 'relay-tenant-id': await givenTenant() };
    const eventId = await givenPosted(headers);
    const foreign = await givenEndpoint({ event_types: ['order.paid'] });
    const absent = randomUUID();
    const answers = [foreign, absent].map((id) => explainEvent(eventId, `?endpoint_id=${id}`, headers));
    const [theirs, nobodys] = (await Promise.all(answers)).map(({ items: [item] }) => item);
    expect(theirs).toMatchObject({ endpoint_id: foreign, matched: false, reason: 'unknown', url: null });
    expect({ ...theirs, endpoint_id: absent }).toEqual(nobodys);
    expect((await explainEvent(eventId, '', headers)).items).toEqual([]);
    const mine = await api.call('GET', `/v1/events/${eventId}/explain`);
    expect(refusal(mine)).toMatchObject({ status: 404, code: 'event_not_found' });
  });

  it('goes page by page, once over each endpoint', async () => {
    const headers = { 'relay-tenant-id': await givenTenant() };
    const made: string[] = [];
    for (let n = 0; n < 5; n++) {
      made.push(await givenEndpoint(n % 2 ? { event_types: ['user.*'] } : {}, headers));
    }
    const eventId = await givenPosted(headers);
    await api.call('DELETE', `/v1/endpoints/${made[2]}`, { headers });
    const seen: string[] = [];
    let cursor: string | null = null;
    do {
      const page: Awaited<ReturnType<typeof explainEvent>> = await explainEvent(
        eventId,
        `?limit=2${cursor ? `&cursor=${cursor}` : ''}`,
        headers,
      );
      expect(page.count).toBe(page.items.length);
      expect(page.count).toBeLessThanOrEqual(2);
      seen.push(...page.items.map((item: { endpoint_id: string }) => item.endpoint_id));
      cursor = page.next_cursor;
    } while (cursor);
    expect(seen).toEqual(made.toSorted());
  });

  it.each([
    ['?limit=ten', 'limit'],
    ['?cursor=nonsense', 'cursor'],
    ['?endpoint_id=42', 'endpoint_id'],
    ['?colour=red', 'colour'],
  ])('refuses %s', async (query, field) => {
    const answer = await api.call('GET', `/v1/events/${randomUUID()}/explain${query}`);
    expect(refusal(answer)).toEqual({ status: 400, code: 'invalid_request', fields: [field] });
  });
});
