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
  /** The body of the 202. */
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
    const accepted = this.accepted.length;
    const unknown = Object.entries(this.#answers)
      .filter(([name]) => name.startsWith('lost'))
      .reduce((sum, [, count]) => sum + count, 0);
    const paced = this.#plan.load.loop === 'open' && !this.#enough;
    const due = paced ? this.#schedule.dueBy(this.#elapsed()) : this.#sent;
    return {
      sent: this.#sent,
      accepted,
      unknown,
      refused: this.#answered - accepted - unknown,
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
    if (answer.status !== 202) return;
    const nowMs = this.#elapsed();
    this.accepted.push({ intendedMs, answer: answer.text });
    this.#lastAcceptedMs = Date.now();
    this.#firstAcceptedMs ||= this.#lastAcceptedMs;
    if (dueMs < this.#plan.measureFromSeconds * 1000) return;
    this.#latencies.record(nowMs - dueMs);
    this.#measured += 1;
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
  const writers = plan.eventTypes.map((type) => typeWriter(plan, type, run));
  return (n) => writers[n % writers.length]!(n);
}

function typeWriter(plan: GeneratorPlan, eventType: string, run: string): (n: number) => string {
  const bodyStart = `{"type":${JSON.stringify(eventType)},"run":"${run}","id":"`;
  const digits = 10;
  const used = Buffer.byteLength(bodyStart) + digits + '","filling":""}'.length;
  const filling = randomBytes(Math.max(0, plan.payloadBytes - used))
    .toString('base64url')
    .slice(0, Math.max(0, plan.payloadBytes - used));
  const bodyEnd = `","filling":"${filling}"}`;
  const length = Buffer.byteLength(bodyStart) + digits + Buffer.byteLength(bodyEnd);
  const head =
    `POST /v1/events HTTP/1.1\r\nhost: relay\r\nauthorization: Bearer ${plan.key}\r\n` +
    `content-type: application/json\r\ncontent-length: ${length}\r\n`;
  return (n) => {
    const id = String(n).padStart(digits, '0');
    const key = plan.keyed ? `idempotency-key: ${run}-${id}\r\n` : '';
    return `${head}${key}\r\n${bodyStart}${id}${bodyEnd}`;
  };
}
