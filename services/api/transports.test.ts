import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { CHAT_TRANSPORTS, type ChatTransport } from '../../lib/domain/vocabulary.ts';
import { readEndpointConfigs } from '../../lib/store/endpoint-config.ts';
import { openSecret } from '../../lib/store/secret-box.ts';
import { type Answer, startTestApi, type TestApi } from '../testing/api.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import * as shapes from './routes/shapes.ts';

let database: TestDatabase;
let api: TestApi;
let pool: pg.Pool;

beforeAll(async () => {
  database = await createTestDatabase();
  api = await startTestApi(database.url);
  pool = new pg.Pool({ connectionString: database.url, max: 1 });
});
afterAll(async () => {
  await pool.end();
  await api.stop();
  await database.drop();
});

const URLS = {
  telegram: 'telegram://-1001234',
  discord: 'discord://4711',
  slack: 'slack://T01/B02',
  email: 'mailto:ops@example.com',
  http: 'https://sink.example.com/in',
} as const;
const TOKENS: Record<ChatTransport, [string, string]> = {
  telegram: ['123456:AAFfirstTOKEN_0123456789', '123456:AAFsecondTOKEN_0123456789'],
  discord: ['first-DISCORD-token_0123456789', 'second-DISCORD-token_0123456789'],
  slack: ['firstSLACKtoken012345678', 'secondSLACKtoken012345678'],
};

const create = (body: object) => api.call('POST', '/v1/endpoints', { body });
const rotate = (id: string, body?: object) =>
  api.call('POST', `/v1/endpoints/${id}/rotate-secret`, { ...(body ? { body } : {}) });
const patch = (id: string, body: object) => api.call('PATCH', `/v1/endpoints/${id}`, { body });

async function givenChat(transport: ChatTransport): Promise<string> {
  const answer = await create({ transport, url: URLS[transport], secret: TOKENS[transport][0] });
  expect(answer.status).toBe(201);
  return answer.json.id;
}

async function givenEmail(): Promise<string> {
  return (await create({ transport: 'email', url: URLS.email })).json.id;
}

async function storedSecrets(id: string) {
  const config = (await readEndpointConfigs(pool, [id])).get(id)!;
  const open = (sealed: Buffer | null) => sealed && openSecret(api.config.secretKeys, id, sealed);
  return [open(config.secret), open(config.previousSecret)];
}

const refusal = ({ status, json }: Answer) => [status, json.code, json.errors?.[0]?.field];

