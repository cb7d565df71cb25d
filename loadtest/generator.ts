import { randomBytes } from 'node:crypto';
import { type Answer, Lane } from './lane.ts';
import { createLatencies, type LatencySummary } from './latency.ts';
import { openLoopSchedule, type Schedule } from './schedule.ts';

/** Open: the rate is held whatever the answers. Closed: each connection sends when it was answered, up to `events`. */
export type Load =
  | { loop: 'open'; rate: number; seconds: number; rampSeconds: number }
  | { loop: 'closed'; seconds: number; events: number | null };

export interface GeneratorPlan {
  /** Base URLs of the API processes; connections are dealt out in turn. */
  apis: readonly string[];
  key: string;
  connections: number;
  load: Load;
  /** Taken in turn. */
  eventTypes: readonly string[];
  payloadBytes: number;
  /** Gives each event an idempotency key of its own. */
  keyed: boolean;
  /** How many events a request posts; one by itself where absent. A rate and a number of events count requests then. */
  batch?: number | undefined;
  /** Latency counts for requests due later than this. */
  measureFromSeconds: number;
  requestTimeoutMs: number;
}

export interface GeneratorProgress {
  sent: number;
  accepted: number;
  refused: number;
  unknown: number;
  /** Due and not yet sent, for want of a free connection. */
  behind: number;
}

export interface AcceptedEvent {
  /** Milliseconds since 1970 at which the request ought to have left. */
  intendedMs: number;
  /** The body of the answer. */
  answer: string;
}

export interface GeneratorResult extends GeneratorProgress {
  /** Answers by status; `lost: <why>` for those that never came. */
  answers: Record<string, number>;
  /** From the intended send to the answer; successes only. */
  accept: LatencySummary | null;
  /** First and last 202, ms since 1970. */
  firstAcceptedMs: number;
  lastAcceptedMs: number;
  /** 202s per second over the measured part. */
  acceptedPerSecond: number;
}

const TICK_MS = 1;

/** Sends a plan's events and resolves when each is answered or given up. */
export class Generator {
  readonly accepted: AcceptedEvent[] = [];
  readonly #plan: GeneratorPlan;
  readonly #request: (n: number) => string;
  readonly #lanes: Lane[];
  readonly #free: Lane[];
  readonly #latencies = createLatencies();
  readonly #answers: Record<string, number> = {};
  readonly #schedule: Schedule;
  #startMs = 0;
  #sent = 0;
  #answered = 0;
  #measured = 0;
  #acceptedEvents = 0;
  #refusedEvents = 0;
  #measuredSpan = { fromMs: 0, toMs: 0 };
  #firstAcceptedMs = 0;
  #lastAcceptedMs = 0;
  #enough = false;

