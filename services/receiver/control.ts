import type { IncomingMessage, ServerResponse } from 'node:http';
import type { ReceiverState } from './state.ts';
import { numberIn, type Target } from './target.ts';

const DEFAULT_PAGE = 10_000;
const MAX_PAGE = 100_000;
const MAX_CONTROL_BODY_BYTES = 64 * 1024;

/**
 * The receiver's own side: what a test asks and tells it, apart from the deliveries it plays the customer for. Returns
 * false for anything else.
 */
export function handleControl(
  state: ReceiverState,
  target: Target,
  request: IncomingMessage,
  response: ServerResponse,
): boolean {
  switch (`${request.method} ${target.path}`) {
    case 'GET /healthz':
      sendJson(response, 200, { status: 'ok' });
      return true;
    case 'GET /received':
      sendJson(response, 200, received(state, target));
      return true;
    case 'POST /secret':
      setSecrets(state, request, response);
      return true;
    case 'POST /reset':
      state.reset();
      sendJson(response, 200, { status: 'reset' });
      return true;
    case 'POST /toggle':
      return flip(state, target, response);
    default:
      return false;
  }
}

/**
 * `?summary=1` totals alone; `?id=` one delivery; `?since=&limit=` a page in order of arrival, to be continued from
 * `next`; `?reset=1` forgets everything after answering.
 */
function received(state: ReceiverState, target: Target): object {
  const { ledger } = state;
  const summary = state.counts();
  const id = target.query.get('id');
  if (id !== null) return { ...summary, deliveries_seen: [ledger.find(id)].filter((seen) => seen !== null) };
  if (target.query.has('summary')) {
    if (target.query.has('reset')) state.reset();
    return summary;
  }
  const since = Math.max(0, numberIn(target, 'since', 0));
  const limit = Math.min(MAX_PAGE, Math.max(1, numberIn(target, 'limit', DEFAULT_PAGE)));
  const page = ledger.page(since, limit);
  if (target.query.has('reset')) state.reset();
  return { ...summary, next: since + page.length, deliveries_seen: page };
}

/** One secret a line, any of which may match: two during a rotation. */
function setSecrets(state: ReceiverState, request: IncomingMessage, response: ServerResponse): void {
  const chunks: Buffer[] = [];
  let bytes = 0;
  request.on('data', (chunk: Buffer) => {
    bytes += chunk.length;
    if (bytes <= MAX_CONTROL_BODY_BYTES) chunks.push(chunk);
  });
  request.on('end', () => {
    if (bytes > MAX_CONTROL_BODY_BYTES)
      return sendJson(response, 413, { error: 'at most 64 KiB of secrets' });
    const secrets = Buffer.concat(chunks)
      .toString('utf8')
      .split('\n')
      .map((line) => line.trim())
      .filter((line) => line !== '');
    if (secrets.length === 0) return sendJson(response, 400, { error: 'the body must hold a secret a line' });
    state.setSecrets(secrets);
    sendJson(response, 200, { secrets: secrets.length });
  });
}

/**
 * `POST /toggle?on=1` lets deliveries to `/toggle` through, `?on=0` refuses them again; `name=` picks one of several.
 * A POST to `/toggle` without `on` is a delivery.
 */
function flip(state: ReceiverState, target: Target, response: ServerResponse): boolean {
  const on = target.query.get('on');
  if (on === null) return false;
  const name = target.query.get('name') ?? '';
  state.setToggle(name, on === '1' || on === 'true');
  sendJson(response, 200, { name, on: state.isOn(name) });
  return true;
}

export function sendJson(response: ServerResponse, status: number, value: object): void {
  const text = JSON.stringify(value);
  response.writeHead(status, [
    'content-type',
    'application/json',
    'content-length',
    String(Buffer.byteLength(text)),
  ]);
  response.end(text);
}
