import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { deliveryMetrics } from '../../lib/metrics/delivery.ts';
import { ingestMetrics } from '../../lib/metrics/ingest.ts';
import { registerProcessMetrics } from '../../lib/metrics/process.ts';
import { rateMetrics } from '../../lib/metrics/rate.ts';
import { EMPTY_GAUGES, reconcileMetrics } from '../../lib/metrics/reconcile.ts';
import { Metrics } from '../../lib/metrics/registry.ts';
import { httpMetrics } from '../api/metrics.ts';

interface Row {
  name: string;
  type: string;
  /** Each label's name and its values, parted by semicolons; values are absent where the page tells them in words. */
  labels: string;
  processes: string;
}

const zero = () => 0;

/** The metrics that each process makes, as its start does. */
const PROCESSES: Record<string, (metrics: Metrics) => void> = {
  api: (metrics) => {
    ingestMetrics(metrics, { queued: zero });
    httpMetrics(metrics, ['someRoute']);
  },
  dispatcher: (metrics) => {
    deliveryMetrics(metrics, {
      inFlight: zero,
      ready: zero,
      readAhead: zero,
      oldestUnsettledMs: zero,
      idleClients: zero,
    });
    rateMetrics(metrics);
  },
  reconciler: (metrics) => {
    reconcileMetrics(metrics, { leader: () => false, gauges: () => EMPTY_GAUGES });
    rateMetrics(metrics);
  },
};

// Their values are the routes and the loops of a process.
const OPEN_LABELS = new Set(['route', 'loop']);

async function registeredRows(): Promise<Row[]> {
  const rows = new Map<string, Row>();
  for (const [process, register] of Object.entries(PROCESSES)) {
    const metrics = new Metrics({ processMetrics: false });
    register(metrics);
    registerProcessMetrics(metrics, ['someLoop'], {
      wake: () => 'stream',
      brokerUp: () => true,
      loops: () => [],
    });
    for (const metric of await metrics.registry.getMetricsAsJSON()) {
      const known = rows.get(metric.name);
      if (known) known.processes += `, ${process}`;
      else {
        const labels = labelsOf(metric.values);
        rows.set(metric.name, { name: metric.name, type: String(metric.type), labels, processes: process });
      }
    }
  }
  return [...rows.values()];
}

function labelsOf(values: readonly { labels: Partial<Record<string, string | number>> }[]): string {
  const told = new Map<string, Set<string>>();
  for (const { labels } of values) {
    for (const [name, value] of Object.entries(labels)) {
      if (name !== 'le') told.set(name, (told.get(name) ?? new Set()).add(`\`${value}\``));
    }
  }
  return [...told]
    .map(([name, all]) => (OPEN_LABELS.has(name) ? `\`${name}\`` : `\`${name}\`: ${[...all].join(', ')}`))
    .join('; ');
}

function documentedRows(): Row[] {
  const page = readFileSync(new URL('../../docs/metrics.md', import.meta.url), 'utf8');
  return page.split('\n').flatMap((line) => {
    const [, name = '', type = '', labels = '', processes = ''] = line.split('|').map((cell) => cell.trim());
    return /^`relay_\w+`$/.test(name) ? [{ name: name.slice(1, -1), type, labels, processes }] : [];
  });
}

const byName = (a: Row, b: Row) => a.name.localeCompare(b.name);

describe('the page on metrics', () => {
  it('tells name, type, labels and process of every metric there is, and of no other', async () => {
    expect(documentedRows().sort(byName)).toEqual((await registeredRows()).sort(byName));
  });

  it('speaks of no metric that is not in its tables', () => {
    const page = readFileSync(new URL('../../docs/metrics.md', import.meta.url), 'utf8');
    const tabled = new Set(documentedRows().map((row) => row.name));
    const named = page.match(/\brelay_[a-z_]+\b/g) ?? [];
    expect(named.filter((name) => !tabled.has(name))).toEqual([]);
  });
});
