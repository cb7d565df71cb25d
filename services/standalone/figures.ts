/** What the services have counted since this process started. */
export interface Counted {
  accepted: number;
  delivered: number;
  retries: number;
  dead: number;
  /** How dispatchers learn of work at this moment. */
  mode: 'stream' | 'poll';
}

const TIMEOUT_MS = 2_000;

/** Reads the services' own metrics, as any Prometheus would. Throws when one of them does not answer. */
export async function readCounted(urls: { api: string; dispatcher: string }): Promise<Counted> {
  const [api, dispatcher] = await Promise.all([scrape(urls.api), scrape(urls.dispatcher)]);
  return {
    accepted: api('relay_ingest_total', 'outcome="accepted"'),
    delivered: dispatcher('relay_delivery_attempts_total', 'outcome="success"'),
    retries: dispatcher('relay_delivery_attempts_total', 'outcome="retryable"'),
    dead: dispatcher('relay_deliveries_dead_total'),
    mode: dispatcher('relay_wake_mode', 'mode="stream"') > 0 ? 'stream' : 'poll',
  };
}

type Sum = (name: string, label?: string) => number;

async function scrape(url: string): Promise<Sum> {
  const response = await fetch(`${url}/metrics`, { signal: AbortSignal.timeout(TIMEOUT_MS) });
  return sumOf(await response.text());
}

/** Sums the samples of a metric in Prometheus text, of all labels or of those that have this one. */
export function sumOf(exposition: string): Sum {
  const lines = exposition.split('\n');
  return (name, label) => {
    let sum = 0;
    for (const line of lines) {
      const [series = '', value] = line.split(' ');
      const labels = labelsOf(series, name);
      if (labels !== null && (label === undefined || labels.includes(label))) sum += Number(value);
    }
    return sum;
  };
}

/** The labels of a series of this metric; null for another metric's. */
function labelsOf(series: string, name: string): string[] | null {
  if (series === name) return [];
  if (!series.startsWith(`${name}{`)) return null;
  return series.slice(name.length + 1, -1).split(',');
}
