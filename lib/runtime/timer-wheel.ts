/** A scheduled call; hold it to cancel it. */
export type WheelTimer = Entry;

export interface TimerWheelOptions {
  /** The grain: a call comes up to this much late, plus what the event loop lags. */
  tickMs?: number;
}

/** With ticks of 20 ms one turn takes 10 s, so that a usual deadline is met in its first turn. A power of two. */
const SLOTS = 512;

/**
 * Timers for deadlines that nearly always are cancelled. Scheduling and cancelling cost a fraction of a microsecond
 * whatever the number of timers; in return they are coarse: never early, up to a tick late. One interval serves them all;
 * it runs only while something is scheduled and does not keep the process alive.
 */
export class TimerWheel {
  readonly #tickMs: number;
  readonly #slots: Entry[] = Array.from({ length: SLOTS }, () => new Entry(0, null));
  #turnedTo = 0;
  #size = 0;
  #interval: NodeJS.Timeout | null = null;

  constructor({ tickMs = 20 }: TimerWheelOptions = {}) {
    this.#tickMs = tickMs;
  }

  /** Timers that are scheduled now. */
  get size(): number {
    return this.#size;
  }

  /** Calls back once, no earlier than `delayMs` from now. */
  schedule(delayMs: number, callback: () => void): WheelTimer {
    const now = performance.now();
    if (this.#interval === null) this.#start(now);
    // At least the next tick: the slot of the present one may already have been emptied.
    const due = Math.max(Math.ceil((now + delayMs) / this.#tickMs), this.#turnedTo + 1);
    const entry = new Entry(due, callback);
    entry.linkBefore(this.#slotOf(due));
    this.#size++;
    return entry;
  }

  /** Does nothing when the call has come or was cancelled already. */
  cancel(timer: WheelTimer): void {
    if (timer.callback === null) return;
    timer.callback = null;
    timer.unlink();
    this.#size--;
  }

  #slotOf(tick: number): Entry {
    return this.#slots[tick % SLOTS]!;
  }

  #start(now: number): void {
    this.#turnedTo = Math.floor(now / this.#tickMs);
    this.#interval = setInterval(() => this.#turn(), this.#tickMs).unref();
  }

  #turn(): void {
    const tick = Math.floor(performance.now() / this.#tickMs);
    const due = this.#takeDue(tick);
    this.#turnedTo = Math.max(this.#turnedTo, tick);
    for (const entry of due) this.#fire(entry);
    if (this.#size === 0 && this.#interval !== null) {
      clearInterval(this.#interval);
      this.#interval = null;
    }
  }

  /** After a stall several ticks are caught up with, but no slot is looked at twice. */
  #takeDue(tick: number): Entry[] {
    const due: Entry[] = [];
    const last = Math.min(tick, this.#turnedTo + SLOTS);
    for (let each = this.#turnedTo + 1; each <= last; each++) {
      const slot = this.#slotOf(each);
      for (let entry = slot.next; entry !== slot; ) {
        const next = entry.next;
        // A slot also holds what is due in a later turn of the wheel.
        if (entry.dueTick <= tick) {
          entry.unlink();
          due.push(entry);
        }
        entry = next;
      }
    }
    return due;
  }

  #fire(entry: Entry): void {
    const { callback } = entry;
    // One that is due may be cancelled by the call of another.
    if (callback === null) return;
    entry.callback = null;
    this.#size--;
    try {
      callback();
    } catch (error) {
      // A bug in one call must neither silence the calls that are due beside it nor be swallowed.
      queueMicrotask(() => {
        throw error;
      });
    }
  }
}

/** A node of a slot's ring; the slot itself is a node without a callback. */
class Entry {
  readonly dueTick: number;
  callback: (() => void) | null;
  next: Entry = this;
  previous: Entry = this;

  constructor(dueTick: number, callback: (() => void) | null) {
    this.dueTick = dueTick;
    this.callback = callback;
  }

  linkBefore(other: Entry): void {
    this.previous = other.previous;
    this.next = other;
    other.previous.next = this;
    other.previous = this;
  }

  unlink(): void {
    this.previous.next = this.next;
    this.next.previous = this.previous;
    this.next = this;
    this.previous = this;
  }
}
