import { inspect } from 'node:util';
import { afterEach, describe, expect, it, vi } from 'vitest';
import type { SmtpConfig } from '../../../lib/config/smtp.ts';
import { classify } from '../../../lib/domain/outcome.ts';
import type { SendResult } from '../../../lib/domain/send-result.ts';
import { eventually } from '../../testing/eventually.ts';
import { fixture, rawSink } from '../sending/fixtures/sinks.ts';
import { DnsError } from '../sending/resolver.ts';
import { type MailServer, type MailServerOptions, refusal, startMailServer } from './fixtures/mail-server.ts';
import type { Mail } from './mail-bytes.ts';
import { Mailer, type MailerOptions } from './mailer.ts';

const open: { close(): unknown }[] = [];
afterEach(async () => {
  vi.unstubAllEnvs();
  for (const each of open.splice(0).reverse()) await each.close();
});

const DELIVERY = '018bcfe5-6800-7000-8f2c-9d1e5b7a0001';
const MAIL: Mail = {
  deliveryId: DELIVERY,
  to: ['ada@example.com'],
  subject: 'order.created',
  text: 'order.created\n\n{"n": 1}\n.\n',
  html: '',
  headers: { 'Auto-Submitted': 'auto-generated' },
};
const DATE = Date.UTC(2026, 11, 1, 12);

const SERVER: SmtpConfig = {
  host: 'mail.example.test',
  port: 0,
  implicitTls: false,
  requireTls: true,
  user: null,
  password: null,
  from: { name: 'Relay', address: 'relay@sender.example.com' },
  allowPrivate: true,
  maxConnections: 4,
};

function mailer(
  port: number,
  server: Partial<SmtpConfig> = {},
  options: Partial<MailerOptions> = {},
): Mailer {
  const made = new Mailer({
    server: { ...SERVER, port, host: 'sink.example.test', ...server },
    idleTimeoutMs: 2_000,
    now: () => DATE,
    ca: fixture('ca.pem'),
    resolver: async () => ['127.0.0.1'],
    ...options,
  });
  open.push(made);
  return made;
}

async function mailServer(options?: MailServerOptions): Promise<MailServer> {
  const server = await startMailServer(options);
  open.push(server);
  return server;
}

function send(through: Mailer, mail: Partial<Mail> = {}, totalMs = 5_000) {
  const limits = {
    deadlineAt: performance.now() + totalMs,
    connectTimeoutMs: totalMs,
    idleTimeoutMs: totalMs,
  };
  return through.send({ ...MAIL, ...mail }, limits);
}

async function sent(through: Mailer, mail: Partial<Mail> = {}, totalMs?: number): Promise<SendResult> {
  const result = await send(through, mail, totalMs);
  if (result === 'busy') throw new Error('busy');
  return result;
}

const snippetOf = (result: SendResult) => (result.kind === 'response' ? result.snippet.toString() : null);

