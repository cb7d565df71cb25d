/** The numbers that more than one part of Relay must agree on. */

/** A payload at acceptance and at sending: 256 KiB. */
export const DEFAULT_MAX_PAYLOAD_BYTES = 262_144;

/** Payloads above this are read when their send starts, not with the claim: 128 of them would be 32 MiB in one answer. */
export const INLINE_PAYLOAD_BYTES = 32_768;

/** An event's deliveries are numbered by four hex digits of its id. */
export const MAX_DELIVERIES_PER_EVENT = 65_535;

/**
 * An event that matches more endpoints is accepted with so many deliveries, and the reconciler writes the rest in steps of as many. The answer to
 * a repeated request is printed by it too, so another number would change answers that were given.
 */
export const DELIVERIES_AT_ONCE = 1_000;

/** Ids in one stream entry, rows in one claim, results in one settle: beyond this a batch gains under a tenth. */
export const MAX_BATCH = 128;

/** An announced row that nobody leased within this time may have lost its announcement. */
export const STALL_MS = 30_000;

/** A lease is given back only this long after its end: a settle that is on its way comes first. */
export const RECLAIM_GRACE_MS = 5_000;

/** A delivery whose holder vanished this many times ends `abandoned`: something in it kills its holders. */
export const MAX_RECLAIMS = 10;

/** A claimed delivery waits at most this long in the process for its turn. */
export const LOCAL_WAIT_MS = 1_000;

/** What recording an outcome may take after the deadline of a send, before its lease ends. */
export const SETTLE_MARGIN_MS = 5_000;

/** A process is alive while its last beat is younger than this. */
export const HEARTBEAT_FRESH_MS = 5_000;

/** The tenant that exists from the start; a key without a tenant acts for it unless it names another. */
export const DEFAULT_TENANT_ID = '00000000-0000-0000-0000-000000000001';

/** Events that may be posted together. */
export const MAX_POSTED_EVENTS = 1_000;

/** The body that holds them: 8 MiB. */
export const MAX_POSTED_BYTES = 8_388_608;
