import { LRUCache } from 'lru-cache';

/** Two in a row, since one may be a server that is just restarting. */
const STRIKES = 2;

/** How long an origin is remembered before keeping its connections is tried again. */
const REMEMBERED_MS = 10 * 60_000;

/** Closed this soon after its first answer, a connection was never meant to be kept. */
export const SILENT_CLOSE_MS = 1_000;

/**
 * Origins that close a connection after its first answer without saying so. A request that is written in the moment of
 * such a close is lost half-way: recorded as a reset and sent again, often to a receiver that had read it. Under load this
 * would be every second request, so such an origin is told `connection: close` and gets a connection for each request.
 */
export class SilentClosers {
  readonly #strikes = new LRUCache<string, number>({ max: 10_000, ttl: REMEMBERED_MS });

  has(origin: string): boolean {
    return this.#strikes.size > 0 && (this.#strikes.get(origin) ?? 0) >= STRIKES;
  }

  /** A connection of this origin ended just after its first answer. */
  strike(origin: string): void {
    this.#strikes.set(origin, (this.#strikes.get(origin) ?? 0) + 1);
  }

  /** A connection of this origin has carried a second request. */
  acquit(origin: string): void {
    if (this.#strikes.size > 0) this.#strikes.delete(origin);
  }
}
