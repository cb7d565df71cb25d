import { createSecretKey } from 'node:crypto';
import { inspect } from 'node:util';
import { afterEach, describe, expect, it } from 'vitest';
import { classify } from '../../../lib/domain/outcome.ts';
import { askedDelayMs } from '../../../lib/domain/retry-after.ts';
import type { SendResult } from '../../../lib/domain/send-result.ts';
import { CHAT_TRANSPORTS, type ChatTransport } from '../../../lib/domain/vocabulary.ts';
import type { Claim } from '../../../lib/store/claims.ts';
import type { ChatDestination } from '../endpoint-cache.ts';
import { sender as newSender, publicOnly } from '../sending/fixtures/requests.ts';
import { type Answer, httpSink, httpsSink, rawSink, type Sink } from '../sending/fixtures/sinks.ts';
import { DnsError } from '../sending/resolver.ts';
import type { SenderOptions } from '../sending/sender.ts';
import { sendChat } from './chat.ts';

const open: { close(): Promise<void> }[] = [];
afterEach(async () => {
  for (const each of open.splice(0).reverse()) await each.close();
});

const TOKENS: Record<ChatTransport, string> = {
  telegram: '123456:AAFtelegramTOKEN_0123456789-abcdef',
  discord: 'DISCORDtoken-0123456789_abcdefghijklmnop',
  slack: 'SLACKtoken0123456789abcd',
};
const ADDRESSES: Record<ChatTransport, string> = { telegram: '@chat', discord: '4711', slack: 'T01/B02' };
const PATHS: Record<ChatTransport, string> = {
  telegram: `/bot${TOKENS.telegram}/sendMessage`,
  discord: `/api/webhooks/4711/${TOKENS.discord}?wait=true`,
  slack: `/services/T01/B02/${TOKENS.slack}`,
};

interface Sending {
  options?: Partial<SenderOptions>;
  totalMs?: number;
  payload?: string;
}

/** Sends one event to a chat whose platform is at `base`. */
function send(
  transport: ChatTransport,
  base: string,
  { options, totalMs = 5_000, payload = '{}' }: Sending = {},
) {
  const sender = newSender(options);
  open.push(sender);
  const destination = {
    transport,
    address: ADDRESSES[transport],
    token: createSecretKey(TOKENS[transport], 'utf8'),
  } as ChatDestination;
  return sendChat(
    { sender, userAgent: 'Relay/1.2.3 (webhooks)', bases: { [transport]: base } },
    destination,
    { type: 'order.created' } as Claim,
    Buffer.from(payload),
    { deadlineAt: performance.now() + totalMs, connectTimeoutMs: totalMs, idleTimeoutMs: totalMs },
  );
}

async function platform(answer?: Answer): Promise<Sink & { base: string }> {
  const sink = await httpSink(answer);
  open.push(sink);
  return Object.assign(sink, { base: `http://127.0.0.1:${sink.port}` });
}

const answering =
  (status: number, body: string, headers: Record<string, string> = {}): Answer =>
  (_, response) =>
    response.writeHead(status, headers).end(body);

/** The secret part of no token, nor more than three characters from its beginning, is in what is kept of a result. */
function expectNoToken(transport: ChatTransport, result: SendResult): void {
  const hidden = TOKENS[transport].split(':').at(-1)!;
  const kept = `${inspect(result, { depth: 9 })} ${result.kind === 'response' ? result.snippet.toString('latin1') : ''}`;
  expect(kept.toLowerCase()).not.toContain(hidden.slice(0, 5).toLowerCase());
}

