/** Why a claimed delivery cannot go now. */
export type Admission = 'start' | 'queued' | 'full';

interface Lane<T> {
  endpointId: string;
  cap: number;
  active: number;
  queue: { item: T; since: number }[];
  /** Whether it stands in a rotation. */
  waiting: boolean;
  slow: boolean;
  /** Nothing was known of the endpoint when its lane was opened. */
  unknown: boolean;
}

export interface ReadyQueueOptions {
  maxInFlight: number;
  /** Whether an endpoint that is met anew counts as slow; null when nothing is known of it: as slow, but for its first request. */
  isSlow: (endpointId: string) => boolean | null;
}

/**
 * Claimed deliveries that wait in the process for their turn. Each endpoint has a lane with its own cap; lanes with something to send take
 * turns, so an endpoint with many deliveries delays its neighbours by one send each, not by its backlog. Slow endpoints together hold at
 * most half of the process's slots, however many of them there are: the others' turn comes within their own latency. An endpoint that is not
 * known yet counts as slow, or fifty new ones that hang would hold every slot; but one request to it may go while a quarter of the slots is
 * left to the quick, or the first delivery to a healthy one would wait until a slow one gives up.
 */
export class ReadyQueue<T> {
  readonly #options: ReadyQueueOptions;
  readonly #lanes = new Map<string, Lane<T>>();
  readonly #slowMax: number;
  readonly #slowMaxWithFirst: number;
  #quickTurns: Lane<T>[] = [];
  #slowTurns: Lane<T>[] = [];
  #slowTurn = false;
  #inFlight = 0;
  #slowInFlight = 0;
  #ready = 0;

  constructor(options: ReadyQueueOptions) {
    this.#options = options;
    this.#slowMax = Math.max(1, Math.floor(options.maxInFlight / 2));
    this.#slowMaxWithFirst = Math.max(this.#slowMax, Math.floor((options.maxInFlight * 3) / 4));
  }

  get inFlight(): number {
    return this.#inFlight;
  }

  /** Sends under way to endpoints that are not slow: those that will soon need this process again. */
  get quickInFlight(): number {
    return this.#inFlight - this.#slowInFlight;
  }

  /** Deliveries that wait. */
  get ready(): number {
    return this.#ready;
  }

  get freeSlots(): number {
    return this.#options.maxInFlight - this.#inFlight;
  }

