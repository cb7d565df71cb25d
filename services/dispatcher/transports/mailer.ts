import type { SmtpConfig } from '../../../lib/config/smtp.ts';
import { isPublicAddress } from '../../../lib/domain/addresses.ts';
import { LOCAL_WAIT_MS } from '../../../lib/domain/limits.ts';
import type { SendResult } from '../../../lib/domain/send-result.ts';
import { createGuard, type GuardedConnect } from '../sending/guard.ts';
import { createResolver, type Resolve } from '../sending/resolver.ts';
import { type Mail, mailBytes } from './mail-bytes.ts';
import { Places } from './places.ts';
import { failedResult, lateResult, type MailProgress, takenResult } from './smtp-result.ts';
import { SmtpSession } from './smtp-session.ts';
import type { SendLimits } from './transports.ts';

export interface MailerOptions {
  server: SmtpConfig;
  /** Without a byte from the server, ms. An endpoint's own limit does not count: a connection serves many endpoints. */
  idleTimeoutMs: number;
  /** Milliseconds since 1970. */
  now: () => number;
  resolver?: Resolve;
  /** Which addresses may be dialled, when the server's own setting is not meant (a test's stand-in for the internet). */
  isAllowedAddress?: (address: string) => boolean;
  /** Trusted certificate authorities instead of the usual ones. */
  ca?: string | Buffer;
}

/** Idle connections are kept for a moment only: mail servers count them. */
const KEPT_MS = 4_000;
/** A server that counts the mails of a connection allows about a hundred. */
const MAILS_PER_SESSION = 50;

/** Sends mail through the one mail server that is configured, over few connections that serve one mail after the other. */
export class Mailer {
  readonly #options: MailerOptions;
  readonly #connect: GuardedConnect;
  readonly #places: Places;
  readonly #idle: SmtpSession[] = [];
  /** What ends each mail that is under way. */
  readonly #busy = new Set<(error: unknown) => void>();
  #closed = false;

  constructor(options: MailerOptions) {
    const { server } = options;
    this.#options = options;
    this.#places = new Places(server.maxConnections);
    this.#connect = createGuard({
      isAllowedAddress:
        options.isAllowedAddress ?? ((address) => server.allowPrivate || isPublicAddress(address)),
      resolve: options.resolver ?? createResolver({ systemFallback: server.allowPrivate }),
    });
  }

  /** Never rejects. `busy`: all connections were taken for as long as a delivery may wait for its turn, and nothing was begun. */
  async send(mail: Mail, limits: SendLimits): Promise<SendResult | 'busy'> {
    const patienceMs = Math.min(LOCAL_WAIT_MS, limits.deadlineAt - performance.now());
    if (this.#closed || !(await this.#places.take(patienceMs))) return 'busy';
    try {
      return await this.#deliver(mail, limits);
    } finally {
      this.#places.giveBack();
    }
  }

  /** Ends idle connections, and fails what is under way. */
  close(): void {
    this.#closed = true;
    for (const session of this.#idle.splice(0)) session.destroy();
    for (const fail of this.#busy)
      fail(Object.assign(new Error('the mailer is closing'), { code: 'RELAY_CLOSED' }));
  }

  async #deliver(mail: Mail, { deadlineAt, connectTimeoutMs }: SendLimits): Promise<SendResult> {
    const startedAt = performance.now();
    const { from } = this.#options.server;
    const printed = await mailBytes(mail, { from, date: new Date(this.#options.now()) }).catch(() => null);
    if (printed === null) return UNPRINTABLE;
    const session = this.#takeIdle() ?? new SmtpSession({ ...this.#options, connect: this.#connect });
    const progress: MailProgress = { dial: session.dial, sending: false, startedAt };
    try {
      const connectBy = Math.min(deadlineAt, startedAt + connectTimeoutMs);
      if (session.served === 0) await this.#by(connectBy, session.open());
      progress.sending = true;
      const info = await this.#by(deadlineAt, session.send(printed.envelope, printed.bytes));
      this.#keep(session);
      return takenResult(info, progress);
    } catch (error) {
      session.destroy();
      return error instanceof LateError ? lateResult(progress) : failedResult(error, progress);
    }
  }

  #takeIdle(): SmtpSession | null {
    for (let session = this.#idle.pop(); session; session = this.#idle.pop())
      if (!session.ended) return session;
    return null;
  }

  #keep(session: SmtpSession): void {
    session.served += 1;
    if (this.#closed || session.ended || session.served >= MAILS_PER_SESSION) return session.quit();
    this.#idle.push(session);
    const servedBy = session.served;
    setTimeout(() => {
      const at = this.#idle.indexOf(session);
      if (at < 0 || session.served !== servedBy) return;
      this.#idle.splice(at, 1);
      session.quit();
    }, KEPT_MS).unref();
  }

  /** The promise, or a LateError at that moment (performance.now()), or the error of `close`. */
  #by<T>(at: number, promise: Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      const settle = (end: () => void) => {
        clearTimeout(timer);
        this.#busy.delete(fail);
        end();
      };
      const fail = (error: unknown) => settle(() => reject(error));
      const timer = setTimeout(() => fail(new LateError()), Math.max(0, at - performance.now()));
      this.#busy.add(fail);
      promise.then((value) => settle(() => resolve(value)), fail);
    });
  }
}

const UNPRINTABLE: SendResult = {
  kind: 'failure',
  failure: 'refused',
  detail: 'the message cannot be printed as a mail',
  requestSent: false,
  durationMs: 0,
};

class LateError extends Error {}
