import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type MailServer, startMailServer } from '../dispatcher/transports/fixtures/mail-server.ts';
import { verificationKey, verifySignature } from '../receiver/signatures.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';
import { type Fleet, startFleet } from '../testing/fleet.ts';
import { messageFixtures } from '../testing/message-fixtures.ts';
import { createTestRedis } from '../testing/redis.ts';
import { type ScriptedSink, type SunkRequest, startScriptedSink } from '../testing/scripted-sink.ts';

let database: TestDatabase;
let fleet: Fleet;
let sink: ScriptedSink;
let mail: MailServer;

beforeAll(async () => {
  [database, sink, mail] = await Promise.all([
    createTestDatabase(),
    startScriptedSink(),
    startMailServer({ hideSTARTTLS: true }),
  ]);
  fleet = await startFleet({
    databaseUrl: database.url,
    redisUrl: createTestRedis().url,
    env: {
      RELAY_SMTP_URL: `smtp://127.0.0.1:${mail.port}`,
      RELAY_SMTP_FROM: 'Relay <relay@sender.example.com>',
    },
  });
  await Promise.all([fleet.start('api'), fleet.start('dispatcher'), fleet.start('reconciler')]);
});
afterAll(async () => {
  await fleet.stop();
  await Promise.all([sink.close(), mail.close()]);
  await database.drop();
});

const QUICK = { retry_policy: { max_attempts: 5, base_ms: 100, factor: 1, cap_ms: 1_000 } };

async function endpointAt(path: string) {
  return fleet.endpoint('', { url: sink.url + path, event_types: [`t.${path.slice(1)}`], ...QUICK });
}

async function becomes(id: string, status: string): Promise<void> {
  await eventually(async () => {
    const { json } = await fleet.call('GET', `/v1/deliveries/${id}`);
    expect(json.delivery.status).toBe(status);
  }, 15_000);
}

/** The judgement of a receiver that knows the protocol from its documentation. */
function verdict(request: SunkRequest, secret: string) {
  return verifySignature(request.headers, request.body, {
    keys: [verificationKey(secret)],
    nowSeconds: Math.floor(request.atMs / 1000),
    toleranceSeconds: 300,
    headerPrefix: 'relay',
  });
}

/** What a program that parses and prints would change (case O-13). */
const ODD = [
  '{"b":1, "10":2,"2":3,\t"a":[12345678901234567890,1e21,1.0,-0,1e400,0.1000],"b":"twice","z":"\\u0000"}',
  '{"half":"\\ud83d","whole":"😀"}',
  '"text"',
  '7',
];

describe('a batch', { timeout: 40_000 }, () => {
  it.each([
    ['NDJSON', 'application/x-ndjson', (items: string[]) => items.join('\n')],
    ['a JSON array', 'application/json', (items: string[]) => `[ ${items.join(' ,\n ')} ]`],
  ])(
    'arrives as the bytes that were posted, on retries and replays too, and verifies: %s',
    async (form, type, join) => {
      const path = `/batch-${form.length}`;
      const endpoint = await endpointAt(path);
      sink.script(path, ...ODD.map(() => ({ status: 503 })), ...ODD.map(() => ({ status: 404 })), {
        status: 200,
      });
      const items = ODD.map((payload) => `{"payload": ${payload} ,"type":"t.${path.slice(1)}"}`);
      const answer = await fleet.call('POST', '/v1/events/batch', {
        raw: join(items),
        headers: { 'content-type': type },
      });
      expect([answer.status, answer.json.accepted]).toEqual([202, ODD.length]);
      const ids: string[] = answer.json.results.map(
        (result: { delivery_ids: string[] }) => result.delivery_ids[0],
      );
      for (const id of ids) await becomes(id, 'dead');
      for (const id of ids)
        expect((await fleet.call('POST', `/v1/deliveries/${id}/replay`)).status).toBe(202);
      for (const id of ids) await becomes(id, 'succeeded');
      for (const [n, id] of ids.entries()) {
        const requests = sink.requests(path).filter(({ headers }) => headers['relay-delivery-id'] === id);
        expect(requests.map(({ body }) => body.toString())).toEqual([ODD[n], ODD[n], ODD[n]]);
        for (const request of requests) expect(verdict(request, endpoint.secret).ok).toBe(true);
      }
    },
  );
});

describe('finished messages', { timeout: 40_000 }, () => {
  it('over HTTP arrive as the shared examples say', async () => {
    const endpoint = await endpointAt('/message');
    sink.script('/message', { status: 200 });
    for (const { message, event } of messageFixtures('webhook')) {
      const answer = await fleet.call('POST', '/v1/messages', {
        body: { ...message, endpointId: endpoint.id },
      });
      expect(answer.status).toBe(202);
      await becomes(answer.json.delivery_ids[0], 'succeeded');
      const request = sink.requests('/message').at(-1)!;
      expect([request.headers['relay-event-type'], request.headers['content-type']]).toEqual([
        event.type,
        event.contentType,
      ]);
      expect(request.body.toString()).toBe(event.payload);
      expect(verdict(request, endpoint.secret).ok).toBe(true);
    }
  });

  it('by email arrive as the shared examples say, at the recipients that they name', async () => {
    const made = await fleet.call('POST', '/v1/endpoints', {
      body: { transport: 'email', url: 'mailto:nobody@example.com', event_types: ['nothing'] },
    });
    expect(made.status).toBe(201);
    const answer = await fleet.call('POST', '/v1/events/batch', {
      body: messageFixtures('email').map(({ message }) => message),
    });
    expect(answer.status).toBe(202);
    for (const result of answer.json.results) await becomes(result.delivery_ids[0], 'succeeded');
    for (const { message } of messageFixtures('email')) {
      const to = [message.to].flat();
      const taken = mail.mails.filter((one) => one.to.join() === to.join());
      expect(taken).toHaveLength(1);
      const { headers, raw } = taken[0]!;
      for (const [name, value] of Object.entries(message.headers ?? {}))
        expect(headers[name.toLowerCase()]).toBe(value);
      if (message.html === '') {
        expect(headers.subject).toBe(message.subject);
        expect(raw).toContain(message.text);
      }
    }
  });
});
