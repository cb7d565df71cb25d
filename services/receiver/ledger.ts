/**
 * What the receiver remembers of each delivery id. A load test brings millions of them, so the figures live in flat
 * arrays beside one Map: an object per delivery would be walked by every major collection, and the pauses would be
 * counted as Relay's latency.
 */
export interface Ledger {
  /** Notes one request read in full; returns the delivery's row for `answered`. */
  arrived(deliveryId: string, eventId: string, atMs: number): number;
  /** Notes the answer: a second 2xx for one delivery is a duplicate, a retry after a 503 is not. */
  answered(row: number, status: number): void;
  find(deliveryId: string): SeenDelivery | null;
  /** Deliveries first seen at or after position `since`, in order of arrival. */
  page(since: number, limit: number): SeenDelivery[];
  summary(): LedgerSummary;
  reset(): void;
}

export interface SeenDelivery {
  delivery_id: string;
  event_id: string;
  requests: number;
  /** How many of the requests were answered 2xx. */
  successes: number;
  /** Milliseconds since 1970 at which the first request's headers were read. */
  first_at_ms: number;
}

export interface LedgerSummary {
  requests: number;
  deliveries: number;
  /** Deliveries answered 2xx at least once. */
  delivered: number;
  /** 2xx answers beyond the first of their delivery. */
  duplicates: number;
  first_at_ms: number | null;
  last_at_ms: number | null;
}

const INITIAL_ROWS = 1024;

export function createLedger(): Ledger {
  const rows = new Map<string, number>();
  let ids: string[] = [];
  let events: string[] = [];
  let requests = new Uint32Array(INITIAL_ROWS);
  let successes = new Uint32Array(INITIAL_ROWS);
  let firstAt = new Float64Array(INITIAL_ROWS);
  let total: LedgerSummary = emptySummary();

  function grow(): void {
    const length = requests.length * 2;
    requests = extended(new Uint32Array(length), requests);
    successes = extended(new Uint32Array(length), successes);
    firstAt = extended(new Float64Array(length), firstAt);
  }

  function add(deliveryId: string, eventId: string, atMs: number): number {
    const row = ids.length;
    if (row === requests.length) grow();
    rows.set(deliveryId, row);
    ids.push(deliveryId);
    events.push(eventId);
    firstAt[row] = atMs;
    total.deliveries += 1;
    return row;
  }

  function at(row: number): SeenDelivery {
    return {
      delivery_id: ids[row]!,
      event_id: events[row]!,
      requests: requests[row]!,
      successes: successes[row]!,
      first_at_ms: firstAt[row]!,
    };
  }

  return {
    arrived(deliveryId, eventId, atMs) {
      const row = rows.get(deliveryId) ?? add(deliveryId, eventId, atMs);
      requests[row]! += 1;
      total.requests += 1;
      total.first_at_ms ??= atMs;
      total.last_at_ms = atMs;
      return row;
    },
    answered(row, status) {
      // A reset between arrival and answer leaves a row that is no longer ours to count.
      if (row >= ids.length || status < 200 || status > 299) return;
      successes[row]! += 1;
      if (successes[row] === 1) total.delivered += 1;
      else total.duplicates += 1;
    },
    find(deliveryId) {
      const row = rows.get(deliveryId);
      return row === undefined ? null : at(row);
    },
    page(since, limit) {
      const found: SeenDelivery[] = [];
      for (let row = since; row < Math.min(ids.length, since + limit); row += 1) found.push(at(row));
      return found;
    },
    summary: () => ({ ...total }),
    reset() {
      rows.clear();
      ids = [];
      events = [];
      requests = new Uint32Array(INITIAL_ROWS);
      successes = new Uint32Array(INITIAL_ROWS);
      firstAt = new Float64Array(INITIAL_ROWS);
      total = emptySummary();
    },
  };
}

function emptySummary(): LedgerSummary {
  return { requests: 0, deliveries: 0, delivered: 0, duplicates: 0, first_at_ms: null, last_at_ms: null };
}

function extended<T extends Uint32Array | Float64Array>(target: T, source: T): T {
  target.set(source);
  return target;
}
