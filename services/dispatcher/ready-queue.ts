/** Why a claimed delivery cannot go now. */
export type Admission = 'start' | 'queued' | 'full';

interface Lane<T> {
  endpointId: string;
  cap: number;
  active: number;
  queue: { item: T; since: number }[];
  /** Whether it stands in the rotation. */
  waiting: boolean;
}

/**
 * Claimed deliveries that wait in the process for their turn. Each endpoint has a lane with its own cap; lanes with something to send take
 * turns, so an endpoint with many deliveries delays its neighbours by one send each, not by its backlog.
 */
export class ReadyQueue<T> {
  readonly #maxInFlight: number;
  readonly #lanes = new Map<string, Lane<T>>();
  #rotation: Lane<T>[] = [];
  #inFlight = 0;
  #ready = 0;

  constructor(options: { maxInFlight: number }) {
    this.#maxInFlight = options.maxInFlight;
  }

  get inFlight(): number {
    return this.#inFlight;
  }

  /** Deliveries that wait. */
  get ready(): number {
    return this.#ready;
  }

  get freeSlots(): number {
    return this.#maxInFlight - this.#inFlight;
  }

  /**
   * Takes a delivery in. `start`: it has a slot and must be sent now (and `finished` called after). `queued`: `next` will return it.
   * `full`: its endpoint has all it can use, and twice that waiting.
   */
  admit(endpointId: string, cap: number, item: T, now: number): Admission {
    const lane = this.#lane(endpointId, cap);
    if (lane.active < cap && lane.queue.length === 0 && this.#inFlight < this.#maxInFlight) {
      this.#occupy(lane);
      return 'start';
    }
    if (lane.queue.length >= 2 * cap) return 'full';
    lane.queue.push({ item, since: now });
    this.#ready += 1;
    this.#enterRotation(lane);
    return 'queued';
  }

  /** Gives a slot back. */
  finished(endpointId: string): void {
    const lane = this.#lanes.get(endpointId);
    if (!lane || lane.active === 0) throw new Error('a slot was given back that nobody held');
    lane.active -= 1;
    this.#inFlight -= 1;
    this.#enterRotation(lane);
    this.#forgetIdle(lane);
  }

  /** The next delivery that has a slot now, in turns by endpoint; null when there is none. */
  next(): T | null {
    while (this.#inFlight < this.#maxInFlight) {
      const lane = this.#rotation.shift();
      if (!lane) return null;
      lane.waiting = false;
      const entry = lane.active < lane.cap ? lane.queue.shift() : undefined;
      if (!entry) continue;
      this.#ready -= 1;
      this.#occupy(lane);
      this.#enterRotation(lane);
      return entry.item;
    }
    return null;
  }

  /** Takes out what has waited since before `oldest`, and says whether its own endpoint's cap held it back. */
  takeOverdue(oldest: number): { item: T; endpointFull: boolean }[] {
    const overdue: { item: T; endpointFull: boolean }[] = [];
    for (const lane of this.#lanes.values()) {
      while (lane.queue[0] && lane.queue[0].since < oldest) {
        const entry = lane.queue.shift();
        if (entry) overdue.push({ item: entry.item, endpointFull: lane.active >= lane.cap });
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
      lane = { endpointId, cap, active: 0, queue: [], waiting: false };
      this.#lanes.set(endpointId, lane);
    }
    lane.cap = cap;
    return lane;
  }

  #occupy(lane: Lane<T>): void {
    lane.active += 1;
    this.#inFlight += 1;
  }

  #enterRotation(lane: Lane<T>): void {
    if (lane.waiting || lane.queue.length === 0 || lane.active >= lane.cap) return;
    lane.waiting = true;
    this.#rotation.push(lane);
  }

  #forgetIdle(lane: Lane<T>): void {
    if (lane.active === 0 && lane.queue.length === 0 && !lane.waiting) this.#lanes.delete(lane.endpointId);
  }
}
