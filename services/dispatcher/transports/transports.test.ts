import pg from 'pg';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { parseDispatcherConfig } from '../../../lib/config/dispatcher.ts';
import { CHAT_TRANSPORTS, type ChatTransport } from '../../../lib/domain/vocabulary.ts';
import { createLineLogger, createLogger } from '../../../lib/runtime/log.ts';
import type { Claim } from '../../../lib/store/claims.ts';
import { SECRET_KEYS, startTestApi, type TestApi } from '../../testing/api.ts';
import { createTestDatabase, type TestDatabase } from '../../testing/database.ts';
import { eventually } from '../../testing/eventually.ts';
import { startDispatcher } from '../dispatcher.ts';
import type { EmailDestination } from '../endpoint-cache.ts';
import { sender } from '../sending/fixtures/requests.ts';
import { type Answer, answerOk, httpSink, type Sink } from '../sending/fixtures/sinks.ts';
import { type MailServer, startMailServer } from './fixtures/mail-server.ts';
import { Transports } from './transports.ts';

let database: TestDatabase;
let api: TestApi;
let pool: pg.Pool;
let dispatcher: Awaited<ReturnType<typeof startDispatcher>>;
let platform: Sink;
let mails: MailServer;
/** What the platform answers in this test. */
let answer: Answer;
/** What the mail server does before it takes a mail. */
let beforeTaking: () => Promise<void>;
const logged: string[] = [];

beforeAll(async () => {
  database = await createTestDatabase();
  api = await startTestApi(database.url);
  pool = new pg.Pool({ connectionString: database.url, max: 1 });
  platform = await httpSink((hit, response) => answer(hit, response));
  mails = await startMailServer({
    disabledCommands: ['STARTTLS'],
    toMail: () => beforeTaking().then(() => null),
  });
  const config = parseDispatcherConfig({
    DATABASE_URL: database.url,
    RELAY_SECRET_KEYS: SECRET_KEYS,
    RELAY_METRICS_BIND: '127.0.0.1:0',
    RELAY_ALLOW_PRIVATE_ENDPOINTS: 'true',
    RELAY_IDLE_POLL_MS: '20',
    RELAY_SMTP_URL: `smtp://127.0.0.1:${mails.port}`,
    RELAY_SMTP_FROM: 'relay@sender.example.com',
    RELAY_SMTP_CONNECTIONS: '1',
    RELAY_RETRY_BASE_MS: '60000',
  });
  const logging = {
    service: 'dispatcher',
    level: 'trace',
    format: 'json',
    write: (line: string) => logged.push(line),
  } as const;
  const base = `http://127.0.0.1:${platform.port}`;
  dispatcher = await startDispatcher({
    config,
    log: createLogger(logging),
    lines: createLineLogger(logging),
    version: '1.2.3',
    platforms: { telegram: base, discord: base, slack: base },
  });
});
afterAll(async () => {
  await dispatcher.stop();
  await pool.end();
  await api.stop();
  await Promise.all([platform.close(), mails.close()]);
  await database.drop();
});
beforeEach(() => {
  answer = answerOk;
  beforeTaking = async () => {};
});
afterEach(() => {
  platform.hits.length = 0;
  mails.mails.length = 0;
});

const URLS: Record<ChatTransport, string> = {
  telegram: 'telegram://@chat',
  discord: 'discord://4711',
  slack: 'slack://T01/B02',
};
const TOKENS: Record<ChatTransport, string> = {
  telegram: '123456:AAFtelegramTOKEN_0123456789',
  discord: 'DISCORDtoken_0123456789-abcdef',
  slack: 'SLACKtoken0123456789abcd',
};
const hiddenIn = (token: string) => token.split(':').at(-1)!;

let types = 0;
/** An endpoint that subscribes to a type of its own. */
async function endpoint(settings: object): Promise<{ id: string; type: string }> {
  types += 1;
  const type = `test.${types}`;
  const made = await api.call('POST', '/v1/endpoints', { body: { ...settings, event_types: [type] } });
  expect(made.status).toBe(201);
  return { id: made.json.id, type };
}

const chat = (transport: ChatTransport) =>
  endpoint({ transport, url: URLS[transport], secret: TOKENS[transport] });

