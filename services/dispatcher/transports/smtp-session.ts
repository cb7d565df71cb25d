import type { Socket } from 'node:net';
import SMTPConnection, { type SMTPConnectionSendInfo } from 'nodemailer/lib/smtp-connection';
import type { SmtpConfig } from '../../../lib/config/smtp.ts';
import type { Dial, GuardedConnect } from '../sending/guard.ts';

export interface SmtpSessionOptions {
  server: SmtpConfig;
  connect: GuardedConnect;
  /** Without a byte from the server, ms. */
  idleTimeoutMs: number;
  /** Trusted certificate authorities instead of the usual ones. */
  ca?: string | Buffer;
}

export interface Envelope {
  from: string;
  to: string[];
  size: number;
}

/** A reply longer than this is nobody's wish to tell something. */
const MAX_REPLY_BYTES = 65_536;
const GOODBYE_MS = 1_000;

/** One logged-in connection to the mail server, for one mail at a time. The socket is the guard's: nothing here resolves or dials. */
export class SmtpSession {
  readonly dial: Dial = { phase: 'resolving', socket: null, error: null };
  readonly #options: SmtpSessionOptions;
  #connection: SMTPConnection | null = null;
  #ended = false;
  /** Mails that the server has taken on it. */
  served = 0;

  constructor(options: SmtpSessionOptions) {
    this.#options = options;
  }

  /** Whether the server, or we, have ended it. */
  get ended(): boolean {
    return this.#ended;
  }

  /** Connects, secures and logs in. Rejects with what the guard, the socket or the library reports. */
  async open(): Promise<void> {
    const { server } = this.#options;
    const connection = this.#over(await this.#dialled());
    this.#connection = connection;
    await unlessItBreaks(connection, (done) => connection.connect(done));
    const { user, password: pass } = server;
    if (user !== null && pass !== null)
      await unlessItBreaks(connection, (done) => connection.login({ user, pass }, done));
  }

  /** Hands one mail over. Rejects when the server refuses it for all recipients, or the connection ends. */
  send(envelope: Envelope, mail: Buffer): Promise<SMTPConnectionSendInfo> {
    return new Promise((resolve, reject) => {
      this.#connection!.send(envelope, mail, (error, info) => (error ? reject(error) : resolve(info!)));
    });
  }

  /** Says goodbye, and waits a moment for the answer. */
  quit(): void {
    if (this.#ended || this.#connection === null) return this.destroy();
    this.#connection.quit();
    setTimeout(() => this.destroy(), GOODBYE_MS).unref();
  }

  /** Ends it now, half-open or in the middle of a mail as it may be. What is under way on it never settles. */
  destroy(): void {
    this.#ended = true;
    this.#connection?.close();
    this.dial.socket?.destroy();
  }

  #dialled(): Promise<Socket> {
    const { connect, server } = this.#options;
    const { host, port } = server;
    return new Promise((resolve, reject) => {
      const target = { hostname: host, host, port: String(port), protocol: 'http:' };
      connect(this.dial, target, (error, socket) => (error ? reject(error) : resolve(socket as Socket)));
    });
  }

  #over(socket: Socket): SMTPConnection {
    const { server, idleTimeoutMs, ca } = this.#options;
    const connection = new SMTPConnection({
      connection: socket,
      host: server.host,
      port: server.port,
      secure: server.implicitTls,
      requireTLS: server.requireTls,
      // Said out loud, because NODE_TLS_REJECT_UNAUTHORIZED would otherwise turn it off for the whole process.
      tls: { rejectUnauthorized: true, ...(ca === undefined ? {} : { ca }) },
      socketTimeout: idleTimeoutMs,
      socketCloseTimeout: GOODBYE_MS,
      maxResponseSize: MAX_REPLY_BYTES,
    });
    // An idle session that the server ends is noticed here, before anybody takes it.
    connection.on('error', () => {
      this.#ended = true;
    });
    connection.on('end', () => {
      this.#ended = true;
    });
    return connection;
  }
}

/** One step of a session. What breaks the connection meanwhile is told as an event, and not to whoever waits for the step. */
function unlessItBreaks(
  connection: SMTPConnection,
  step: (done: (error?: Error | null) => void) => void,
): Promise<void> {
  return new Promise((resolve, reject) => {
    connection.once('error', reject);
    step((error) => {
      connection.off('error', reject);
      if (error) reject(error);
      else resolve();
    });
  });
}
