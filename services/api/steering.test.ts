import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { z } from 'zod';
import { createPool } from '../../lib/store/pool.ts';
import { endOwed } from '../../lib/store/sweep.ts';
import { type Answer, startTestApi, type TestApi } from '../testing/api.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { givenClaim, givenDead, givenSucceeded } from '../testing/given-deliveries.ts';
import { givenClaimed } from '../testing/given-queue.ts';
import {
  DeliveryCancellationShape,
  EndpointTestShape,
  EventCancellationShape,
  ResendShape,
} from './routes/steering-shapes.ts';

let database: TestDatabase;
let pool: pg.Pool;
let api: TestApi;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 4, applicationName: 'test' });
  api = await startTestApi(database.url);
});
afterAll(async () => {
  await api.stop();
  await pool.end();
  await database.drop();
});

async function givenEndpoint(eventTypes: string[] = []): Promise<string> {
  const body = { url: 'https://sink.example.com/in', event_types: eventTypes };
  return (await api.call('POST', '/v1/endpoints', { body })).json.id;
}

/** An event for one endpoint, and its delivery. */
async function givenPosted(): Promise<{ eventId: string; id: string }> {
  const endpointId = await givenEndpoint(['nothing.else']);
  const headers = { 'relay-event-type': 'order.paid', 'relay-endpoint-id': endpointId };
  const { json } = await api.call('POST', '/v1/events', { raw: '{}', headers });
  return { eventId: json.event_id, id: json.delivery_ids[0] };
}

const post = (path: string, body?: object, headers: Record<string, string> = {}) =>
  api.call('POST', path, { headers, ...(body ? { body } : {}) });
const delivery = async (id: string) => (await api.call('GET', `/v1/deliveries/${id}`)).json.delivery;

function expectShape(shape: z.ZodType, answer: Answer): void {
  expect([answer.status, shape.safeParse(answer.json).error?.issues ?? []]).toEqual([202, []]);
}

const refusal = ({ status, json }: Answer) => [status, json.code];

async function sweep(): Promise<void> {
  const client = await pool.connect();
  await endOwed(client, { limit: 1_000, from: null, mayReclaim: true });
  client.release();
}

async function givenStranger(): Promise<Record<string, string>> {
  return { 'relay-tenant-id': (await post('/v1/tenants', { name: 'stranger' })).json.id };
}

describe('POST /v1/deliveries/{id}/cancel', () => {
  it('stops what is owed, answers the delivery, and may be called again', async () => {
    const { id } = await givenPosted();
    const answer = await post(`/v1/deliveries/${id}/cancel`);
    expectShape(DeliveryCancellationShape, answer);
    expect(answer.json.delivery).toMatchObject({ id, status: 'pending', cancel_requested: true });
    await sweep();
    const again = await post(`/v1/deliveries/${id}/cancel`);
    expectShape(DeliveryCancellationShape, again);
    expect(again.json.delivery).toMatchObject({ status: 'dead', dead_reason: 'cancelled' });
  });

  it('is asked of one that is being sent, too', async () => {
    const { id } = await givenPosted();
    await givenClaim(pool, id);
    const { json } = await post(`/v1/deliveries/${id}/cancel`);
    expect(json.delivery).toMatchObject({ status: 'inflight', cancel_requested: true });
  });

  it('is 409 for one that has ended otherwise', async () => {
    const [first, second] = [await givenPosted(), await givenPosted()];
    await givenSucceeded(pool, first.id);
    await givenDead(pool, second.id);
    for (const { id } of [first, second]) {
      expect(refusal(await post(`/v1/deliveries/${id}/cancel`))).toEqual([409, 'delivery_finished']);
    }
  });
});

describe('POST /v1/deliveries/{id}/resend', () => {
  it('sends one again that has succeeded, and one that is dead', async () => {
    const [first, second] = [await givenPosted(), await givenPosted()];
    await givenSucceeded(pool, first.id);
    await givenDead(pool, second.id);
    for (const { id } of [first, second]) {
      const answer = await post(`/v1/deliveries/${id}/resend`);
      expectShape(ResendShape, answer);
      expect(answer.json).toEqual({ delivery_id: id, generation: 2 });
      expect(await delivery(id)).toMatchObject({ status: 'pending', generation: 2, sends: 1, attempt: 0 });
      expect(await givenClaimed(pool, id)).toMatchObject({ deliveryId: id });
    }
    expect((await api.call('GET', '/v1/dlq')).text).not.toContain(second.id);
  });

  it('is 409 while it is owed, and when its endpoint is deleted', async () => {
    const { id } = await givenPosted();
    expect(refusal(await post(`/v1/deliveries/${id}/resend`))).toEqual([409, 'still_owed']);
    await givenSucceeded(pool, id);
    const { endpoint_id: endpointId } = await delivery(id);
    await api.call('DELETE', `/v1/endpoints/${endpointId}`);
    expect(refusal(await post(`/v1/deliveries/${id}/resend`))).toEqual([409, 'endpoint_deleted']);
  });
});

