import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

/** What happens to a request: an answer at once or later, no answer for as long as the sender stays, or a reset. */
export type Mood = { status: number; afterMs?: number; headers?: Record<string, string> } | 'hold' | 'reset';

export interface SinkArrival {
  deliveryId: string;
  /** Date.now() when its headers were read. */
  atMs: number;
}

/** Treats the requests of each path as it was last told to, and counts how many it had open at once. */
export interface SwitchedSink {
  url: string;
  /** For requests that arrive from now on; 200 where nothing was said. Those that are held stay held. */
  set(path: string, mood: Mood): void;
  /** In order of arrival. */
  arrivals(path: string): readonly SinkArrival[];
  /** Requests that are open now. */
  open(path: string): number;
  /** Since the path was last told what to do. */
  mostOpen(path: string): number;
  close(): Promise<void>;
}

interface Place {
  mood: Mood;
  arrivals: SinkArrival[];
  open: number;
  mostOpen: number;
}

export async function startSwitchedSink(): Promise<SwitchedSink> {
  const places = new Map<string, Place>();
  const placeOf = (path: string): Place => {
    const found = places.get(path);
    if (found) return found;
    const place: Place = { mood: { status: 200 }, arrivals: [], open: 0, mostOpen: 0 };
    places.set(path, place);
    return place;
  };
  const server = createServer((request, response) => {
    const place = placeOf(request.url ?? '/');
    const { mood } = place;
    place.arrivals.push({ deliveryId: String(request.headers['relay-delivery-id']), atMs: Date.now() });
    place.open += 1;
    place.mostOpen = Math.max(place.mostOpen, place.open);
    // Comes after an answer too, and when the sender hangs up or dies.
    response.once('close', () => {
      place.open -= 1;
    });
    request.resume();
    request.once('end', () => act(mood, response));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    set(path, mood) {
      const place = placeOf(path);
      place.mood = mood;
      place.mostOpen = place.open;
    },
    arrivals: (path) => placeOf(path).arrivals,
    open: (path) => placeOf(path).open,
    mostOpen: (path) => placeOf(path).mostOpen,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

function act(mood: Mood, response: ServerResponse): void {
  if (mood === 'hold') return;
  if (mood === 'reset') return void response.socket?.resetAndDestroy();
  const answer = () => response.writeHead(mood.status, mood.headers).end();
  if (mood.afterMs) setTimeout(answer, mood.afterMs);
  else answer();
}

/** The most arrivals within any second. */
export function busiestSecond(arrivals: readonly SinkArrival[]): number {
  const times = arrivals.map(({ atMs }) => atMs).sort((a, b) => a - b);
  let from = 0;
  let most = 0;
  for (const [at, time] of times.entries()) {
    while (time - times[from]! >= 1_000) from += 1;
    most = Math.max(most, at - from + 1);
  }
  return most;
}
