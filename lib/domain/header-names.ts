/** What may stand before the dash in the names of Relay's own headers. */
export const HEADER_PREFIX = /^[A-Za-z][A-Za-z0-9-]{0,31}$/;

/** The rule in words, for error messages. */
export const HEADER_PREFIX_RULE = 'must be letters, digits and dashes, at most 32 of them, for example Relay';

/** The names of Relay's own headers under one prefix. Made once per endpoint configuration, because every send writes them all. */
export interface HeaderNames {
  readonly timestamp: string;
  readonly signature: string;
  readonly deliveryId: string;
  readonly eventType: string;
  readonly eventId: string;
  readonly attempt: string;
}

export function headerNames(prefix: string): HeaderNames {
  return {
    timestamp: `${prefix}-Timestamp`,
    signature: `${prefix}-Signature`,
    deliveryId: `${prefix}-Delivery-Id`,
    eventType: `${prefix}-Event-Type`,
    eventId: `${prefix}-Event-Id`,
    attempt: `${prefix}-Attempt`,
  };
}
