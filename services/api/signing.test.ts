import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { readEndpointConfigs } from '../../lib/store/endpoint-config.ts';
import { openHeaders } from '../../lib/store/endpoint-headers.ts';
import { createPool } from '../../lib/store/pool.ts';
import { type Answer, startTestApi, type TestApi } from '../testing/api.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { EndpointShape } from './routes/shapes.ts';

let database: TestDatabase;
let pool: pg.Pool;
let api: TestApi;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
  api = await startTestApi(database.url, { RELAY_HEADER_PREFIX: 'Acme' });
});
afterAll(async () => {
  await api.stop();
  await pool.end();
  await database.drop();
});

const STANDARD_SECRET = `whsec_${Buffer.alloc(32, 7).toString('base64')}`;

const create = (body: object = {}) =>
  api.call('POST', '/v1/endpoints', { body: { url: 'https://sink.example.com/in', ...body } });
const change = (id: string, body: object) => api.call('PATCH', `/v1/endpoints/${id}`, { body });

async function givenEndpoint(body: object = {}) {
  const made = await create(body);
  expect([made.status, made.json.code]).toEqual([201, undefined]);
  return made.json;
}

async function storedHeaders(id: string) {
  const config = (await readEndpointConfigs(pool, [id])).get(id)!;
  return openHeaders(api.config.secretKeys, id, config.headers);
}

const refusal = (answer: Answer) => [
  answer.status,
  answer.json.errors?.map((error: { field: string }) => error.field),
];
const expectEndpoint = (answer: Answer) =>
  expect(EndpointShape.safeParse(answer.json).error?.issues ?? []).toEqual([]);

describe('custom headers of an endpoint', () => {
  const headers = { Authorization: 'Bearer sesame', 'X-Tenant': 't 1', __proto__x: 'p' };

  it('are stored and shown by name alone, in every answer', async () => {
    const made = await create({ headers });
    expect(made.status).toBe(201);
    const { id } = made.json;
    const names = { Authorization: null, 'X-Tenant': null, __proto__x: null };
    const answers = [
      made,
      await api.call('GET', `/v1/endpoints/${id}`),
      await change(id, { description: 'x' }),
      await api.call('POST', `/v1/endpoints/${id}/disable`),
    ];
    for (const answer of answers) {
      expect(answer.json.headers).toEqual(names);
      expect(answer.text).not.toContain('sesame');
    }
    expectEndpoint(answers[1]!);
    expect((await api.call('GET', '/v1/endpoints?limit=500')).text).not.toContain('sesame');
    expect(await storedHeaders(id)).toEqual(headers);
  });

  it('are changed as a whole, and what was read can be written back', async () => {
    const { id } = await givenEndpoint({ headers });
    const shown = (await api.call('GET', `/v1/endpoints/${id}`)).json.headers;
    expect((await change(id, { headers: { ...shown, 'X-New': 'n' } })).status).toBe(200);
    expect(await storedHeaders(id)).toEqual({ ...headers, 'X-New': 'n' });
    expect((await change(id, { headers: {} })).json.headers).toEqual({});
    expect(await storedHeaders(id)).toEqual({});
  });

  it('may even be named __proto__', async () => {
    const raw = '{"url":"https://sink.example.com/in","headers":{"__proto__":"p"}}';
    const made = await api.call('POST', '/v1/endpoints', {
      raw,
      headers: { 'content-type': 'application/json' },
    });
    expect(made.status).toBe(201);
    expect(Object.entries(await storedHeaders(made.json.id))).toEqual([['__proto__', 'p']]);
    expect(made.text).toContain('"headers":{"__proto__":null}');
  });

  it.each<[string, unknown, string[]]>([
    ['a line end in a value', { 'X-A': 'a\r\nHost: b' }, ['headers.X-A']],
    ['a NUL in a value', { 'X-A': 'a\0b' }, ['headers.X-A']],
    ['a space behind a value', { 'X-A': 'a ' }, ['headers.X-A']],
    ['a value beyond ASCII', { 'X-A': 'ä' }, ['headers.X-A']],
    ['an empty value', { 'X-A': '' }, ['headers.X-A']],
    ['a long value', { 'X-A': 'v'.repeat(1_025) }, ['headers.X-A']],
    ['a number', { 'X-A': 1 }, ['headers.X-A']],
    ['null where nothing is stored', { 'X-A': null }, ['headers.X-A']],
    ['a line end in a name', { 'X-A\r\nHost': 'a' }, ['headers.X-A\r\nHost']],
    ['an empty name', { '': 'a' }, ['headers.']],
    ['a reserved name', { 'Content-Length': '1', host: 'x' }, ['headers.Content-Length', 'headers.host']],
    ['the name of a signature', { 'stripe-signature': 'x' }, ['headers.stripe-signature']],
    ['a name of Relay under its usual prefix', { 'Relay-Delivery-Id': 'x' }, ['headers.Relay-Delivery-Id']],
    ['a name that begins with the configured prefix', { 'ACME-Anything': 'x' }, ['headers.ACME-Anything']],
    ['names that differ in case alone', { 'X-A': '1', 'x-a': '2' }, ['headers']],
    ['21 of them', Object.fromEntries(Array.from({ length: 21 }, (_, n) => [`X-${n}`, 'v'])), ['headers']],
    [
      'too much together',
      Object.fromEntries(Array.from({ length: 7 }, (_, n) => [`X-${n}`, 'v'.repeat(1_000)])),
      ['headers'],
    ],
    ['a list', [], ['headers']],
    ['text', 'X-A: b', ['headers']],
    ['null', null, ['headers']],
  ])('are refused with %s, at the making and at a change, naming the field', async (_, bad, fields) => {
    expect(refusal(await create({ headers: bad }))).toEqual([400, fields]);
    const { id } = await givenEndpoint();
    expect(refusal(await change(id, { headers: bad }))).toEqual([400, fields]);
    expect((await api.call('GET', `/v1/endpoints/${id}`)).json.version).toBe(1);
  });

  it('are refused without their values being repeated', async () => {
    const { id } = await givenEndpoint();
    for (const bad of [{ 'X-A': 'sesame\n' }, { Host: 'sesame' }, { 'X-A': 'sesame', 'x-a': 'b' }]) {
      for (const answer of [await create({ headers: bad }), await change(id, { headers: bad })]) {
        expect(answer.status).toBe(400);
        expect(answer.text).not.toContain('sesame');
      }
    }
  });
});