async function post(type: string): Promise<string> {
  const posted = await api.call('POST', '/v1/events', { body: { type, n: 1 } });
  expect(posted.json.delivery_ids).toHaveLength(1);
  return posted.json.delivery_ids[0];
}

/** The delivery with its log, once its first attempt is recorded. */
async function attempted(id: string) {
  return eventually(async () => {
    const { json } = await api.call('GET', `/v1/deliveries/${id}`);
    expect(json.delivery.attempt).toBeGreaterThan(0);
    expect(json.delivery.status).not.toBe('inflight');
    return json;
  });
}

describe.each(CHAT_TRANSPORTS)('an event for %s', (transport) => {
  it('is delivered, and recorded like any other', async () => {
    const { type } = await chat(transport);
    const { delivery, attempts } = await attempted(await post(type));
    expect(delivery).toMatchObject({ status: 'succeeded', attempt: 1, sends: 1 });
    expect(attempts).toMatchObject([{ outcome_class: 'success', http_status: 200, response_snippet: 'ok' }]);
    expect(platform.hits[0]!.url).toContain(TOKENS[transport]);
  });

  it('tells its token nowhere when it fails: in no record, answer, log or metric', async () => {
    answer = ({ url }, response) => response.writeHead(400).end(`cannot POST ${url}`);
    const { id, type } = await chat(transport);
    const deliveryId = await post(type);
    expect(await attempted(deliveryId)).toMatchObject({
      delivery: { status: 'dead', dead_reason: 'permanent_failure' },
    });
    const metrics = await (await fetch(new URL('/metrics', dispatcher.metricsUrl))).text();
    const answers = [
      await api.call('GET', `/v1/deliveries/${deliveryId}`),
      await api.call('GET', `/v1/dlq?endpoint_id=${id}`),
      await api.call('GET', `/v1/endpoints/${id}/deliveries`),
      await api.call('GET', `/v1/endpoints/${id}`),
    ];
    const { rows } = await pool.query(
      'select a::text as row from relay.delivery_attempts a where delivery_id = $1',
      [deliveryId],
    );
    await eventually(() => expect(logged.join('')).toContain(deliveryId));
    const told = [metrics, logged.join(''), JSON.stringify(rows), ...answers.map(({ text }) => text)];
    for (const text of told) expect(text).not.toContain(hiddenIn(TOKENS[transport]).slice(0, 8));
    expect(answers[0]!.text).toContain('[redacted]');
    expect(answers[1]!.text).toContain(URLS[transport]);
  });

  it('goes by the newest token alone, from the moment it is replaced', async () => {
    const { id, type } = await chat(transport);
    await attempted(await post(type));
    const next = TOKENS[transport].replace(/0123/, '9999');
    await api.call('POST', `/v1/endpoints/${id}/rotate-secret`, { body: { secret: next } });
    await attempted(await post(type));
    expect(platform.hits.map(({ url }) => url.includes(next))).toEqual([false, true]);
  });
});

describe('a chat platform', () => {
  it('that asks in its body for a pause is given it', async () => {
    answer = (_, response) => response.writeHead(429).end('{"ok":false,"parameters":{"retry_after":600}}');
    const { id, type } = await chat('telegram');
    const { delivery, attempts } = await attempted(await post(type));
    expect(delivery).toMatchObject({ status: 'pending' });
    expect(attempts).toMatchObject([{ outcome_class: 'retryable', http_status: 429 }]);
    await eventually(async () => {
      const { json } = await api.call('GET', `/v1/endpoints/${id}`);
      expect(json.paused_reason).toBe('retry_after');
      expect(Date.parse(json.paused_until) - Date.now()).toBeGreaterThan(500_000);
    });
  });

  it('that says that a webhook was removed is not asked again: the endpoint is disabled', async () => {
    answer = (_, response) => response.writeHead(404).end('no_service');
    const { id, type } = await chat('slack');
    expect(await attempted(await post(type))).toMatchObject({
      delivery: { status: 'dead', dead_reason: 'gone' },
      attempts: [{ http_status: 404, response_snippet: 'no_service' }],
    });
    await eventually(async () => {
      const { json } = await api.call('GET', `/v1/endpoints/${id}`);
      expect(json).toMatchObject({ enabled: false, disabled_reason: 'gone' });
    });
  });
});

