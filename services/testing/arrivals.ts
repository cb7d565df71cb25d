import { monitorEventLoopDelay } from 'node:perf_hooks';
import type { ReceivedDelivery } from '../receiver/server.ts';

/** A request as the receiver saw it, ms since 1970: when its headers were read, and when it was answered. */
export interface Arrival {
  deliveryId: string;
  atMs: number;
  answeredMs: number;
}

/** Notes when requests arrived, by path. Pass `note` to the receiver as `onDelivery`. */
export class Arrivals {
  readonly #byPath = new Map<string, Arrival[]>();

  readonly note = ({ url, deliveryId, atMs }: ReceivedDelivery): void => {
    this.of(url).push({ deliveryId, atMs, answeredMs: Date.now() });
  };

  /** What came to a path, with its query, so far; in order of the answers. */
  of(path: string): Arrival[] {
    const found = this.#byPath.get(path) ?? [];
    this.#byPath.set(path, found);
    return found;
  }

  /** The moments at which requests to a path arrived, in order. */
  moments(path: string): number[] {
    return this.of(path)
      .map(({ atMs }) => atMs)
      .sort((a, b) => a - b);
  }
}

/** How many of these moments lie from `from` on and before `to`. */
export function countWithin(moments: readonly number[], from: number, to: number): number {
  return moments.filter((moment) => moment >= from && moment < to).length;
}

/** The most of these moments, in order, that any stretch of so many ms holds. */
export function mostWithin(moments: readonly number[], ms: number): number {
  let first = 0;
  let most = 0;
  for (const [place, moment] of moments.entries()) {
    while (moments[first]! <= moment - ms) first += 1;
    most = Math.max(most, place - first + 1);
  }
  return most;
}

export function mostInASecond(moments: readonly number[]): number {
  return mostWithin(moments, 1_000);
}

/** The most requests that were open at once. */
export function mostOpen(arrivals: readonly Arrival[]): number {
  const steps = arrivals.flatMap(({ atMs, answeredMs }) => [
    { at: atMs, by: 1 },
    { at: answeredMs, by: -1 },
  ]);
  // An answer and an arrival in one millisecond: whoever answered first made room.
  steps.sort((a, b) => a.at - b.at || a.by - b.by);
  let open = 0;
  let most = 0;
  for (const { by } of steps) {
    open += by;
    most = Math.max(most, open);
  }
  return most;
}

/**
 * Notes for how long this process stood still at worst. While a machine has more to run than it can, what was sent a moment apart arrives
 * together, so a bound on what a second holds is told how late things may be: twice as much, since sender and receiver both may stand still.
 */
export class Stillness {
  readonly #lag = monitorEventLoopDelay({ resolution: 10 });

  constructor() {
    this.#lag.enable();
  }

  /** Forgets what was; call it where the time that counts begins. */
  reset(): void {
    this.#lag.reset();
  }

  get latenessSeconds(): number {
    return (2 * this.#lag.max) / 1e9;
  }
}