describe('a mail', () => {
  it('arrives with subject, text, date and the id of its delivery, over TLS', async () => {
    const server = await mailServer();
    const result = await sent(mailer(server.port));
    expect(classify(result)).toEqual({ class: 'success' });
    expect(result).toMatchObject({ status: null });
    expect(snippetOf(result)).toMatch(/^250 /);
    const [mail] = server.mails;
    expect(mail).toMatchObject({ from: 'relay@sender.example.com', to: ['ada@example.com'], secure: true });
    expect(mail!.headers).toMatchObject({
      from: 'Relay <relay@sender.example.com>',
      to: 'ada@example.com',
      subject: 'order.created',
      date: 'Tue, 01 Dec 2026 12:00:00 +0000',
      'message-id': `<${DELIVERY}@sender.example.com>`,
      'auto-submitted': 'auto-generated',
    });
    expect(mail!.body).toContain('order.created\r\n\r\n{"n": 1}\r\n.\r\n');
  });

  it('has the same id when it is sent again', async () => {
    const server = await mailServer();
    const through = mailer(server.port);
    await sent(through);
    await sent(through);
    const ids = server.mails.map(({ headers }) => headers['message-id']);
    expect(ids).toEqual([`<${DELIVERY}@sender.example.com>`, `<${DELIVERY}@sender.example.com>`]);
  });

  it('has the texts and headers that a finished message gives it, to all its recipients', async () => {
    const server = await mailServer();
    await sent(mailer(server.port), {
      to: ['ada@example.com', 'bob@bücher.example'],
      subject: 'Grüße 🚀',
      text: 'plain',
      html: '<p>rich</p>',
      headers: {
        'X-Campaign-ID': 'a1',
        'Reply-To': 'help@example.com',
        'List-Unsubscribe': '<https://example.com/u>',
      },
    });
    const [mail] = server.mails;
    expect(mail!.to).toEqual(['ada@example.com', 'bob@bücher.example']);
    expect(mail!.headers.to).toContain('bob@xn--bcher-kva.example');
    expect(mail!.raw).toContain('X-Campaign-ID: a1\r\n');
    expect(mail!.headers).toMatchObject({
      'reply-to': 'help@example.com',
      'list-unsubscribe': '<https://example.com/u>',
    });
    expect(mail!.headers.subject).toMatch(/^=\?UTF-8\?/);
    expect(mail!.body).toMatch(/text\/plain[\s\S]*plain[\s\S]*text\/html[\s\S]*<p>rich<\/p>/);
  });

  it('is text, even where the text looks like a file or a page', async () => {
    const server = await mailServer();
    await sent(mailer(server.port), { text: '/etc/passwd', html: 'http://127.0.0.1/secret' });
    expect(server.mails[0]!.body).toMatch(/\/etc\/passwd[\s\S]*http:\/\/127\.0\.0\.1\/secret/);
  });

  it('goes to its recipients only, whatever its texts try', async () => {
    const server = await mailServer();
    const attack = 'x\r\nBcc: eve@example.com\r\n\r\n.\r\nMAIL FROM:<eve@example.com>\r\n';
    await sent(mailer(server.port), { subject: attack, text: attack, headers: { 'X-A': attack } });
    const [mail, ...others] = server.mails;
    expect(others).toEqual([]);
    expect(mail!.to).toEqual(['ada@example.com']);
    expect(mail!.headers.bcc).toBeUndefined();
  });
});

describe('the connection to the mail server', () => {
  it('serves one mail after the other', async () => {
    const server = await mailServer();
    const through = mailer(server.port);
    for (let n = 0; n < 5; n += 1) await sent(through);
    expect([server.mails.length, server.connections]).toEqual([5, 1]);
  });

  it('is not shared by two mails at once, nor opened more often than is allowed', async () => {
    const server = await mailServer({
      toMail: async () => new Promise((resolve) => setTimeout(resolve, 20, null)),
    });
    const through = mailer(server.port, { maxConnections: 3 });
    const results = await Promise.all(Array.from({ length: 12 }, () => sent(through)));
    expect(results.map((result) => classify(result).class)).toEqual(Array(12).fill('success'));
    expect([server.mails.length, server.connections]).toEqual([12, 3]);
  });

  it('is replaced when the server has ended it meanwhile', async () => {
    // The server greets a tenth of a second late.
    const server = await mailServer({ socketTimeout: 400 });
    const through = mailer(server.port);
    await sent(through);
    await eventually(() => expect(server.open()).toBe(0));
    expect(classify(await sent(through))).toEqual({ class: 'success' });
    expect(server.connections).toBe(2);
  });

  it('that is not to be had in time leaves the mail unsent and nothing spent', async () => {
    let answer = (_: null) => {};
    const server = await mailServer({ toMail: () => new Promise((resolve) => (answer = resolve)) });
    const through = mailer(server.port, { maxConnections: 1 });
    const first = sent(through);
    expect(await send(through, {}, 300)).toBe('busy');
    await eventually(() => {
      answer(null);
      expect(server.mails).toHaveLength(1);
    });
    expect(classify(await first)).toEqual({ class: 'success' });
    answer = () => {};
  });

  it('logs in where there is a login', async () => {
    const server = await mailServer({
      authOptional: false,
      onAuth: ({ username, password }, _, done) =>
        password === 'p:/ss' ? done(null, { user: username ?? '' }) : done(refusal(535, `no ${password}`)),
    });
    await sent(mailer(server.port, { user: 'ada', password: 'p:/ss' }));
    expect(server.mails[0]).toMatchObject({ user: 'ada', secure: true });
  });

  it('may be TLS from the start', async () => {
    const server = await mailServer({ secure: true });
    await sent(mailer(server.port, { implicitTls: true }));
    expect(server.mails[0]).toMatchObject({ secure: true });
  });

  it('may be without TLS where that is said, and takes it all the same where it is offered', async () => {
    const plain = await mailServer({ disabledCommands: ['STARTTLS'] });
    await sent(mailer(plain.port, { requireTls: false }));
    expect(plain.mails[0]).toMatchObject({ secure: false });
    const offering = await mailServer();
    await sent(mailer(offering.port, { requireTls: false }));
    expect(offering.mails[0]).toMatchObject({ secure: true });
  });
});