describe('POST /v1/events/{id}/cancel', () => {
  it('stops every delivery of the event that is owed', async () => {
    const headers = await givenStranger();
    for (let n = 0; n < 3; n++) await post('/v1/endpoints', { url: 'https://sink.example.com/in' }, headers);
    const posted = await api.call('POST', '/v1/events', { raw: '{"type":"order.paid"}', headers });
    const { event_id: id, delivery_ids: ids } = posted.json;
    await givenSucceeded(pool, ids[0]);
    const answer = await post(`/v1/events/${id}/cancel`, undefined, headers);
    expectShape(EventCancellationShape, answer);
    expect(answer.json).toEqual({ event_id: id, cancelled: 2, fan_out_stopped: false });
    await sweep();
    const { json } = await api.call('GET', `/v1/events/${id}`, { headers });
    expect(json.counts).toMatchObject({ pending: 0, succeeded: 1, dead: 2 });
    expect((await post(`/v1/events/${id}/cancel`, undefined, headers)).json.cancelled).toBe(0);
  });
});

describe('POST /v1/endpoints/{id}/test', () => {
  it('posts a small event to that endpoint alone, whatever it subscribes to', async () => {
    const endpointId = await givenEndpoint(['nothing.else']);
    await givenEndpoint();
    const answer = await post(`/v1/endpoints/${endpointId}/test`);
    expectShape(EndpointTestShape, answer);
    const { event_id: eventId, delivery_id: id } = answer.json;
    expect(await delivery(id)).toMatchObject({ endpoint_id: endpointId, event_type: 'relay.test' });
    const event = await api.call('GET', `/v1/events/${eventId}`);
    expect(event.json.deliveries.map((one: { id: string }) => one.id)).toEqual([id]);
    const payload = await api.call('GET', `/v1/events/${eventId}/payload`);
    expect(payload.json).toMatchObject({ type: 'relay.test', endpoint_id: endpointId });
  });

  it('sends a body of one’s own as it stands, under a type of one’s own', async () => {
    const endpointId = await givenEndpoint();
    const body = { type: 'order.paid', body: '{ "a":1,\n"ü": "🚀" }' };
    const { json } = await post(`/v1/endpoints/${endpointId}/test`, body);
    expect((await delivery(json.delivery_id)).event_type).toBe('order.paid');
    const payload = await api.call('GET', `/v1/events/${json.event_id}/payload`);
    expect(payload.text).toBe(body.body);
    expect(payload.headers.get('content-type')).toBe('application/json');
  });

  it('is 409 while the endpoint is disabled, and 400 for what breaks a rule', async () => {
    const endpointId = await givenEndpoint();
    for (const [body, field] of [
      [{ type: 'a b' }, 'type'],
      [{ type: '~endpoint.disabled' }, 'type'],
      [{ body: { a: 1 } }, 'body'],
      [{ body: 'a\0b' }, 'body'],
      [{ body: 'x'.repeat(32_769) }, 'body'],
      [{ colour: 'red' }, 'colour'],
    ] as const) {
      const answer = await post(`/v1/endpoints/${endpointId}/test`, body);
      expect([answer.status, answer.json.errors[0].field]).toEqual([400, field]);
    }
    await post(`/v1/endpoints/${endpointId}/disable`);
    expect(refusal(await post(`/v1/endpoints/${endpointId}/test`))).toEqual([409, 'endpoint_disabled']);
  });
});

describe('what belongs to another tenant', () => {
  it('is 404, in the words for what does not exist, and stays as it was', async () => {
    const { id, eventId } = await givenPosted();
    const { endpoint_id: endpointId } = await delivery(id);
    const done = await givenPosted();
    await givenSucceeded(pool, done.id);
    const headers = await givenStranger();
    const nothing = '0193a1b2-c3d4-7000-8000-0123456789ab';
    for (const [path, real, code] of [
      ['/v1/deliveries/{id}/cancel', id, 'delivery_not_found'],
      ['/v1/deliveries/{id}/resend', done.id, 'delivery_not_found'],
      ['/v1/events/{id}/cancel', eventId, 'event_not_found'],
      ['/v1/endpoints/{id}/test', endpointId, 'endpoint_not_found'],
    ] as const) {
      const foreign = await post(path.replace('{id}', real), undefined, headers);
      const absent = await post(path.replace('{id}', nothing), undefined, headers);
      expect(refusal(foreign)).toEqual([404, code]);
      expect({ ...foreign.json, request_id: '' }).toEqual({ ...absent.json, request_id: '' });
    }
    expect(await delivery(id)).toMatchObject({ status: 'pending', cancel_requested: false });
    expect(await delivery(done.id)).toMatchObject({ status: 'succeeded', generation: 1 });
  });
});
