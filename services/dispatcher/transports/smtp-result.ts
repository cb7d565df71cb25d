import type { SendResult } from '../../../lib/domain/send-result.ts';
import { statusOfReply } from '../../../lib/domain/transports/email.ts';
import type { TransportFailure } from '../../../lib/domain/vocabulary.ts';
import { nameFailure } from '../sending/failures.ts';
import type { Dial } from '../sending/guard.ts';

/** What nodemailer tells of one refusal, or of a failure. */
export interface SmtpError {
  code?: string | undefined;
  /** Of the system or of TLS, where `code` is the library's own. */
  originalCode?: string | undefined;
  command?: string | undefined;
  response?: string | undefined;
  responseCode?: number | undefined;
  recipient?: string | undefined;
  rejectedErrors?: readonly SmtpError[] | undefined;
}

/** How far a mail had come. */
export interface MailProgress {
  dial: Dial;
  /** Whether the server was being told of this mail. */
  sending: boolean;
  startedAt: number;
}

/** The mail was taken for at least one recipient; what was said of the others decides when it was refused for them. */
export function takenResult(
  info: { response: string; rejectedErrors?: readonly SmtpError[] | undefined },
  { startedAt }: MailProgress,
): SendResult {
  const refusals = info.rejectedErrors ?? [];
  return replyResult(meaningOf(refusals, 250), [...refusals.map(shownRefusal), info.response], startedAt);
}

/** The mail was not taken: by the server's word, which is its answer, or because of trouble on the way. */
export function failedResult(reported: unknown, progress: MailProgress): SendResult {
  const error = reported as SmtpError;
  const { command = '', responseCode: code = 0 } = error;
  const ofTheMail = ABOUT_THE_MAIL.has(command) || (code === GOING_AWAY && progress.sending);
  if (code >= 400 && ofTheMail && !LOGIN_WANTED.has(code)) {
    const refusals = error.rejectedErrors ?? [];
    const lines = refusals.length > 0 ? refusals.map(shownRefusal) : [error.response ?? ''];
    return replyResult(meaningOf(refusals, code), lines, progress.startedAt);
  }
  const [failure, detail] = nameSmtpFailure(error, progress.dial);
  const durationMs = performance.now() - progress.startedAt;
  return { kind: 'failure', failure, detail, requestSent: progress.sending, durationMs };
}

/** A limit has passed. */
export function lateResult({ dial, sending, startedAt }: MailProgress): SendResult {
  const durationMs = performance.now() - startedAt;
  const late = (failure: TransportFailure, detail: string) =>
    ({ kind: 'failure', failure, detail, requestSent: sending, durationMs }) as const;
  if (sending) return late('timeout', 'the mail server did not take the mail before the deadline');
  return dial.phase === 'resolving'
    ? late('dns', 'the name of the mail server could not be resolved in time')
    : late('timeout', 'there was no session with the mail server in time');
}

/** The one code that may come instead of any answer. */
const GOING_AWAY = 421;
const ABOUT_THE_MAIL = new Set(['MAIL FROM', 'RCPT TO', 'DATA']);
/** The operator's trouble, and none of the mail's: it may go out when the login is put right. */
const LOGIN_WANTED = new Set([530, 534, 535, 538]);

/** A recipient that may be taken later has the whole mail tried again; its id tells the others that they have it. */
function meaningOf(refusals: readonly SmtpError[], otherwise: number): number {
  const codes = refusals.map(({ responseCode }) => responseCode ?? 450);
  const worst = codes.find((code) => code < 500) ?? codes[0] ?? otherwise;
  return statusOfReply(worst);
}

function shownRefusal({ recipient = '', response = '' }: SmtpError): string {
  return `${recipient}: ${response}`;
}

function replyResult(meaning: number, lines: readonly string[], startedAt: number): SendResult {
  const durationMs = performance.now() - startedAt;
  const snippet = Buffer.from(lines.join('\n'));
  return {
    kind: 'response',
    status: null,
    meaning,
    retryAfter: [],
    snippet,
    firstByteMs: durationMs,
    durationMs,
  };
}

const BY_CODE: Readonly<Record<string, readonly [TransportFailure, string]>> = {
  ETLS: ['tls', 'the TLS connection to the mail server failed'],
  EAUTH: ['other', 'the mail server refused the login'],
  EPROTOCOL: ['protocol', 'the mail server did not answer as one'],
  ETIMEDOUT: ['timeout', 'the mail server was silent for too long'],
  ECONNECTION: ['reset', 'the mail server closed the connection'],
  ESOCKET: ['reset', 'the connection to the mail server broke'],
  EMESSAGE: ['oversize', 'the mail is larger than the mail server takes'],
  EENVELOPE: ['refused', 'the mail server cannot be told of these addresses'],
};
const TLS = /^(?:ERR_TLS|ERR_SSL|ERR_OSSL|EPROTO|CERT_|UNABLE_TO_|SELF_SIGNED|DEPTH_ZERO)/;

/** In our own words with codes: what the library says repeats the server, and that may repeat the login. */
function nameSmtpFailure(error: SmtpError, dial: Dial): readonly [TransportFailure, string] {
  const { code = '', originalCode = '', command, responseCode } = error;
  if (TLS.test(originalCode)) return ['tls', `${BY_CODE.ETLS![1]} (${originalCode})`];
  const named = BY_CODE[code];
  if (named === undefined || dial.phase !== 'open') {
    const { failure, detail } = nameFailure(error, dial);
    return [failure, detail];
  }
  const said =
    responseCode === undefined || !command ? originalCode || code : `${responseCode} to ${command}`;
  return [LOGIN_WANTED.has(responseCode ?? 0) ? 'other' : named[0], `${named[1]} (${said})`];
}
