import type { Seen } from './audit.ts';

/** Totals since the last reset, as the receiver's GET /received tells them. */
export interface ReceiverSummary {
  requests: number;
  deliveries: number;
  delivered: number;
  duplicates: number;
  rejected: number;
}

const PAGE = 50_000;

export async function resetReceiver(url: string): Promise<void> {
  await ask(`${url}/reset`, { method: 'POST' });
}

export async function setSecrets(url: string, secrets: readonly string[]): Promise<void> {
  await ask(`${url}/secret`, { method: 'POST', body: secrets.join('\n') });
}

/** Lets deliveries to the toggle of this name through, or not. */
export async function setToggle(url: string, name: string, on: boolean): Promise<void> {
  await ask(`${url}/toggle?name=${name}&on=${on ? 1 : 0}`, { method: 'POST' });
}

export async function receiverSummary(url: string): Promise<ReceiverSummary> {
  return (await ask(`${url}/received?summary=1`)).json() as Promise<ReceiverSummary>;
}

/** Every delivery seen, in pages, in order of arrival. */
export async function* receivedDeliveries(url: string): AsyncGenerator<Seen[]> {
  for (let since = 0; ; ) {
    const response = await ask(`${url}/received?since=${since}&limit=${PAGE}`);
    const page = (await response.json()) as { next: number; deliveries_seen: Seen[] };
    if (page.deliveries_seen.length === 0) return;
    yield page.deliveries_seen;
    since = page.next;
  }
}

async function ask(url: string, init: RequestInit = {}): Promise<Response> {
  const response = await fetch(url, { ...init, signal: AbortSignal.timeout(30_000) });
  if (!response.ok) throw new Error(`${url} answered ${response.status}: ${await response.text()}`);
  return response;
}
