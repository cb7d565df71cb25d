import type { ReceivedDelivery } from '../receiver/server.ts';

/** A delivery as the summary shows it. */
export interface WatchedDelivery {
  at: Date;
  type: string;
  deliveryId: string;
  attempt: number;
  status: number;
  verified: boolean;
  /** From posting to the receiver; null for an event that this run did not post. */
  latencyMs: number | null;
}

const RECENT = 6;
const WINDOW = 500;
/** Posted and not yet seen: past it the oldest are forgotten, since a receiver that is away for hours must cost no memory. */
const MAX_OPEN = 10_000;

/** Follows the demo's events from posting to the receiver. */
export class DemoWatch {
  readonly recent: WatchedDelivery[] = [];
  readonly #postedAt = new Map<string, number>();
  readonly #latencies: number[] = [];

  /** An event with this id in its body is about to be posted. */
  posted(id: string): void {
    this.#postedAt.set(id, performance.now());
    const [oldest] = this.#postedAt.keys();
    if (this.#postedAt.size > MAX_OPEN && oldest !== undefined) this.#postedAt.delete(oldest);
  }

  received(delivery: ReceivedDelivery): void {
    const latencyMs = this.#latencyOf(delivery);
    if (latencyMs !== null) this.#latencies.push(latencyMs);
    if (this.#latencies.length > WINDOW) this.#latencies.shift();
    this.recent.push({
      at: new Date(delivery.atMs),
      type: delivery.eventType,
      deliveryId: delivery.deliveryId,
      attempt: delivery.attempt,
      status: delivery.status,
      verified: delivery.verification?.ok === true,
      latencyMs,
    });
    if (this.recent.length > RECENT) this.recent.shift();
  }

  /** From posting to the receiver over the last few hundred events, ms; null before the first. */
  percentile(share: number): number | null {
    if (this.#latencies.length === 0) return null;
    const sorted = [...this.#latencies].sort((a, b) => a - b);
    return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? null;
  }

  #latencyOf({ body, status }: ReceivedDelivery): number | null {
    const id = idIn(body);
    const postedAt = id === null ? undefined : this.#postedAt.get(id);
    if (id === null || postedAt === undefined || status > 299) return null;
    this.#postedAt.delete(id);
    return performance.now() - postedAt;
  }
}

function idIn(body: Buffer | null): string | null {
  try {
    const { id } = JSON.parse(String(body)) as { id?: unknown };
    return typeof id === 'string' ? id : null;
  } catch {
    return null;
  }
}