describe('the header prefix of an endpoint', () => {
  it('is the configured one, shown as null, until it has its own', async () => {
    const { id, header_prefix } = await givenEndpoint();
    expect(header_prefix).toBeNull();
    const answer = await change(id, { header_prefix: 'My-App2' });
    expectEndpoint(answer);
    expect(answer.json.header_prefix).toBe('My-App2');
    expect((await change(id, { header_prefix: null })).json.header_prefix).toBeNull();
  });

  it.each(['', '1st', 'a b', 'a_b', 'a:', 'ä', 'a\r\nb', 'a'.repeat(33), 5])(
    'is refused when it is %j',
    async (bad) => {
      expect(refusal(await create({ header_prefix: bad }))).toEqual([400, ['header_prefix']]);
    },
  );

  it('and custom headers that begin with it refuse each other', async () => {
    expect(refusal(await create({ header_prefix: 'Own', headers: { 'own-key': 'k' } }))).toEqual([
      400,
      ['headers.own-key'],
    ]);
    const { id } = await givenEndpoint({ header_prefix: 'Own', headers: { 'Acme-Key': 'k' } });
    expect(refusal(await change(id, { header_prefix: null }))).toEqual([400, ['header_prefix']]);
    expect(refusal(await change(id, { headers: { 'Own-Key': 'k' } }))).toEqual([400, ['headers.Own-Key']]);
  });
});

