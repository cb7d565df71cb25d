import { createPublicKey, verify } from 'node:crypto';
import { verify as verifyGithub } from '@octokit/webhooks-methods';
import { Webhook } from 'standardwebhooks';
import Stripe from 'stripe';
import { Webhook as SvixWebhook } from 'svix';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { verificationKey, verifySignature } from '../receiver/signatures.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';
import { type Fleet, startFleet } from '../testing/fleet.ts';
import { createTestRedis } from '../testing/redis.ts';
import { type ScriptedSink, type SunkRequest, startScriptedSink } from '../testing/scripted-sink.ts';

let database: TestDatabase;
let fleet: Fleet;
let sink: ScriptedSink;

beforeAll(async () => {
  [database, sink] = await Promise.all([createTestDatabase(), startScriptedSink()]);
  fleet = await startFleet({ databaseUrl: database.url, redisUrl: createTestRedis().url });
  await Promise.all([fleet.start('api'), fleet.start('dispatcher')]);
});
afterAll(async () => {
  await fleet.stop();
  await sink.close();
  await database.drop();
});

async function endpointAt(path: string, settings: Record<string, unknown> = {}) {
  sink.script(path, { status: 200 });
  const type = `t.${path.slice(1)}`;
  const endpoint = await fleet.endpoint('', { url: sink.url + path, event_types: [type], ...settings });
  return { ...endpoint, type, path };
}

type At = Awaited<ReturnType<typeof endpointAt>>;

/** Posts an event and gives the request by which it came. */
async function deliver({ type, path }: At, body: string): Promise<SunkRequest & { id: string }> {
  const { status, json } = await fleet.call('POST', '/v1/events', {
    raw: body,
    headers: { 'relay-event-type': type, 'content-type': 'application/json' },
  });
  expect(status).toBe(202);
  const [id] = json.delivery_ids;
  return eventually(() => {
    const request = sink.requests(path).find((one) => Object.values(one.headers).includes(id));
    if (!request) throw new Error(`${id} has not arrived`);
    return { ...request, id };
  });
}

async function rotate({ id }: At, secret?: string): Promise<string> {
  const body = secret === undefined ? {} : { secret };
  const { status, json } = await fleet.call('POST', `/v1/endpoints/${id}/rotate-secret`, { body });
  expect(status).toBe(200);
  return json.secret;
}

async function makeKeyPair({ id }: At): Promise<string> {
  const { status, json } = await fleet.call('POST', `/v1/endpoints/${id}/signing-key`);
  expect(status).toBe(200);
  return json.public_key;
}

/** The judgement of our own receiver, by what it was given: secrets or public keys. */
function verdict({ headers, body, atMs }: SunkRequest, secret: string) {
  return verifySignature(headers, body, {
    keys: [verificationKey(secret)],
    nowSeconds: Math.floor(atMs / 1000),
    toleranceSeconds: 300,
    headerPrefix: 'relay',
  });
}

describe('a delivery under the scheme of Stripe', { timeout: 40_000 }, () => {
  const { webhooks } = new Stripe('sk_test_none');
  const construct = ({ body, headers }: SunkRequest, secret: string) =>
    webhooks.constructEvent(body, headers['stripe-signature']!, secret);

  it('satisfies the official package, and during a rotation those who know either secret', async () => {
    const endpoint = await endpointAt('/stripe', { signing_scheme: 'stripe' });
    const before = await deliver(endpoint, '{"n":1}');
    expect(construct(before, endpoint.secret)).toEqual({ n: 1 });
    const fresh = await rotate(endpoint, 'a-secret-of-ones-own');
    const during = await deliver(endpoint, '{"n":2}');
    for (const secret of [fresh, endpoint.secret]) {
      expect(construct(during, secret)).toEqual({ n: 2 });
      expect(verdict(during, secret)).toEqual({ ok: true, scheme: 'stripe' });
    }
    expect(() => construct(before, fresh)).toThrow();
    expect(() => construct({ ...during, body: Buffer.from('{"n":3}') }, fresh)).toThrow();
  });
});

describe('a delivery under the scheme of GitHub', { timeout: 40_000 }, () => {
  const verifies = ({ body, headers }: SunkRequest, secret: string) =>
    verifyGithub(secret, body.toString(), headers['x-hub-signature-256']!);

  it('satisfies the official package, and after a rotation by the new secret alone', async () => {
    const endpoint = await endpointAt('/github', { signing_scheme: 'github' });
    const before = await deliver(endpoint, '{"n":1}');
    expect(await verifies(before, endpoint.secret)).toBe(true);
    expect(before.headers).toMatchObject({
      'x-github-event': endpoint.type,
      'x-github-delivery': before.id,
      'relay-delivery-id': before.id,
    });
    const fresh = await rotate(endpoint);
    const after = await deliver(endpoint, '{"n":2}');
    expect(await verifies(after, fresh)).toBe(true);
    expect(await verifies(after, endpoint.secret)).toBe(false);
    expect(await verifies({ ...after, body: Buffer.from('{"n":3}') }, fresh)).toBe(false);
    expect(verdict(after, fresh)).toEqual({ ok: true, scheme: 'github' });
  });
});

