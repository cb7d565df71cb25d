import { isEmailAddress } from '../messages.ts';
import { CHAT_TRANSPORTS, type ChatTransport, type Transport } from '../vocabulary.ts';
import { CHAT_PLATFORMS } from './chat-platform.ts';

/** The transports whose `url` is an address of their own form, and nothing that is dialled. */
export type AddressedTransport = Exclude<Transport, 'http'>;

export function isAddressed(transport: Transport): transport is AddressedTransport {
  return transport !== 'http';
}

export function isChat(transport: Transport): transport is ChatTransport {
  return (CHAT_TRANSPORTS as readonly Transport[]).includes(transport);
}

const MAILTO = 'mailto:';
const MAILTO_RULE = 'must be mailto: and one address, such as mailto:ops@example.com';
/** They mean something in a mailto URL: an address that holds them would have to be written in code. */
const MEANING_IN_URL = /[?%#]/;

/** Judges the `url` of an endpoint. Null when it can be used, else the rule, which never repeats what was given: it may hold a token. */
export function validateAddress(transport: AddressedTransport, url: string): string | null {
  if (isChat(transport)) {
    const { address, addressRule } = CHAT_PLATFORMS[transport];
    return address.test(url) ? null : addressRule;
  }
  const address = url.startsWith(MAILTO) ? mailAddress(url) : '';
  return isEmailAddress(address) && !MEANING_IN_URL.test(address) ? null : MAILTO_RULE;
}

/** The recipient that the `url` of an email endpoint names. */
export function mailAddress(url: string): string {
  return url.slice(MAILTO.length);
}

/** Judges the `secret` that the owner of an endpoint gives; undefined when none is given. The rule never repeats it. */
export function validateToken(transport: AddressedTransport, secret: string | undefined): string | null {
  if (!isChat(transport)) {
    return secret === undefined
      ? null
      : 'an email endpoint has none: the mail server is configured with the dispatcher';
  }
  const { token, tokenRule } = CHAT_PLATFORMS[transport];
  if (secret === undefined) return `is required, because only ${transport} can give it out: ${tokenRule}`;
  return token.test(secret) ? null : tokenRule;
}

/** What an endpoint of these transports cannot have, since nothing that is sent would show it. */
export interface HttpOnlySettings {
  signingScheme?: string | undefined;
  headers?: object | undefined;
  headerPrefix?: string | null | undefined;
}

/** The first setting that only an http endpoint can have, and the rule. */
export function httpOnlyFault(
  transport: AddressedTransport,
  { signingScheme, headers, headerPrefix }: HttpOnlySettings,
): { field: string; rule: string } | null {
  const rule = `only http endpoints have it: what goes by ${transport} is not signed and has the headers of its platform`;
  if (signingScheme !== undefined && signingScheme !== 'relay') return { field: 'signing_scheme', rule };
  if (headers !== undefined && Object.keys(headers).length > 0) return { field: 'headers', rule };
  return headerPrefix === undefined || headerPrefix === null ? null : { field: 'header_prefix', rule };
}
