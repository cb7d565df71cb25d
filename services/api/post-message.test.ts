import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createPool } from '../../lib/store/pool.ts';
import { startTestApi, type TestApi } from '../testing/api.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { messageFixtures } from '../testing/message-fixtures.ts';

let database: TestDatabase;
let api: TestApi;
let pool: pg.Pool;

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

/** A tenant of its own, with one endpoint over HTTP and as many for email as said. */
async function givenTenant(emailEndpoints = 0) {
  const tenant: string = (await api.call('POST', '/v1/tenants', { body: { name: 'a tenant' } })).json.id;
  const headers = { 'relay-tenant-id': tenant };
  const endpoint = async (settings: object): Promise<string> => {
    const made = await api.call('POST', '/v1/endpoints', {
      body: { event_types: ['nothing'], ...settings },
      headers,
    });
    expect(made.status).toBe(201);
    return made.json.id;
  };
  const web = await endpoint({ url: 'https://sink.example.com/in' });
  const email: string[] = [];
  for (let n = 0; n < emailEndpoints; n += 1)
    email.push(await endpoint({ transport: 'email', url: `mailto:n${n}@example.com` }));
  return {
    tenant,
    web,
    email,
    post: (body: unknown) => api.call('POST', '/v1/messages', { body, headers }),
    postRaw: (raw: string | Buffer, more: Record<string, string> = {}) =>
      api.call('POST', '/v1/messages', {
        raw,
        headers: { 'content-type': 'application/json', ...headers, ...more },
      }),
    batch: (body: unknown) => api.call('POST', '/v1/events/batch', { body, headers }),
  };
}

async function stored(eventId: string) {
  const { rows } = await pool.query(
    `select e.type, e.content_type as "contentType", convert_from(e.payload, 'UTF8') as payload,
       array_agg(d.endpoint_id) as endpoints
     from relay.events e left join relay.deliveries d on d.event_id = e.id where e.id = $1 group by e.id`,
    [eventId],
  );
  return rows[0];
}

const webhook = (endpointId: string, changes: object = {}) => ({
  kind: 'webhook',
  idempotencyKey: randomUUID(),
  endpointId,
  event: 'order.paid',
  body: '{"a":1}',
  ...changes,
});
const email = (changes: object = {}) => ({
  kind: 'email',
  idempotencyKey: randomUUID(),
  to: 'ada@example.com',
  subject: 'Hello',
  html: '',
  text: 'Hello',
  ...changes,
});

describe('a finished message', () => {
  it.each(messageFixtures().map((fixture) => [fixture.name, fixture] as const))(
    'is frozen as the shared example says, by itself and in a batch: %s',
    async (_, { message, event }) => {
      const tenant = await givenTenant(1);
      const endpoint = message.kind === 'email' ? tenant.email[0]! : tenant.web;
      const sent = message.kind === 'email' ? message : { ...message, endpointId: tenant.web };
      const alone = await tenant.post(sent);
      expect([alone.status, alone.headers.get('relay-idempotent-replay')]).toEqual([202, 'false']);
      expect(alone.json.delivery_ids).toHaveLength(1);
      expect(await stored(alone.json.event_id)).toEqual({ ...event, endpoints: [endpoint] });
      const batch = await tenant.batch([sent, { ...sent, idempotencyKey: `${sent.idempotencyKey}-again` }]);
      expect(batch.json.results[0]).toEqual({ status: 202, replayed: true, ...alone.json });
      expect(await stored(batch.json.results[1].event_id)).toEqual({ ...event, endpoints: [endpoint] });
    },
  );

  it('is answered with the same bytes when it is sent again, and 409 when it is another', async () => {
    const { post, web } = await givenTenant();
    const message = webhook(web);
    const first = await post(message);
    const again = await post(message);
    expect(again.text).toBe(first.text);
    expect(again.headers.get('relay-idempotent-replay')).toBe('true');
    const other = await post({ ...message, body: '{"a": 1}' });
    expect([other.status, other.json.code]).toEqual([409, 'idempotency_conflict']);
  });

  it.each([
    ['no object', '[]', 'item'],
    ['no JSON', '{"kind":', 'item'],
    ['nothing', '', 'item'],
    ['no kind', '{}', 'kind'],
    ['another kind', '{"kind":"sms"}', 'kind'],
  ])('is refused when it is %s', async (_, raw, field) => {
    const { postRaw } = await givenTenant();
    const answer = await postRaw(raw);
    expect([answer.status, answer.json.code, answer.json.errors[0].field]).toEqual([
      400,
      'invalid_request',
      field,
    ]);
  });

  it('says everything in its body: headers of an event are refused, and so is any other media type', async () => {
    const { postRaw, web } = await givenTenant();
    const raw = JSON.stringify(webhook(web));
    expect((await postRaw(raw, { 'idempotency-key': 'x' })).json.errors[0].field).toBe('idempotency-key');
    expect((await postRaw(raw, { 'content-type': 'text/plain' })).status).toBe(415);
    expect((await postRaw(`\ufeff${raw}`)).status).toBe(202);
  });
});