  constructor(plan: GeneratorPlan) {
    this.#plan = plan;
    this.#request = requestWriter(plan);
    this.#lanes = Array.from({ length: plan.connections }, (_, n) => {
      const { hostname, port } = new URL(plan.apis[n % plan.apis.length]!);
      return new Lane(hostname, Number(port));
    });
    this.#free = [...this.#lanes];
    this.#schedule = plan.load.loop === 'open' ? openLoopSchedule(plan.load) : closedSchedule(plan.load);
  }

  run(): Promise<GeneratorResult> {
    for (const lane of this.#lanes) lane.open();
    this.#startMs = performance.now();
    return new Promise((resolve, reject) => {
      const tick = setInterval(() => {
        try {
          this.#pump();
          if (!this.#finished()) return;
          clearInterval(tick);
          clearInterval(expiry);
          resolve(this.#result());
        } catch (error) {
          reject(error);
        }
      }, TICK_MS);
      const expiry = setInterval(() => {
        for (const lane of this.#lanes) lane.expire(performance.now(), this.#plan.requestTimeoutMs);
      }, 1000);
    });
  }

  /** Sends nothing more: the run ends when what was sent is answered. */
  enough(): void {
    this.#enough = true;
  }

  progress(): GeneratorProgress {
    const accepted = this.#acceptedEvents;
    const unknown = Object.entries(this.#answers)
      .filter(([name]) => name.startsWith('lost'))
      .reduce((sum, [, count]) => sum + count, 0);
    const paced = this.#plan.load.loop === 'open' && !this.#enough;
    const due = paced ? this.#schedule.dueBy(this.#elapsed()) : this.#sent;
    return {
      sent: this.#sent,
      accepted,
      unknown,
      refused: this.#refusedEvents,
      behind: due - this.#sent,
    };
  }

  close(): void {
    for (const lane of this.#lanes) lane.close();
  }

  #elapsed(): number {
    return performance.now() - this.#startMs;
  }

  #finished(): boolean {
    const { load } = this.#plan;
    const timeIsUp = load.loop === 'closed' && this.#elapsed() >= load.seconds * 1000;
    const over = this.#enough || timeIsUp || this.#sent === this.#schedule.total;
    return over && this.#answered === this.#sent;
  }

  #pump(): void {
    if (this.#enough) return;
    const elapsedMs = this.#elapsed();
    const due = this.#schedule.dueBy(elapsedMs);
    // Both clocks are read once a round: intended moments are kept on the clock that the receiver stamps arrivals with.
    const nowEpochMs = Date.now();
    while (this.#sent < due && this.#free.length > 0) this.#sendNext(elapsedMs, nowEpochMs);
  }

  #sendNext(elapsedMs: number, nowEpochMs: number): void {
    // In turn, so that no connection idles long enough for the server to close it under a request.
    const lane = this.#free.shift()!;
    const n = this.#sent;
    this.#sent += 1;
    const dueMs = this.#plan.load.loop === 'open' ? this.#schedule.dueAtMs(n) : elapsedMs;
    const intendedMs = nowEpochMs - (elapsedMs - dueMs);
    lane.send(this.#request(n), this.#startMs + elapsedMs, (answer) => {
      this.#settle(answer, dueMs, intendedMs);
      this.#free.push(lane);
      // A closed loop answers at once; in an open one the next tick may find requests that waited for a connection.
      if (this.#plan.load.loop === 'closed' || this.#free.length === 1) this.#pump();
    });
  }

  #settle(answer: Answer, dueMs: number, intendedMs: number): void {
    this.#answered += 1;
    const name = answer.status === 0 ? `lost: ${answer.text}` : String(answer.status);
    this.#answers[name] = (this.#answers[name] ?? 0) + 1;
    const posted = this.#plan.batch ?? 1;
    const events = acceptedEvents(answer, posted);
    this.#acceptedEvents += events;
    if (answer.status !== 0) this.#refusedEvents += posted - events;
    if (events === 0) return;
    const nowMs = this.#elapsed();
    this.accepted.push({ intendedMs, answer: answer.text });
    this.#lastAcceptedMs = Date.now();
    this.#firstAcceptedMs ||= this.#lastAcceptedMs;
    if (dueMs < this.#plan.measureFromSeconds * 1000) return;
    this.#latencies.record(nowMs - dueMs);
    this.#measured += events;
    this.#measuredSpan.fromMs ||= nowMs;
    this.#measuredSpan.toMs = nowMs;
  }

  #result(): GeneratorResult {
    const seconds = (this.#measuredSpan.toMs - this.#measuredSpan.fromMs) / 1000;
    return {
      ...this.progress(),
      answers: this.#answers,
      accept: this.#latencies.summary(),
      firstAcceptedMs: this.#firstAcceptedMs,
      lastAcceptedMs: this.#lastAcceptedMs,
      acceptedPerSecond: seconds > 0 ? Math.round(this.#measured / seconds) : 0,
    };
  }
}

/** A batch of which some events were refused says how many were not. */
function acceptedEvents({ status, text }: Answer, posted: number): number {
  if (status === 202) return posted;
  return status === 207 ? (JSON.parse(text) as { accepted: number }).accepted : 0;
}

/** Everything is due while there is time, so that connections alone set the pace. */
function closedSchedule(load: Extract<Load, { loop: 'closed' }>): Schedule {
  const total = load.events ?? Number.MAX_SAFE_INTEGER;
  return {
    total,
    dueAtMs: () => 0,
    dueBy: (elapsedMs) => (elapsedMs < load.seconds * 1000 ? total : 0),
  };
}

/**
 * Requests that differ in a number of fixed width only, so that writing one is a join of three strings. The filling is random
 * text: a payload of one repeated letter would be compressed to nothing by the database.
 */
function requestWriter(plan: GeneratorPlan): (n: number) => string {
  const run = randomBytes(6).toString('hex');
  if (plan.batch !== undefined) return batchWriter(plan, plan.batch, run);
  const writers = plan.eventTypes.map((type) => typeWriter(plan, type, run));
  return (n) => writers[n % writers.length]!(n);
}

const DIGITS = 10;

/** What a payload is before and after its number. */
function payloadAround(plan: GeneratorPlan, eventType: string, run: string): { start: string; end: string } {
  const start = `{"type":${JSON.stringify(eventType)},"run":"${run}","id":"`;
  const used = Buffer.byteLength(start) + DIGITS + '","filling":""}'.length;
  const filling = randomBytes(Math.max(0, plan.payloadBytes - used))
    .toString('base64url')
    .slice(0, Math.max(0, plan.payloadBytes - used));
  return { start, end: `","filling":"${filling}"}` };
}

/** Requests of several events each, of the same payloads as single ones. */
function batchWriter(plan: GeneratorPlan, size: number, run: string): (n: number) => string {
  const kinds = plan.eventTypes.map((type) => {
    const { start, end } = payloadAround(plan, type, run);
    return { start: `{"type":${JSON.stringify(type)},"payload":${start}`, end };
  });
  return (n) => {
    const items: string[] = [];
    for (let place = n * size; place < (n + 1) * size; place += 1) {
      const { start, end } = kinds[place % kinds.length]!;
      const id = String(place).padStart(DIGITS, '0');
      items.push(`${start}${id}${end}${plan.keyed ? `,"idempotency_key":"${run}-${id}"` : ''}}`);
    }
    const body = `[${items.join(',')}]`;
    return (
      `POST /v1/events/batch HTTP/1.1\r\nhost: relay\r\nauthorization: Bearer ${plan.key}\r\n` +
      `content-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`
    );
  };
}

function typeWriter(plan: GeneratorPlan, eventType: string, run: string): (n: number) => string {
  const { start, end } = payloadAround(plan, eventType, run);
  const length = Buffer.byteLength(start) + DIGITS + Buffer.byteLength(end);
  const head =
    `POST /v1/events HTTP/1.1\r\nhost: relay\r\nauthorization: Bearer ${plan.key}\r\n` +
    `content-type: application/json\r\ncontent-length: ${length}\r\n`;
  return (n) => {
    const id = String(n).padStart(DIGITS, '0');
    const key = plan.keyed ? `idempotency-key: ${run}-${id}\r\n` : '';
    return `${head}${key}\r\n${start}${id}${end}`;
  };
}