describe('email', () => {
  it('carries an event to the address of its endpoint', async () => {
    const { type } = await endpoint({ transport: 'email', url: 'mailto:ops@example.com' });
    const id = await post(type);
    const { delivery, attempts } = await attempted(id);
    expect(delivery).toMatchObject({ status: 'succeeded', last_http_status: null });
    expect(attempts).toMatchObject([{ http_status: null, response_snippet: expect.stringMatching(/^250 /) }]);
    expect(mails.mails).toMatchObject([{ to: ['ops@example.com'] }]);
    expect(mails.mails[0]!.headers).toMatchObject({
      subject: type,
      'message-id': `<${id}@sender.example.com>`,
    });
    expect(mails.mails[0]!.body).toContain(`${type}\r\n\r\n{"type":"${type}","n":1}`);
  });

  it('carries a finished message as it is', async () => {
    const { id } = await endpoint({ transport: 'email', url: 'mailto:ops@example.com' });
    const message = {
      kind: 'email',
      idempotencyKey: 'mail-1',
      endpointId: id,
      to: 'ada@example.com',
      subject: 'Welcome',
      html: '<p>Hello</p>',
      text: 'Hello',
      headers: { 'Reply-To': 'help@example.com' },
    };
    const posted = await api.call('POST', '/v1/messages', { body: message });
    expect(posted.status).toBe(202);
    expect(await attempted(posted.json.delivery_ids[0])).toMatchObject({ delivery: { status: 'succeeded' } });
    expect(mails.mails).toMatchObject([
      { to: ['ada@example.com'], headers: { subject: 'Welcome', 'reply-to': 'help@example.com' } },
    ]);
  });

  it('that is posted as a message and is none ends refused, unsent', async () => {
    const { type } = await endpoint({ transport: 'email', url: 'mailto:ops@example.com' });
    const headers = { 'relay-event-type': type, 'content-type': 'application/vnd.relay.email+json' };
    const raw = '{"to":"a@example.com","subject":"s\\r\\nBcc: eve@example.com","html":"","text":"t"}';
    const posted = await api.call('POST', '/v1/events', { raw, headers });
    const { delivery, attempts } = await attempted(posted.json.delivery_ids[0]);
    expect(delivery).toMatchObject({ status: 'dead', dead_reason: 'refused' });
    expect(attempts[0].error).toContain('refused: the message cannot be sent: subject must be');
    expect(mails.mails).toEqual([]);
  });

  it('that finds every connection taken goes back unsent, and spends nothing', async () => {
    let taken = () => {};
    const open = new Promise<void>((resolve) => (taken = resolve));
    beforeTaking = () => open;
    const { type } = await endpoint({
      transport: 'email',
      url: 'mailto:ops@example.com',
      rate_per_second: 100,
    });
    const ids = [await post(type), await post(type)];
    await eventually(async () => {
      const metrics = await (await fetch(new URL('/metrics', dispatcher.metricsUrl))).text();
      expect(Number(/^relay_deliveries_released_total (\d+)/m.exec(metrics)?.[1])).toBeGreaterThan(0);
    });
    taken();
    for (const id of ids) {
      const { delivery, attempts } = await eventually(async () => {
        const { json } = await api.call('GET', `/v1/deliveries/${id}`);
        expect(json.delivery.status).toBe('succeeded');
        return json;
      });
      expect([delivery.attempt, delivery.sends, attempts.length]).toEqual([1, 1, 1]);
    }
  });

  it('without a mail server spends its attempts, and says what is missing', async () => {
    const transports = new Transports({ sender: sender(), userAgent: 'x', mailer: null });
    const limits = { deadlineAt: performance.now() + 1_000, connectTimeoutMs: 1_000, idleTimeoutMs: 1_000 };
    const destination = { transport: 'email', address: 'ops@example.com' } as EmailDestination;
    const result = await transports.send(
      destination,
      { type: 't', contentType: 'text/plain' } as Claim,
      Buffer.alloc(0),
      limits,
    );
    expect(result).toMatchObject({
      kind: 'failure',
      failure: 'other',
      detail: 'no mail server is configured (RELAY_SMTP_URL)',
    });
  });
});
