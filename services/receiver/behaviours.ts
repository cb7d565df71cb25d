import type { IncomingHttpHeaders, ServerResponse } from 'node:http';
import type { Verification } from './signatures.ts';
import { numberIn, type Target } from './target.ts';

/** One delivery request, read in full, waiting for whatever its URL says should happen to it. */
export interface Exchange {
  readonly target: Target;
  readonly headers: IncomingHttpHeaders;
  /** Null where the route does not read bodies and nobody asked for them. */
  readonly body: Buffer | null;
  readonly response: ServerResponse;
  verification: Verification | null;
  /** Answers and counts; `headers` is a flat list of names and values. */
  reply(status: number, text: string, headers?: readonly string[]): void;
  /** Counts an answer that the behaviour writes itself; status 0 means that none was given. */
  note(status: number): void;
  /** Runs the action later; when the sender hangs up first, counts that nothing was answered instead. */
  later(delayMs: number, action: () => void): void;
  /** Runs the action again and again until the connection ends. */
  every(intervalMs: number, action: () => void): void;
}

export interface BehaviourContext {
  verify(exchange: Exchange): Verification;
  /** Whether the toggle of this name is on. */
  isOn(name: string): boolean;
}

export type Behaviour = (exchange: Exchange, context: BehaviourContext) => void;

/** Routes whose answer depends on the body's bytes. */
export const READS_BODY: ReadonlySet<string> = new Set(['/verify']);

/** The misbehaviour that a delivery URL's path asks for; null for a path that means nothing here. */
export function behaviourOf(path: string): Behaviour | null {
  return BEHAVIOURS[path] ?? (/^\/always\/[2-9]\d\d$/.test(path) ? always : null);
}

const BEHAVIOURS: Record<string, Behaviour> = {
  '/sink': sink,
  '/verify': verify,
  '/slow': slow,
  '/flaky': flaky,
  '/429': tooMany,
  '/bigbody': bigBody,
  '/trickle': trickle,
  '/hang': hang,
  '/toggle': toggle,
  '/redirect': redirect,
  '/drop': drop,
};

/** With `hangup=1` the connection is closed behind each answer without notice, as some servers do to keep-alive. */
function sink(exchange: Exchange): void {
  if (exchange.target.query.has('hangup')) {
    const { socket } = exchange.response;
    exchange.response.once('finish', () => socket?.destroySoon());
  }
  exchange.reply(200, '');
}

function verify(exchange: Exchange, context: BehaviourContext): void {
  const verification = context.verify(exchange);
  exchange.verification = verification;
  if (verification.ok) exchange.reply(200, 'verified');
  else exchange.reply(401, verification.reason);
}

function always(exchange: Exchange): void {
  exchange.reply(Number(exchange.target.path.slice('/always/'.length)), 'as asked');
}

function slow(exchange: Exchange): void {
  exchange.later(numberIn(exchange.target, 'ms', 1000), () => exchange.reply(200, 'at last'));
}

/**
 * Fails `pct` in every hundred requests, spread as evenly as they go, and the same ones each time: pct=50 fails every
 * second request, pct=10 every tenth. Runs of failures belong to `/always` and `/toggle`.
 */
function flaky(exchange: Exchange): void {
  const pct = Math.min(100, Math.max(0, numberIn(exchange.target, 'pct', 50)));
  const { hits } = exchange.target;
  const fails = Math.floor((hits * pct) / 100) > Math.floor(((hits - 1) * pct) / 100);
  if (fails) exchange.reply(500, 'flaky');
  else exchange.reply(200, 'ok');
}

/** The header's text is passed on as given, however odd, and repeated as often as it stands in the query. */
function tooMany(exchange: Exchange): void {
  const asked = exchange.target.query.getAll('retry_after').flatMap((value) => ['retry-after', value]);
  exchange.reply(numberIn(exchange.target, 'status', 429), 'slow down', asked);
}

function bigBody(exchange: Exchange): void {
  const kilobytes = Math.max(0, numberIn(exchange.target, 'kb', 1024));
  exchange.reply(numberIn(exchange.target, 'status', 500), 'x'.repeat(kilobytes * 1024));
}

/** Headers at once, then a byte every `ms` for ever; with `part=headers` the header block itself never ends. */
function trickle(exchange: Exchange): void {
  const { response, target } = exchange;
  const intervalMs = Math.max(1, numberIn(target, 'ms', 50));
  if (target.query.get('part') === 'headers') {
    const { socket } = response;
    socket?.write('HTTP/1.1 200 OK\r\nx-slow: ');
    exchange.note(0);
    exchange.every(intervalMs, () => socket?.write('x'));
    return;
  }
  response.writeHead(200, ['content-type', 'text/plain']);
  response.flushHeaders();
  exchange.note(200);
  exchange.every(intervalMs, () => response.write('.'));
}

/** Takes the request and says nothing, for as long as the sender stays. */
function hang(exchange: Exchange): void {
  exchange.response.once('close', () => exchange.note(0));
}

/** While it is off it refuses with 503, or with `off=hang` or `off=trickle` does that instead. */
function toggle(exchange: Exchange, context: BehaviourContext): void {
  const { query } = exchange.target;
  if (context.isOn(query.get('name') ?? '')) return exchange.reply(200, 'on');
  switch (query.get('off')) {
    case 'hang':
      return hang(exchange);
    case 'trickle':
      return trickle(exchange);
    default:
      exchange.reply(503, 'off');
  }
}

function redirect(exchange: Exchange): void {
  const to = exchange.target.query.get('to') ?? '/sink';
  exchange.reply(numberIn(exchange.target, 'status', 302), 'elsewhere', ['location', to]);
}

function drop(exchange: Exchange): void {
  exchange.note(0);
  exchange.response.socket?.destroy();
}
