import type { ApiConfig } from '../../../lib/config/api.ts';
import {
  type AddressedTransport,
  httpOnlyFault,
  isAddressed,
  isChat,
  validateAddress,
  validateToken,
} from '../../../lib/domain/transports/endpoint-rules.ts';
import type { Transport } from '../../../lib/domain/vocabulary.ts';
import { findEndpoint } from '../../../lib/store/endpoints.ts';
import { invalid } from '../http/problem.ts';
import { absent, type IdCall, refOf } from './endpoint-answers.ts';
import { requireDestination } from './endpoint-settings.ts';

/** The settings whose meaning depends on the transport, as they were given. */
interface GivenSettings {
  transport?: Transport | undefined;
  url?: string | undefined;
  secret?: string | undefined;
  signing_scheme?: string | undefined;
  headers?: object | undefined;
  header_prefix?: string | null | undefined;
}

/** The transport of a stored endpoint. Throws the 404 Problem when there is none. */
export async function transportOf(call: Pick<IdCall, 'context' | 'tenantId' | 'params'>): Promise<Transport> {
  const endpoint = await findEndpoint(call.context.db, refOf(call));
  if (!endpoint) throw absent();
  return endpoint.transport;
}

/** The `url` as it is stored. Throws a 400 Problem for an address of the wrong form, a 422 one for a destination that is refused. */
export function requireUrl(of: Transport, url: string, config: ApiConfig): string {
  if (!isAddressed(of)) return requireDestination(url, config);
  const rule = validateAddress(of, url);
  if (rule !== null) throw invalid('url', rule);
  return url;
}

/** Throws a 400 Problem for a setting that an endpoint of this transport cannot have. */
export function requireFitting(of: Transport, given: GivenSettings): void {
  if (given.transport !== undefined && given.transport !== of) {
    throw invalid('transport', `is ${of} and cannot be changed: make another endpoint`);
  }
  if (!isAddressed(of)) return;
  const { signing_scheme: signingScheme, header_prefix: headerPrefix, headers } = given;
  const fault = httpOnlyFault(of, { signingScheme, headers, headerPrefix });
  if (fault !== null) throw invalid(fault.field, fault.rule);
}

/** The secret that a new endpoint is stored with, which is none for email. Throws a 400 Problem naming the rule. */
export function requireToken(of: AddressedTransport, secret: string | undefined): string {
  const rule = validateToken(of, secret);
  if (rule !== null) throw invalid('secret', rule);
  return secret ?? '';
}

/** What to replace a secret by that Relay cannot make. Throws a 400 Problem when it was not given, or when there is none to replace. */
export function requireNewToken(of: AddressedTransport, secret: string | undefined): string {
  if (isChat(of)) return requireToken(of, secret);
  throw invalid(
    'secret',
    'an email endpoint has none to replace: the mail server is configured with the dispatcher',
  );
}
