import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';

export { Counter, Gauge, Histogram, Registry } from 'prom-client';

/** 0.5 ms to 1 s: what happens before an answer leaves. */
export const FAST_BUCKETS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1];
/** 5 ms to 15 s: what involves somebody else's server. */
export const SLOW_BUCKETS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15];
/** 5 ms to an hour: how long something waited. */
export const WAIT_BUCKETS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300, 3600];
export const BATCH_BUCKETS = [1, 2, 4, 8, 16, 32, 64, 128, 256];

/**
 * The metrics of one process. Every label value that a metric can ever carry exists at zero from the start: a counter that never
 * fired must not look like a broken exporter.
 */
export class Metrics {
  readonly registry = new Registry();

  constructor(options: { processMetrics: boolean }) {
    if (options.processMetrics) collectDefaultMetrics({ register: this.registry });
  }

  counter(name: string, help: string): Counter {
    return new Counter({ name, help, registers: [this.registry] });
  }

  /** A counter with one label whose values are known; returns one bound child for each. */
  counters<V extends string>(
    name: string,
    help: string,
    label: string,
    values: readonly V[],
  ): Record<V, { inc(by?: number): void }> {
    const counter = new Counter({ name, help, labelNames: [label], registers: [this.registry] });
    const children = values.map((value) => {
      const child = counter.labels({ [label]: value });
      child.inc(0);
      return [value, child] as const;
    });
    return Object.fromEntries(children) as Record<V, { inc(by?: number): void }>;
  }

  /** A gauge that is read when it is scraped. */
  gauge(name: string, help: string, read: () => number): Gauge {
    return new Gauge({
      name,
      help,
      registers: [this.registry],
      collect() {
        this.set(read());
      },
    });
  }

  /** A gauge with one label, read when it is scraped; values that `read` leaves out are 0. */
  gauges<V extends string>(
    name: string,
    help: string,
    label: string,
    values: readonly V[],
    read: () => Partial<Record<V, number>>,
  ): Gauge {
    return new Gauge({
      name,
      help,
      labelNames: [label],
      registers: [this.registry],
      collect() {
        const now = read();
        for (const value of values) this.set({ [label]: value }, now[value] ?? 0);
      },
    });
  }

  /** A gauge with two labels, read for each pair of their values when it is scraped. */
  gaugeTable<V extends string, W extends string>(
    name: string,
    help: string,
    labels: readonly [
      first: { name: string; values: readonly V[] },
      second: { name: string; values: readonly W[] },
    ],
    read: (first: V, second: W) => number,
  ): Gauge {
    const [first, second] = labels;
    return new Gauge({
      name,
      help,
      labelNames: [first.name, second.name],
      registers: [this.registry],
      collect() {
        for (const a of first.values)
          for (const b of second.values) this.set({ [first.name]: a, [second.name]: b }, read(a, b));
      },
    });
  }

  histogram(name: string, help: string, buckets: readonly number[]): Histogram {
    return new Histogram({ name, help, buckets: [...buckets], registers: [this.registry] });
  }
}
