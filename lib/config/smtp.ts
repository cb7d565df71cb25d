import { z } from 'zod';
import { isEmailAddress } from '../domain/messages.ts';
import { onOffValue, wholeNumber } from './env.ts';

/** The mail server by which email goes out. It is the operator's, as are its credentials. */
export interface SmtpConfig {
  host: string;
  port: number;
  /** TLS from the first byte, rather than by STARTTLS. */
  implicitTls: boolean;
  /** Nothing is said to a server that does not offer STARTTLS. */
  requireTls: boolean;
  user: string | null;
  password: string | null;
  from: { name: string; address: string };
  /** Whether its host may be a private address. */
  allowPrivate: boolean;
  /** Open at the same time, in this process. */
  maxConnections: number;
}

export const smtpSettings = {
  RELAY_SMTP_URL: z.string().optional(),
  RELAY_SMTP_FROM: z.string().optional(),
  RELAY_SMTP_REQUIRE_TLS: onOffValue.optional(),
  RELAY_SMTP_ALLOW_PRIVATE: onOffValue.optional(),
  RELAY_SMTP_CONNECTIONS: wholeNumber({ min: 1, max: 256, default: 10 }),
};

type SmtpEnv = z.output<z.ZodObject<typeof smtpSettings>>;

const URL_RULE =
  'must be smtp://host:587 (STARTTLS) or smtps://host:465, with user:password@ before the host where the server asks for a login';
const FROM_RULE = 'must be an address such as relay@example.com, or Name <relay@example.com>';

/** What is wrong with the settings for mail, by name. Never repeats the URL: it holds a password. */
export function smtpProblems({ RELAY_SMTP_URL: url, RELAY_SMTP_FROM: from }: SmtpEnv): [string, string][] {
  const problems: [string, string][] = [];
  if (url !== undefined && serverOf(url) === null) problems.push(['RELAY_SMTP_URL', URL_RULE]);
  if (from !== undefined && senderOf(from) === null) problems.push(['RELAY_SMTP_FROM', FROM_RULE]);
  if (url !== undefined && from === undefined)
    problems.push(['RELAY_SMTP_FROM', `is required with RELAY_SMTP_URL: ${FROM_RULE}`]);
  return problems;
}

/** The mail server, already checked by `smtpProblems`; null without one. `allowPrivate`: what holds for endpoints. */
export function toSmtpConfig(env: SmtpEnv, { allowPrivate }: { allowPrivate: boolean }): SmtpConfig | null {
  const server = env.RELAY_SMTP_URL === undefined ? null : serverOf(env.RELAY_SMTP_URL);
  const from = env.RELAY_SMTP_FROM === undefined ? null : senderOf(env.RELAY_SMTP_FROM);
  if (server === null || from === null) return null;
  return {
    ...server,
    from,
    requireTls: env.RELAY_SMTP_REQUIRE_TLS ?? !allowPrivate,
    allowPrivate: env.RELAY_SMTP_ALLOW_PRIVATE ?? allowPrivate,
    maxConnections: env.RELAY_SMTP_CONNECTIONS,
  };
}

type Server = Pick<SmtpConfig, 'host' | 'port' | 'implicitTls' | 'user' | 'password'>;

function serverOf(text: string): Server | null {
  const url = URL.canParse(text) ? new URL(text) : null;
  if (url === null || (url.protocol !== 'smtp:' && url.protocol !== 'smtps:')) return null;
  const bare = ['', '/'].includes(url.pathname) && url.search === '' && url.hash === '' && url.port !== '0';
  const login = [decoded(url.username), decoded(url.password)] as const;
  if (!bare || url.hostname === '' || login.includes(null) || (url.username === '') !== (url.password === ''))
    return null;
  const implicitTls = url.protocol === 'smtps:';
  return {
    host: url.hostname.replace(/^\[|\]$/g, ''),
    port: url.port === '' ? (implicitTls ? 465 : 587) : Number(url.port),
    implicitTls,
    user: login[0] || null,
    password: login[1] || null,
  };
}

function decoded(text: string): string | null {
  try {
    return decodeURIComponent(text);
  } catch {
    return null;
  }
}

const NAMED = /^([^<>"\p{Cc}]{1,100}?)\s*<([^<>]+)>$/u;

function senderOf(text: string): SmtpConfig['from'] | null {
  const [, name = '', address = text] = NAMED.exec(text.trim()) ?? [];
  return isEmailAddress(address.trim()) ? { name: name.trim(), address: address.trim() } : null;
}