describe('a secret that a customer brings', () => {
  it.each([
    ['stripe', 'with a space'],
    ['github', 'short'],
    ['standard', 'no-base64-at-all'],
  ])('is judged by its scheme (%s), and the rule names it', async (scheme, secret) => {
    const answer = await create({ signing_scheme: scheme, secret });
    expect(refusal(answer)).toEqual([400, ['secret']]);
    expect(answer.json.errors[0].rule).toContain(`${scheme} scheme`);
  });

  it.each(['stripe', 'github'])('may be any visible text under %s', async (signing_scheme) => {
    const made = await givenEndpoint({ signing_scheme, secret: 'it-is-"text"' });
    expect(made).toMatchObject({ signing_scheme, secret: 'it-is-"text"' });
  });

  it('is judged again when the scheme changes', async () => {
    const { id } = await givenEndpoint({ signing_scheme: 'github', secret: 'plain-old-secret' });
    expect(refusal(await change(id, { signing_scheme: 'standard' }))).toEqual([400, ['signing_scheme']]);
    expect((await change(id, { signing_scheme: 'stripe' })).json.signing_scheme).toBe('stripe');
    const both = { signing_scheme: 'standard', secret: STANDARD_SECRET };
    expect((await change(id, both)).json.signing_scheme).toBe('standard');
  });

  it('replaces the old one at once under github, and the answer says so', async () => {
    const { id } = await givenEndpoint({ signing_scheme: 'github' });
    const rotated = await api.call('POST', `/v1/endpoints/${id}/rotate-secret`);
    expect(rotated.json).toMatchObject({ id, previous_secret_expires_at: null, version: 2 });
  });
});

describe('the key pair of an endpoint', () => {
  const key = (method: string, id: string) => api.call(method, `/v1/endpoints/${id}/signing-key`);

  it('is made, shown, replaced and taken away', async () => {
    const { id, public_key } = await givenEndpoint({ signing_scheme: 'standard' });
    expect(public_key).toBeNull();
    const made = await key('POST', id);
    expectEndpoint(made);
    expect(made.json).toMatchObject({ id, version: 2, previous_key_expires_at: null });
    expect(made.json.public_key).toMatch(/^whpk_[A-Za-z0-9+/]{43}=$/);
    expect((await api.call('GET', `/v1/endpoints/${id}`)).json.public_key).toBe(made.json.public_key);

    const replaced = await key('POST', id);
    expect(replaced.json.public_key).not.toBe(made.json.public_key);
    const overlapMs =
      Date.parse(replaced.json.previous_key_expires_at) - Date.parse(replaced.json.updated_at);
    expect(overlapMs).toBe(api.config.secretOverlapMs);
    expect(replaced.text + made.text).not.toContain('whsk_');

    expect((await key('DELETE', id)).status).toBe(204);
    expect((await key('DELETE', id)).status).toBe(204);
    const shown = (await api.call('GET', `/v1/endpoints/${id}`)).json;
    expect(shown).toMatchObject({ public_key: null, previous_key_expires_at: null, version: 4 });
  });

  it('is refused under another scheme', async () => {
    const { id } = await givenEndpoint();
    const refused = await key('POST', id);
    expect([refused.status, refused.json.code]).toEqual([409, 'key_pair_refused']);
    expect((await key('DELETE', id)).status).toBe(204);
  });

  it('of an endpoint that hears of all tenants is for admins alone', async () => {
    const { json: tenant } = await api.call('POST', '/v1/tenants', { body: { name: 'a tenant' } });
    const { json: made } = await api.call('POST', '/v1/keys', {
      body: { scopes: ['manage'], tenant_id: tenant.id },
    });
    const { json: endpoint } = await api.call('POST', '/v1/endpoints', {
      headers: { 'relay-tenant-id': tenant.id },
      body: {
        url: 'https://sink.example.com/in',
        signing_scheme: 'standard',
        operational_events: ['*'],
        operational_scope: 'all_tenants',
      },
    });
    const path = `/v1/endpoints/${endpoint.id}/signing-key`;
    for (const method of ['POST', 'DELETE']) {
      expect((await api.call(method, path, { key: made.key })).status).toBe(403);
      const byAdmin = await api.call(method, path, { headers: { 'relay-tenant-id': tenant.id } });
      expect(byAdmin.status).toBe(method === 'POST' ? 200 : 204);
    }
  });

  it('is nothing of an endpoint that does not exist, or is deleted', async () => {
    const { id } = await givenEndpoint({ signing_scheme: 'standard' });
    await key('POST', id);
    await api.call('DELETE', `/v1/endpoints/${id}`);
    for (const gone of [randomUUID(), id]) {
      for (const method of ['POST', 'DELETE']) {
        const answer = await key(method, gone);
        expect([answer.status, answer.json.code]).toEqual([404, 'endpoint_not_found']);
      }
    }
  });
});
