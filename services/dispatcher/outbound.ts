import { type CustomHeaders, prefixClash, validateHeaderName } from '../../lib/domain/custom-headers.ts';
import { type HeaderNames, headerNames } from '../../lib/domain/header-names.ts';
import { signatureHeaders } from '../../lib/domain/signature-headers.ts';
import type { Claim } from '../../lib/store/claims.ts';
import type { HttpDestination } from './endpoint-cache.ts';

/** What of an endpoint's headers is the same on every attempt: made ready once per version of its configuration. */
export interface HeaderPlan {
  names: HeaderNames;
  userAgent: string;
  /** Flat, as they are sent. */
  custom: readonly string[];
}

export interface HeaderPlanOptions {
  /** First part of the names of Relay's own headers, and of the User-Agent. */
  prefix: string;
  /** Relay's own, for the User-Agent. */
  version: string;
  custom: CustomHeaders;
}

export function headerPlan({ prefix, version, custom }: HeaderPlanOptions): HeaderPlan {
  return {
    names: headerNames(prefix),
    userAgent: `${prefix}/${version} (webhooks)`,
    // The configured prefix may have become another one since they were saved, and Relay's own headers stand once.
    custom: Object.entries(custom)
      .filter(([name]) => validateHeaderName(name) === null && prefixClash([name], prefix) === null)
      .flat(),
  };
}

/** The headers of one attempt, flat: name, value, name, value. `timestampSeconds` is the attempt's own, in Unix seconds. */
export function outboundHeaders(
  claim: Claim,
  destination: HttpDestination,
  body: Buffer,
  { timestampSeconds }: { timestampSeconds: number },
): string[] {
  const { signingScheme, headers: plan } = destination;
  const { names } = plan;
  const headers = signatureHeaders({
    scheme: signingScheme,
    keys: destination.signingKeys(),
    deliveryId: claim.deliveryId,
    eventType: claim.type,
    timestampSeconds,
    body,
    names,
  });
  if (signingScheme !== 'relay') headers.push(names.deliveryId, claim.deliveryId);
  headers.push(
    'content-type',
    claim.contentType,
    'user-agent',
    plan.userAgent,
    names.eventType,
    claim.type,
    names.eventId,
    claim.eventId,
    names.attempt,
    String(claim.sends + 1),
  );
  if (plan.custom.length > 0) headers.push(...plan.custom);
  return headers;
}