describe.each(CHAT_TRANSPORTS)('a %s endpoint', (transport) => {
  const [token, next] = TOKENS[transport];

  it('is registered with its address and the token of the platform, which no answer shows', async () => {
    const answer = await create({ transport, url: URLS[transport], secret: token });
    expect(shapes.NewEndpointShape.safeParse(answer.json).error?.issues ?? []).toEqual([]);
    expect(answer.json).toMatchObject({
      transport,
      url: URLS[transport],
      secret: null,
      signing_scheme: null,
    });
    const shown = [
      answer,
      await api.call('GET', `/v1/endpoints/${answer.json.id}`),
      await api.call('GET', '/v1/endpoints'),
    ];
    for (const { text } of shown) expect(text).not.toContain(token.slice(-12));
    expect(await storedSecrets(answer.json.id)).toEqual([token, null]);
  });

  it('is refused without a token, with one of another form, and with another address, repeating none', async () => {
    const missing = await create({ transport, url: URLS[transport] });
    expect(refusal(missing)).toEqual([400, 'invalid_request', 'secret']);
    expect(missing.json.errors[0].rule).toContain(`only ${transport} can give it out`);
    const wrong = await create({ transport, url: URLS[transport], secret: `${token}/../x` });
    expect(refusal(wrong)).toEqual([400, 'invalid_request', 'secret']);
    const asUrl = await create({ transport, url: `https://platform.example.com/${token}`, secret: token });
    expect(refusal(asUrl)).toEqual([400, 'invalid_request', 'url']);
    for (const { text } of [wrong, asUrl]) expect(text).not.toContain(token.slice(-12));
  });

  it.each([
    ['signing_scheme', { signing_scheme: 'standard' }],
    ['headers', { headers: { 'X-A': 'b' } }],
    ['header_prefix', { header_prefix: 'Acme' }],
  ])('has no %s of its own', async (field, settings) => {
    const answer = await create({ transport, url: URLS[transport], secret: token, ...settings });
    expect(refusal(answer)).toEqual([400, 'invalid_request', field]);
    expect(refusal(await patch(await givenChat(transport), settings))).toEqual([
      400,
      'invalid_request',
      field,
    ]);
  });

  it('keeps its token when it is told to rotate and not to what', async () => {
    const id = await givenChat(transport);
    for (const answer of [await rotate(id), await rotate(id, {})]) {
      expect(refusal(answer)).toEqual([400, 'invalid_request', 'secret']);
      expect(answer.json.errors[0].rule).toContain(`only ${transport} can give it out`);
    }
    expect(refusal(await rotate(id, { secret: 'whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz' }))[2]).toBe('secret');
    expect(await storedSecrets(id)).toEqual([token, null]);
    expect((await api.call('GET', `/v1/endpoints/${id}`)).json.version).toBe(1);
  });

  it('takes a new token in place of the old one, at once, by either way', async () => {
    const id = await givenChat(transport);
    const rotated = await rotate(id, { secret: next });
    expect(rotated.json).toEqual({ id, secret: null, previous_secret_expires_at: null, version: 2 });
    expect(shapes.RotationShape.safeParse(rotated.json).success).toBe(true);
    expect(await storedSecrets(id)).toEqual([next, null]);
    const patched = await patch(id, { secret: token });
    expect(patched).toMatchObject({ status: 200, json: { version: 3, previous_secret_expires_at: null } });
    expect(patched.text).not.toContain(token.slice(-12));
    expect(await storedSecrets(id)).toEqual([token, null]);
  });

  it('may move to another address of its form, and to no other transport', async () => {
    const id = await givenChat(transport);
    const moved = { telegram: 'telegram://@other', discord: 'discord://1', slack: 'slack://T9/B9' }[
      transport
    ];
    expect((await patch(id, { url: moved, transport })).json).toMatchObject({ url: moved, transport });
    for (const url of [URLS.http, URLS.email]) expect(refusal(await patch(id, { url }))[2]).toBe('url');
    for (const other of ['http', 'email'])
      expect(refusal(await patch(id, { transport: other }))).toEqual([400, 'invalid_request', 'transport']);
  });

  it('has no key pair', async () => {
    const id = await givenChat(transport);
    const answer = await api.call('POST', `/v1/endpoints/${id}/signing-key`);
    expect([answer.status, answer.json.code]).toEqual([409, 'key_pair_refused']);
  });

  it('is nothing that another tenant can see or change', async () => {
    const tenant = await api.call('POST', '/v1/tenants', { body: { name: transport } });
    const headers = { 'relay-tenant-id': tenant.json.id };
    const id = await givenChat(transport);
    const body = { secret: next };
    for (const [method, path] of [
      ['PATCH', ''],
      ['POST', '/rotate-secret'],
    ] as const) {
      const answer = await api.call(method, `/v1/endpoints/${id}${path}`, { body, headers });
      expect([answer.status, answer.json.code]).toEqual([404, 'endpoint_not_found']);
    }
    expect(await storedSecrets(id)).toEqual([token, null]);
  });
});

describe('an email endpoint', () => {
  it('is registered with its address alone', async () => {
    const answer = await create({ transport: 'email', url: URLS.email });
    expect(answer).toMatchObject({
      status: 201,
      json: { transport: 'email', url: URLS.email, secret: null, signing_scheme: null },
    });
    expect(await storedSecrets(answer.json.id)).toEqual(['', null]);
  });

  it('has no secret to be given or replaced', async () => {
    const id = await givenEmail();
    const secret = 'whatever-it-may-be';
    for (const answer of [
      await create({ transport: 'email', url: URLS.email, secret }),
      await patch(id, { secret }),
      await rotate(id, { secret }),
      await rotate(id),
    ]) {
      expect(refusal(answer)).toEqual([400, 'invalid_request', 'secret']);
      expect(answer.text).not.toContain(secret);
    }
  });

  it('names one recipient, and cannot smuggle in another', async () => {
    for (const url of [
      'mailto:a@b.example,c@d.example',
      'mailto:a@b.example?bcc=c@d.example',
      'mailto:a@b.example\r\nBcc: c@d.example',
    ])
      expect(refusal(await create({ transport: 'email', url }))).toEqual([400, 'invalid_request', 'url']);
  });
});

describe('an http endpoint', () => {
  it('takes no address of another transport, and is made no other', async () => {
    for (const url of [URLS.telegram, URLS.email]) {
      const answer = await create({ url });
      expect([answer.status, answer.json.code]).toEqual([422, 'endpoint_refused']);
    }
    const { id } = (await create({ url: URLS.http })).json;
    expect(refusal(await patch(id, { transport: 'slack' }))).toEqual([400, 'invalid_request', 'transport']);
    expect((await patch(id, { transport: 'http' })).status).toBe(200);
  });
});