describe('a webhook message', () => {
  it('of a structure is kept as the bytes that stand in the request', async () => {
    const { postRaw, web } = await givenTenant();
    const body = '{ "b":12345678901234567890, "a":1e400,\n"a":-0 }';
    const message = JSON.stringify(webhook(web, { body: 0 })).replace('"body":0', `"body": ${body} `);
    const answer = await postRaw(message);
    expect((await stored(answer.json.event_id)).payload).toBe(body);
  });

  it.each([
    ['a number for a body', { body: 7 }, 'body'],
    ['null for a body', { body: null }, 'body'],
    ['half a character in its body', { body: 'a\ud83d' }, 'body'],
    ['no body', { body: undefined }, 'body'],
    ['no key', { idempotencyKey: undefined }, 'idempotencyKey'],
    ['a bad key', { idempotencyKey: 'a b' }, 'idempotencyKey'],
    ['a bad event type', { event: 'a b' }, 'event'],
    ['no endpoint', { endpointId: undefined }, 'endpointId'],
    ['a field that there is not', { contentType: 'a/b' }, 'contentType'],
  ])('is refused with %s', async (_, changes, field) => {
    const { post, web } = await givenTenant();
    const answer = await post(webhook(web, changes));
    expect([answer.status, answer.json.code, answer.json.errors[0].field]).toEqual([
      400,
      'invalid_request',
      field,
    ]);
  });

  it('is refused when its body is too large', async () => {
    const { post, web } = await givenTenant();
    const answer = await post(webhook(web, { body: 'x'.repeat(api.config.maxPayloadBytes + 1) }));
    expect([answer.status, answer.json.errors[0].field]).toEqual([413, 'body']);
    expect((await post(webhook(web, { body: '"'.repeat(api.config.maxPayloadBytes) }))).status).toBe(202);
  });

  it('is refused when its endpoint is not there, or another tenant’s', async () => {
    const { post } = await givenTenant();
    const { web: foreign } = await givenTenant();
    for (const endpointId of [randomUUID(), foreign]) {
      const answer = await post(webhook(endpointId));
      expect([answer.status, answer.json.code]).toEqual([404, 'endpoint_not_found']);
    }
  });
});

describe('an email message', () => {
  it('goes by the one endpoint for email that the tenant has, and is refused where there is none', async () => {
    const { post, email: ids } = await givenTenant(1);
    const answer = await post(email());
    expect((await stored(answer.json.event_id)).endpoints).toEqual(ids);
    const none = await (await givenTenant(0)).post(email());
    expect([none.status, none.json.code]).toEqual([422, 'no_email_endpoint']);
  });

  it('names its endpoint where there are several, one for email of its own tenant', async () => {
    const { post, batch, web, email: ids } = await givenTenant(2);
    const { email: foreign } = await givenTenant(1);
    const code = async (message: object) => (await post(message)).json.code;
    expect(await code(email())).toBe('no_email_endpoint');
    expect(await code(email({ endpointId: web }))).toBe('no_email_endpoint');
    expect(await code(email({ endpointId: foreign[0] }))).toBe('endpoint_not_found');
    expect(await code(email({ endpointId: randomUUID() }))).toBe('endpoint_not_found');
    const answer = await batch([
      email({ endpointId: ids[1] }),
      email(),
      email({ endpointId: web }),
      webhook(web),
      { type: 'x', payload: 1 },
    ]);
    expect(answer.json.results.map((result: { status: number }) => result.status)).toEqual([
      202, 422, 422, 202, 202,
    ]);
    expect((await stored(answer.json.results[0].event_id)).endpoints).toEqual([ids[1]]);
  });

  it('does not go by an endpoint that is disabled', async () => {
    const { tenant, post, email: ids } = await givenTenant(1);
    const headers = { 'relay-tenant-id': tenant };
    await api.call('POST', `/v1/endpoints/${ids[0]}/disable`, { headers });
    expect((await post(email())).json.code).toBe('no_email_endpoint');
    expect((await post(email({ endpointId: ids[0] }))).json.code).toBe('endpoint_disabled');
  });

  it.each([
    ['a line break in its subject', { subject: 'a\r\nBcc: b@example.com' }, 'subject'],
    ['no address', { to: 'ada' }, 'to'],
    ['an address too many', { to: ['ada@example.com', 7] }, 'to'],
    ['a header that adds recipients', { headers: { Bcc: 'b@example.com' } }, 'headers'],
    ['a line break in a header', { headers: { 'X-A': 'a\nb' } }, 'headers'],
    ['half a character in its text', { text: '\ud83d' }, 'text'],
    ['U+0000 in its html', { html: 'a\0' }, 'html'],
    ['nothing to say', { text: '' }, 'text'],
    ['no text at all', { text: undefined }, 'text'],
    ['no key', { idempotencyKey: undefined }, 'idempotencyKey'],
    ['a field that there is not', { from: 'a@example.com' }, 'from'],
  ])('is refused with %s', async (_, changes, field) => {
    const { post } = await givenTenant(1);
    const answer = await post(email(changes));
    expect([answer.status, answer.json.code, answer.json.errors[0].field]).toEqual([
      400,
      'invalid_request',
      field,
    ]);
  });
});