describe('what the mail server says of a mail', () => {
  const verdict = async (options: MailServerOptions, mail: Partial<Mail> = {}) => {
    const server = await mailServer(options);
    const result = await sent(mailer(server.port), mail);
    return { outcome: classify(result), said: snippetOf(result), taken: server.mails.length };
  };

  it.each([
    [421, 'retryable'],
    [450, 'retryable'],
    [452, 'retryable'],
    [550, 'permanent'],
    [554, 'permanent'],
  ])('with %d is %s, and is kept', async (code, expected) => {
    const said = `5.1.1 nobody here`;
    const ofRecipient = await verdict({ toRecipient: () => refusal(code, said) });
    expect(ofRecipient.outcome.class).toBe(expected);
    expect(ofRecipient.said).toContain(`${code} ${said}`);
    // The code by which a server goes away is no word about anybody.
    if (code !== 421) expect(ofRecipient.said).toMatch(/^ada@example\.com: /);
    const ofMail = await verdict({ toMail: () => refusal(code, said) });
    expect(ofMail.outcome.class).toBe(expected);
    expect(ofMail.said).toContain(`${code} ${said}`);
  });

  it('counts for all recipients: refused for one, the mail is not delivered, and names who it was', async () => {
    const to = ['ada@example.com', 'bob@example.com', 'eve@example.com'];
    const refuse = (codes: Record<string, number>) => (address: string) =>
      codes[address] ? refusal(codes[address], 'not now') : null;
    const one = await verdict({ toRecipient: refuse({ 'bob@example.com': 550 }) }, { to });
    expect(one).toMatchObject({ outcome: { class: 'permanent' }, taken: 1 });
    expect(one.said).toMatch(/^bob@example\.com: 550 not now\n250 /);
    const both = await verdict(
      { toRecipient: refuse({ 'bob@example.com': 550, 'eve@example.com': 450 }) },
      { to },
    );
    expect(both.outcome.class).toBe('retryable');
    const all = await verdict(
      { toRecipient: refuse({ 'ada@example.com': 550, 'bob@example.com': 550, 'eve@example.com': 451 }) },
      { to },
    );
    expect(all).toMatchObject({ outcome: { class: 'retryable' }, taken: 0 });
  });

  it('beforehand, about its size, is final', async () => {
    const { outcome, taken } = await verdict({ size: 2_000 }, { text: 'x'.repeat(3_000) });
    expect(outcome).toEqual({ class: 'permanent', reason: 'permanent_failure' });
    expect(taken).toBe(0);
  });
});