describe.each(CHAT_TRANSPORTS)('an event for %s', (transport) => {
  it('is posted as JSON to the URL that the token makes, unsigned', async () => {
    const sink = await platform();
    expect(await send(transport, sink.base, { payload: '{"n":1}' })).toMatchObject({
      kind: 'response',
      status: 200,
    });
    const [hit] = sink.hits;
    expect(hit).toMatchObject({ method: 'POST', url: PATHS[transport] });
    expect(hit!.body.toString()).toContain('order.created\\n{\\"n\\":1}');
    expect(hit!.headers).toMatchObject({
      'content-type': 'application/json',
      'user-agent': 'Relay/1.2.3 (webhooks)',
    });
    expect(Object.keys(hit!.headers).filter((name) => /relay|signature|webhook-/.test(name))).toEqual([]);
  });

  it('leaves no token in the answer that quotes it, whole, in capitals or cut', async () => {
    const quoting: Answer = ({ url }, response) =>
      response
        .writeHead(404)
        .end(`no ${url} NOR ${url.toUpperCase()} nor ${'x'.repeat(1_000)}${url.repeat(40)}`);
    const sink = await platform(quoting);
    for (let limit = 1_100; limit < 1_100 + PATHS[transport].length; limit += 7) {
      const result = await send(transport, sink.base, { options: { maxResponseBytes: limit } });
      expect(result).toMatchObject({ kind: 'response', status: 404 });
      expectNoToken(transport, result);
    }
  });

  it('leaves no token in a redirect, which is not followed', async () => {
    const sink = await platform(({ url }, response) => response.writeHead(302, { location: url }).end(url));
    const result = await send(transport, sink.base);
    expect(classify(result)).toEqual({ class: 'permanent', reason: 'permanent_failure' });
    expectNoToken(transport, result);
    expect(sink.hits).toHaveLength(1);
  });

  it.each<[string, () => Promise<SendResult>]>([
    [
      'dns',
      () =>
        send(transport, 'http://platform.example.test', {
          options: { resolver: () => Promise.reject(new DnsError('the name does not exist (ENOTFOUND)')) },
        }),
    ],
    ['refused', () => send(transport, 'http://127.0.0.1:9', { options: { policy: publicOnly } })],
    [
      'connect',
      async () => {
        const closed = await platform();
        await closed.close();
        return send(transport, closed.base);
      },
    ],
    [
      'tls',
      async () => {
        const sink = await httpsSink('self-signed');
        open.push(sink);
        return send(transport, `https://127.0.0.1:${sink.port}`);
      },
    ],
    ['timeout', async () => send(transport, (await platform(() => {})).base, { totalMs: 300 })],
    [
      'protocol',
      async () => {
        const sink = await rawSink((socket) => socket.on('data', (data) => socket.end(data)));
        open.push(sink);
        return send(transport, `http://127.0.0.1:${sink.port}`);
      },
    ],
    [
      'reset',
      async () => {
        const sink = await rawSink((socket) => socket.on('data', () => socket.destroy()));
        open.push(sink);
        return send(transport, `http://127.0.0.1:${sink.port}`);
      },
    ],
  ])('that fails by %s tells so, and no token', async (failure, failing) => {
    const result = await failing();
    expect(result).toMatchObject({ kind: 'failure', failure });
    expectNoToken(transport, result);
  });
});

describe('a platform that asks for a pause', () => {
  it.each<[ChatTransport, string, Record<string, string>, number]>([
    ['telegram', '{"ok":false,"error_code":429,"parameters":{"retry_after":35}}', {}, 35_000],
    [
      'discord',
      '{"message":"You are being rate limited.","retry_after":1.337,"global":false}',
      { 'retry-after': '2' },
      1_337,
    ],
    ['discord', '<html>banned</html>', { 'retry-after': '60' }, 60_000],
    ['slack', '', { 'retry-after': '30' }, 30_000],
  ])('is understood: %s %s', async (transport, body, headers, pauseMs) => {
    const sink = await platform(answering(429, body, headers));
    const result = await send(transport, sink.base);
    expect(classify(result)).toEqual({ class: 'retryable' });
    expect(askedDelayMs(result, Date.now())).toBe(pauseMs);
  });
});

describe('a platform that refuses for good', () => {
  it.each<[ChatTransport, number, string, 'gone' | 'permanent_failure']>([
    [
      'telegram',
      403,
      '{"ok":false,"error_code":403,"description":"Forbidden: bot was blocked by the user"}',
      'permanent_failure',
    ],
    ['telegram', 401, '{"ok":false,"error_code":401,"description":"Unauthorized"}', 'permanent_failure'],
    [
      'telegram',
      400,
      '{"ok":false,"error_code":400,"description":"Bad Request: chat not found"}',
      'permanent_failure',
    ],
    ['discord', 404, '{"message": "Unknown Webhook", "code": 10015}', 'gone'],
    ['discord', 401, '{"message": "Invalid Webhook Token", "code": 50027}', 'permanent_failure'],
    ['slack', 404, 'no_service', 'gone'],
    ['slack', 410, 'channel_is_archived', 'gone'],
    ['slack', 404, 'channel_not_found', 'permanent_failure'],
    ['slack', 403, 'action_prohibited', 'permanent_failure'],
  ])('is believed: %s %d %s', async (transport, status, body, reason) => {
    const sink = await platform(answering(status, body));
    const result = await send(transport, sink.base);
    expect(classify(result)).toEqual({ class: 'permanent', reason });
    // What was answered is recorded, whatever it is read as.
    expect(result).toMatchObject({ status, snippet: Buffer.from(body) });
  });
});