  /** Deliveries that wait for nothing but a slot of the process; the rest waits for its own endpoint. */
  get startable(): number {
    const count = (turns: readonly Lane<T>[]) =>
      turns.reduce((sum, lane) => sum + Math.min(lane.queue.length, Math.max(0, lane.cap - lane.active)), 0);
    const slowRoom = Math.max(0, this.#slowMax - this.#slowInFlight);
    return count(this.#quickTurns) + Math.min(count(this.#slowTurns), slowRoom);
  }

  /**
   * Takes a delivery in. `start`: it has a slot and must be begun now (and `finished` called after). `queued`: `next` will return it.
   * `full`: its endpoint has all it can use, and as much waiting as is worth the wait.
   */
  admit(endpointId: string, cap: number, item: T, now: number): Admission {
    const lane = this.#lane(endpointId, cap);
    if (lane.queue.length === 0 && this.#hasSlot(lane)) {
      this.#occupy(lane);
      return 'start';
    }
    // What waits for its own endpoint takes room that others could use: there is a limit for each, and one for all of them.
    if (lane.queue.length >= 2 * cap || (this.#blocked(lane) && this.#ready >= this.#options.maxInFlight)) {
      this.#forgetIdle(lane);
      return 'full';
    }
    lane.queue.push({ item, since: now });
    this.#ready += 1;
    this.#enterTurns(lane);
    return 'queued';
  }

  /** Gives a slot back. */
  finished(endpointId: string): void {
    const lane = this.#lanes.get(endpointId);
    if (!lane || lane.active === 0) throw new Error('a slot was given back that nobody held');
    lane.active -= 1;
    this.#inFlight -= 1;
    if (lane.slow) this.#slowInFlight -= 1;
    this.#enterTurns(lane);
    this.#forgetIdle(lane);
  }

  /** The next delivery that has a slot now, in turns by endpoint; null when there is none. */
  next(): T | null {
    if (this.#inFlight >= this.#options.maxInFlight) return null;
    this.#slowTurn = !this.#slowTurn;
    const first = this.#slowTurn ? this.#nextSlow() : this.#nextOf(this.#quickTurns);
    return first ?? (this.#slowTurn ? this.#nextOf(this.#quickTurns) : this.#nextSlow());
  }

  /** Says how an endpoint has been lately; what is in flight to it counts accordingly from then on. */
  setSlow(endpointId: string, slow: boolean): void {
    const lane = this.#lanes.get(endpointId);
    if (!lane) return;
    lane.unknown = false;
    if (lane.slow === slow) return;
    if (lane.waiting) this.#leaveTurns(lane);
    lane.slow = slow;
    this.#slowInFlight += slow ? lane.active : -lane.active;
    this.#enterTurns(lane);
  }

  /** Takes out what has waited since before `oldest`, and says whether its own endpoint held it back. */
  takeOverdue(oldest: number): { item: T; endpointFull: boolean }[] {
    const overdue: { item: T; endpointFull: boolean }[] = [];
    for (const lane of this.#lanes.values()) {
      while (lane.queue[0] && lane.queue[0].since < oldest) {
        const entry = lane.queue.shift();
        if (entry) overdue.push({ item: entry.item, endpointFull: this.#blocked(lane) });
      }
      this.#forgetIdle(lane);
    }
    this.#ready -= overdue.length;
    return overdue;
  }

  /** Takes out everything that waits. */
  takeAll(): T[] {
    return this.takeOverdue(Number.POSITIVE_INFINITY).map((entry) => entry.item);
  }

  #lane(endpointId: string, cap: number): Lane<T> {
    let lane = this.#lanes.get(endpointId);
    if (!lane) {
      const slow = this.#options.isSlow(endpointId);
      lane = {
        endpointId,
        cap,
        active: 0,
        queue: [],
        waiting: false,
        slow: slow ?? true,
        unknown: slow === null,
      };
      this.#lanes.set(endpointId, lane);
    }
    lane.cap = cap;
    return lane;
  }

  #hasSlot(lane: Lane<T>): boolean {
    return this.#inFlight < this.#options.maxInFlight && !this.#blocked(lane);
  }

  #blocked(lane: Lane<T>): boolean {
    const slowMax = lane.unknown && lane.active === 0 ? this.#slowMaxWithFirst : this.#slowMax;
    return lane.active >= lane.cap || (lane.slow && this.#slowInFlight >= slowMax);
  }

  #occupy(lane: Lane<T>): void {
    lane.active += 1;
    this.#inFlight += 1;
    if (lane.slow) this.#slowInFlight += 1;
  }

  #nextSlow(): T | null {
    return this.#slowInFlight < this.#slowMax ? this.#nextOf(this.#slowTurns) : null;
  }

  #nextOf(turns: Lane<T>[]): T | null {
    for (let lane = turns.shift(); lane; lane = turns.shift()) {
      lane.waiting = false;
      const entry = lane.active < lane.cap ? lane.queue.shift() : undefined;
      if (!entry) {
        this.#forgetIdle(lane);
        continue;
      }
      this.#ready -= 1;
      this.#occupy(lane);
      this.#enterTurns(lane);
      return entry.item;
    }
    return null;
  }

  #turnsOf(lane: Lane<T>): Lane<T>[] {
    return lane.slow ? this.#slowTurns : this.#quickTurns;
  }

  #enterTurns(lane: Lane<T>): void {
    if (lane.waiting || lane.queue.length === 0 || lane.active >= lane.cap) return;
    lane.waiting = true;
    this.#turnsOf(lane).push(lane);
  }

  #leaveTurns(lane: Lane<T>): void {
    const turns = this.#turnsOf(lane);
    turns.splice(turns.indexOf(lane), 1);
    lane.waiting = false;
  }

  #forgetIdle(lane: Lane<T>): void {
    if (lane.active === 0 && lane.queue.length === 0 && !lane.waiting) this.#lanes.delete(lane.endpointId);
  }
}