describe('trouble with the mail server', () => {
  const PASSWORD = 'passw0rd-of-the-operator';
  const login = { user: 'ada', password: PASSWORD };
  const failing = async (
    port: number,
    server: Partial<SmtpConfig> = {},
    options: Partial<MailerOptions> = {},
  ) => {
    const result = await sent(mailer(port, { ...login, ...server }, options), {}, 600);
    const told = inspect(result, { depth: 9 });
    for (const secret of [PASSWORD, Buffer.from(`\0ada\0${PASSWORD}`).toString('base64')])
      expect(told).not.toContain(secret);
    return result;
  };

  it('is never the mail’s fault: a login that is refused is tried again, and not told', async () => {
    const server = await mailServer({
      onAuth: ({ password }, _, done) => done(refusal(535, `wrong password ${password}`)),
    });
    const result = await failing(server.port);
    expect(result).toMatchObject({ kind: 'failure', failure: 'other', requestSent: false });
    expect(result).toMatchObject({ detail: 'the mail server refused the login (535 to AUTH PLAIN)' });
    expect(classify(result)).toEqual({ class: 'retryable' });
  });

  it('such as a connection that breaks during the login is told at once', async () => {
    const server = await mailServer({ onAuth: () => server.drop() });
    expect(await failing(server.port)).toMatchObject({
      kind: 'failure',
      failure: 'reset',
      requestSent: false,
    });
  });

  it('such as a login that it wants and was not given is tried again too', async () => {
    const server = await mailServer({ authOptional: false });
    const result = await failing(server.port, { user: null, password: null });
    expect(result).toMatchObject({ kind: 'failure', failure: 'other' });
    expect(classify(result)).toEqual({ class: 'retryable' });
  });

  it.each(['self-signed', 'wrong-name', 'expired'])(
    'such as a %s certificate is a failure of TLS, before any word',
    async (certificate) => {
      vi.stubEnv('NODE_TLS_REJECT_UNAUTHORIZED', '0');
      for (const implicitTls of [true, false]) {
        const server = await mailServer({ certificate, secure: implicitTls });
        const result = await failing(server.port, { implicitTls });
        expect(result).toMatchObject({ kind: 'failure', failure: 'tls', requestSent: false });
        expect(server.mails).toEqual([]);
      }
    },
  );

  it('such as no TLS where it is required is a failure of TLS, and the login is not sent', async () => {
    let asked = false;
    const server = await mailServer({
      disabledCommands: ['STARTTLS'],
      onAuth: (_, __, done) => {
        asked = true;
        done(null, { user: 'ada' });
      },
    });
    expect(await failing(server.port)).toMatchObject({ kind: 'failure', failure: 'tls' });
    expect(asked).toBe(false);
  });

  it('such as an address that is not public is refused', async () => {
    const server = await mailServer();
    const guarded: Partial<MailerOptions> = { resolver: async () => ['10.0.0.1', '127.0.0.1'] };
    const result = await failing(server.port, { allowPrivate: false }, guarded);
    expect(result).toMatchObject({ kind: 'failure', failure: 'refused' });
    const literal = await failing(server.port, { host: '127.0.0.1', allowPrivate: false });
    expect(literal).toMatchObject({ kind: 'failure', failure: 'refused' });
    expect(server.connections).toBe(0);
  });

  it('is dialled where it was judged: the name is asked once, and stays the name in the certificate', async () => {
    const server = await mailServer();
    let asked = 0;
    const resolver = async () => {
      asked += 1;
      return [asked === 1 ? '127.0.0.1' : '127.0.0.2'];
    };
    const result = await failing(server.port, { user: null, password: null }, { resolver });
    expect(classify(result)).toEqual({ class: 'success' });
    expect(asked).toBe(1);
  });

  it('such as a name that does not resolve is told as dns', async () => {
    const resolver = () => Promise.reject(new DnsError('the name does not exist (ENOTFOUND)'));
    expect(await failing(25, {}, { resolver })).toMatchObject({
      kind: 'failure',
      failure: 'dns',
      detail: 'the name does not exist (ENOTFOUND)',
    });
    expect(await failing(25, {}, { resolver: () => new Promise(() => {}) })).toMatchObject({
      failure: 'dns',
    });
  });

  it('such as nobody there is told as connect', async () => {
    const server = await mailServer();
    await server.close();
    expect(await failing(server.port)).toMatchObject({
      kind: 'failure',
      failure: 'connect',
      requestSent: false,
    });
  });

  it.each<[string, string, (write: (text: string) => void, end: () => void) => void]>([
    ['says nothing', 'timeout', () => {}],
    ['says no', 'protocol', (write) => write('554 no service here\r\n')],
    ['is no mail server', 'protocol', (write) => write('HTTP/1.1 400 Bad Request\r\n\r\n')],
    ['hangs up', 'reset', (_, end) => end()],
    ['never ends its greeting', 'timeout', (write) => setInterval(() => write('220-and\r\n'), 20).unref()],
    ['talks without end', 'protocol', (write) => write(`220-${'x'.repeat(200_000)}`)],
  ])('such as one that %s is told as %s', async (_, failure, behave) => {
    const sink = await rawSink((socket) =>
      behave(
        (text) => socket.write(text),
        () => socket.end(),
      ),
    );
    open.push(sink);
    const result = await failing(sink.port);
    expect(result).toMatchObject({ kind: 'failure', failure });
    expect(classify(result)).toEqual({ class: 'retryable' });
    await eventually(() => expect(sink.open.size).toBe(0));
  });

  it('such as an answer that does not come ends at the deadline, as sent', async () => {
    const server = await mailServer({ toMail: () => new Promise(() => {}) });
    const result = await failing(server.port, { user: null, password: null });
    expect(result).toMatchObject({ kind: 'failure', failure: 'timeout', requestSent: true });
  });

  it('holds nothing back when the dispatcher stops', async () => {
    const server = await mailServer({ toMail: () => new Promise(() => {}) });
    const through = mailer(server.port);
    const underWay = sent(through, {}, 60_000);
    await eventually(() => expect(server.connections).toBe(1));
    through.close();
    expect(await underWay).toMatchObject({ kind: 'failure', failure: 'other' });
    expect(await send(through)).toBe('busy');
  });
});
