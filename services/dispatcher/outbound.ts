import { signatureHeaders } from '../../lib/domain/signing.ts';
import type { Claim } from '../../lib/store/claims.ts';
import type { Destination } from './endpoint-cache.ts';

export interface HeaderOptions {
  /** First part of Relay's own header names. */
  prefix: string;
  userAgent: string;
  /** Unix seconds of this attempt: receivers refuse old timestamps, so each attempt is signed anew. */
  timestampSeconds: number;
}

/** The headers of one attempt, flat: name, value, name, value. */
export function outboundHeaders(
  claim: Claim,
  destination: Destination,
  body: Buffer,
  options: HeaderOptions,
): string[] {
  const { prefix, userAgent, timestampSeconds } = options;
  const headers = signatureHeaders({
    scheme: destination.signingScheme,
    secrets: destination.signingKeys(),
    deliveryId: claim.deliveryId,
    timestampSeconds,
    body,
    headerPrefix: prefix,
  });
  if (destination.signingScheme !== 'relay') headers.push(`${prefix}-Delivery-Id`, claim.deliveryId);
  headers.push(
    'content-type',
    claim.contentType,
    'user-agent',
    userAgent,
    `${prefix}-Event-Type`,
    claim.type,
    `${prefix}-Event-Id`,
    claim.eventId,
    `${prefix}-Attempt`,
    String(claim.sends + 1),
  );
  return headers;
}