describe('a delivery that a key pair signs too', { timeout: 40_000 }, () => {
  /** What a receiver can do that has nothing but public keys. */
  function verifiesWith(publicKey: string, { headers, body }: SunkRequest): boolean {
    const x = Buffer.from(publicKey.slice('whpk_'.length), 'base64').toString('base64url');
    const key = createPublicKey({ key: { kty: 'OKP', crv: 'Ed25519', x }, format: 'jwk' });
    const signed = `${headers['webhook-id']}.${headers['webhook-timestamp']}.${body}`;
    const parts = headers['webhook-signature']!.split(' ').filter((part) => part.startsWith('v1a,'));
    return parts.some((part) => verify(null, Buffer.from(signed), key, Buffer.from(part.slice(4), 'base64')));
  }

  it('is verified from either public key of a rotation, and by the official packages from the secret', async () => {
    const endpoint = await endpointAt('/pair', { signing_scheme: 'standard' });
    const first = await makeKeyPair(endpoint);
    const before = await deliver(endpoint, '{"n":1}');
    expect(verifiesWith(first, before)).toBe(true);
    const second = await makeKeyPair(endpoint);
    const during = await deliver(endpoint, '{"n":2}');
    for (const publicKey of [first, second]) {
      expect(verifiesWith(publicKey, during)).toBe(true);
      expect(verdict(during, publicKey)).toEqual({ ok: true, scheme: 'standard' });
    }
    expect(verifiesWith(second, before)).toBe(false);
    expect(verifiesWith(first, { ...during, body: Buffer.from('{"n":3}') })).toBe(false);
    for (const webhook of [new Webhook(endpoint.secret), new SvixWebhook(endpoint.secret)]) {
      expect(webhook.verify(during.body, during.headers)).toEqual({ n: 2 });
    }

    await fleet.call('DELETE', `/v1/endpoints/${endpoint.id}/signing-key`);
    const without = await deliver(endpoint, '{"n":3}');
    expect(without.headers['webhook-signature']).not.toContain('v1a');
    expect(verdict(without, endpoint.secret).ok).toBe(true);
  });
});

describe('headers of the owner', { timeout: 40_000 }, () => {
  it("are sent as they are, under the endpoint's own prefix, and what is changed holds for the next delivery", async () => {
    const endpoint = await endpointAt('/own', {
      headers: { Authorization: 'Bearer sesame-1', 'X-Tab': 'a\tb' },
      header_prefix: 'Acme',
    });
    const { headers, id } = await deliver(endpoint, '{}');
    expect(headers).toMatchObject({
      authorization: 'Bearer sesame-1',
      'x-tab': 'a\tb',
      'acme-delivery-id': id,
      'acme-attempt': '1',
      'user-agent': expect.stringMatching(/^Acme\//),
    });
    expect(Object.keys(headers).join() + headers['user-agent']).not.toMatch(/relay/i);

    await fleet.call('PATCH', `/v1/endpoints/${endpoint.id}`, {
      body: { headers: { Authorization: 'Bearer sesame-2', 'X-Tab': null }, header_prefix: null },
    });
    const changed = (await deliver(endpoint, '{"n":2}')).headers;
    expect(changed).toMatchObject({
      authorization: 'Bearer sesame-2',
      'x-tab': 'a\tb',
      'relay-attempt': '1',
    });
  });

  it('leave no trace in the log, in metrics, or in what is stored of an attempt, however it fails', async () => {
    const endpoint = await endpointAt('/secretive', { headers: { Authorization: 'Bearer sesame-3' } });
    sink.script('/secretive', { status: 400, body: 'no' });
    const unreachable = await fleet.endpoint('', {
      url: 'http://127.0.0.1:1/in',
      event_types: [endpoint.type],
      headers: { Authorization: 'Bearer sesame-3' },
      retry_policy: { max_attempts: 1 },
    });
    const { status, json } = await fleet.call('POST', '/v1/events', { body: { type: endpoint.type } });
    expect([status, json.delivery_ids.length]).toEqual([202, 2]);
    const answers = await eventually(async () => {
      const read = json.delivery_ids.map((id: string) => fleet.call('GET', `/v1/deliveries/${id}`));
      const all = (await Promise.all(read)) as Awaited<ReturnType<Fleet['call']>>[];
      for (const answer of all) expect(answer.json.delivery.status).toBe('dead');
      return all;
    }, 15_000);
    expect(sink.requests('/secretive')[0]?.headers.authorization).toBe('Bearer sesame-3');
    const pages = [
      ...answers,
      await fleet.call('GET', `/v1/endpoints/${unreachable.id}`),
      await fleet.call('GET', '/metrics'),
    ];
    const logs = fleet.processes.map((process) => JSON.stringify(process.log()));
    expect([...pages.map(({ text }) => text), ...logs].join('\n')).not.toContain('sesame');
  });
});
