export interface BatcherOptions<T> {
  /** At most this much weight in one flush; an item that is heavier goes by itself. */
  maxBatch: number;
  /** How much an item counts; 1 unless said. */
  weigh?: (item: T) => number;
  /** How long an item waits for company while other flushes are running; when all is quiet it goes at once. */
  lingerMs: number;
  /** Flushes that may run at the same time; one connection each. */
  lanes: number;
  /** Writes a batch. It must settle every item itself and must not reject. */
  flush: (items: T[]) => Promise<void>;
}

/**
 * Group commit: gathers items for a few milliseconds and writes them together. Under load batches fill while the lanes are
 * busy; when quiet an item goes out in the same turn of the event loop.
 */
export class Batcher<T> {
  readonly #options: BatcherOptions<T>;
  #queue: T[] = [];
  #head = 0;
  #weight = 0;
  #running = 0;
  #timer: NodeJS.Timeout | NodeJS.Immediate | null = null;
  #timerIsImmediate = false;
  #idle: (() => void)[] = [];

  constructor(options: BatcherOptions<T>) {
    this.#options = options;
  }

  add(item: T): void {
    this.#queue.push(item);
    this.#weight += this.#weigh(item);
    this.#schedule();
  }

  /** Items waiting to be written. */
  get queued(): number {
    return this.#queue.length - this.#head;
  }

  /** Flushes under way. */
  get running(): number {
    return this.#running;
  }

  /** Resolves when nothing is queued and no flush is running. */
  drain(): Promise<void> {
    if (this.queued === 0 && this.#running === 0) return Promise.resolve();
    return new Promise((resolve) => this.#idle.push(resolve));
  }

  #schedule(): void {
    if (this.#running >= this.#options.lanes || this.queued === 0) return;
    if (this.#weight >= this.#options.maxBatch) {
      this.#clearTimer();
      this.#flush();
      return;
    }
    if (this.#timer) return;
    const quiet = this.#running === 0 && this.queued === 1;
    this.#timerIsImmediate = quiet || this.#options.lingerMs === 0;
    const fire = () => {
      this.#timer = null;
      this.#flush();
    };
    this.#timer = this.#timerIsImmediate ? setImmediate(fire) : setTimeout(fire, this.#options.lingerMs);
  }

  #clearTimer(): void {
    if (!this.#timer) return;
    if (this.#timerIsImmediate) clearImmediate(this.#timer as NodeJS.Immediate);
    else clearTimeout(this.#timer as NodeJS.Timeout);
    this.#timer = null;
  }

  #flush(): void {
    if (this.#running >= this.#options.lanes || this.queued === 0) return;
    const batch = this.#take();
    this.#running += 1;
    void this.#options.flush(batch).finally(() => {
      this.#running -= 1;
      this.#schedule();
      if (this.queued === 0 && this.#running === 0) this.#announceIdle();
    });
    this.#schedule();
  }

  #take(): T[] {
    if (this.#weight <= this.#options.maxBatch) {
      const all = this.#head === 0 ? this.#queue : this.#queue.slice(this.#head);
      this.#queue = [];
      this.#head = 0;
      this.#weight = 0;
      return all;
    }
    const batch = this.#queue.slice(this.#head, this.#endOfBatch());
    this.#head += batch.length;
    // Moving the rest down for every batch would cost its square; now and then is enough.
    if (this.#head > 4096) {
      this.#queue = this.#queue.slice(this.#head);
      this.#head = 0;
    }
    return batch;
  }

  /** Where the next batch ends; what it holds is no longer counted as waiting. */
  #endOfBatch(): number {
    let end = this.#head;
    for (let weight = 0; end < this.#queue.length; end += 1) {
      const own = this.#weigh(this.#queue[end]!);
      if (end > this.#head && weight + own > this.#options.maxBatch) break;
      weight += own;
      this.#weight -= own;
    }
    return end;
  }

  #weigh(item: T): number {
    return this.#options.weigh?.(item) ?? 1;
  }

  #announceIdle(): void {
    const waiting = this.#idle;
    this.#idle = [];
    for (const resolve of waiting) resolve();
  }
}
