import { createReadStream } from 'node:fs';
import { createInterface } from 'node:readline';
import { createLatencies, type LatencySummary } from './latency.ts';

/** What was promised: each delivery id of each 202, with the moment at which its request ought to have left (ms, epoch). */
export interface Accepted {
  events: number;
  deliveries: Map<string, number>;
  /** Events whose 202 named another number of deliveries than there are endpoints. */
  wrongFanOut: number;
}

export interface Seen {
  delivery_id: string;
  successes: number;
  first_at_ms: number;
}

export interface Audit {
  expected: number;
  delivered: number;
  /** Accepted and not seen at the receiver. */
  missing: string[];
  /** Deliveries that were answered 2xx more than once, and how often beyond the first. */
  duplicated: number;
  duplicateRequests: number;
  /** Seen at the receiver though no 202 named them: outcomes that were unknown to the generator. */
  unaccepted: number;
  /** From the intended send to the first arrival; deliveries of the measured part only. */
  latency: LatencySummary | null;
  /** The same for deliveries that were meant to leave within each window that was asked for. */
  within: Record<string, LatencySummary | null>;
  /** Moments of arrival in the order of arrival, ms since 1970. */
  arrivals: Float64Array;
}

/** Reads the generator's file: a line each, `<intended ms> <body of the answer>`. */
export async function readAccepted(file: string, endpoints: number): Promise<Accepted> {
  const accepted: Accepted = { events: 0, deliveries: new Map(), wrongFanOut: 0 };
  const lines = createInterface({ input: createReadStream(file, { highWaterMark: 1 << 20 }) });
  for await (const line of lines) {
    const space = line.indexOf(' ');
    for (const ids of acceptedIn(line.slice(space + 1))) {
      accepted.events += 1;
      if (ids.length !== endpoints) accepted.wrongFanOut += 1;
      for (const id of ids) accepted.deliveries.set(id, Number(line.slice(0, space)));
    }
  }
  return accepted;
}

interface AnsweredEvent {
  /** Absent in the answer to a single event. */
  status?: number;
  delivery_ids: string[];
}

/** The deliveries of each event that an answer says is accepted: one, or those of a batch. */
function acceptedIn(answer: string): string[][] {
  const parsed = JSON.parse(answer) as AnsweredEvent | { results: AnsweredEvent[] };
  const events = 'results' in parsed ? parsed.results : [parsed];
  return events.filter(({ status = 202 }) => status === 202).map((event) => event.delivery_ids);
}

/** From a moment up to, not including, another; ms since 1970. */
export interface Window {
  fromMs: number;
  toMs: number;
}

export interface AuditOptions {
  /** Leaves the warm-up out of the latency; ms since 1970. */
  measuredFromMs: number;
  windows?: Readonly<Record<string, Window>>;
}

/** Compares by id what was promised with what arrived. */
export async function audit(
  accepted: Accepted,
  seen: AsyncIterable<readonly Seen[]>,
  options: AuditOptions,
): Promise<Audit> {
  const latencies = createLatencies();
  const windows = Object.entries(options.windows ?? {}).map(([name, window]) => ({
    name,
    ...window,
    latencies: createLatencies(),
  }));
  const missing = new Map(accepted.deliveries);
  const arrivals: number[] = [];
  const found = { delivered: 0, duplicated: 0, duplicateRequests: 0, unaccepted: 0 };
  for await (const page of seen) {
    for (const { delivery_id: id, successes, first_at_ms: atMs } of page) {
      const intendedMs = accepted.deliveries.get(id);
      if (successes > 1) {
        found.duplicated += 1;
        found.duplicateRequests += successes - 1;
      }
      if (intendedMs === undefined) found.unaccepted += 1;
      if (intendedMs === undefined || successes === 0) continue;
      missing.delete(id);
      found.delivered += 1;
      arrivals.push(atMs);
      if (intendedMs >= options.measuredFromMs) latencies.record(atMs - intendedMs);
      for (const window of windows) {
        if (intendedMs >= window.fromMs && intendedMs < window.toMs)
          window.latencies.record(atMs - intendedMs);
      }
    }
  }
  return {
    expected: accepted.deliveries.size,
    ...found,
    missing: [...missing.keys()],
    latency: latencies.summary(),
    within: Object.fromEntries(windows.map((window) => [window.name, window.latencies.summary()])),
    arrivals: Float64Array.from(arrivals).sort(),
  };
}
