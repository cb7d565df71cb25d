import type { WatchedDelivery } from './demo-watch.ts';
import type { Counted } from './figures.ts';

export interface Running {
  version: string;
  apiUrl: string;
  adminKey: string;
  dispatcherMetricsUrl: string;
  reconcilerMetricsUrl: string;
  /** Null without the demo. */
  receiverUrl: string | null;
  dataDir: string;
  postgres: string;
  redis: string;
  privateEndpoints: boolean;
}

export interface Status {
  since: Date;
  now: Date;
  /** Null while a service does not answer. */
  counted: Counted | null;
  /** Null while the database does not answer; `capped` when there may be more. */
  queue: { size: number; capped: boolean } | null;
  /** Null without the demo. */
  demo: {
    verified: number;
    rejected: number;
    p50Ms: number | null;
    p99Ms: number | null;
    recent: readonly WatchedDelivery[];
  } | null;
}

/** Said once, when everything runs. */
export function header(running: Running): string {
  const rows: [string, string][] = [
    ['API', running.apiUrl],
    ['Admin key', running.adminKey],
    ...(running.receiverUrl
      ? [['Receiver', `${running.receiverUrl}/received (what arrived)`] as [string, string]]
      : []),
    [
      'Metrics',
      [running.apiUrl, running.dispatcherMetricsUrl, running.reconcilerMetricsUrl].map(metrics).join('  '),
    ],
    ['Postgres', running.postgres],
    ['Redis', running.redis],
    ['Data', running.dataDir],
  ];
  return [
    '',
    `Relay ${running.version} is running.`,
    '',
    ...rows.map(([name, value]) => `  ${name.padEnd(10)} ${value}`),
    ...(running.privateEndpoints
      ? [
          '',
          '  Endpoints may lie on private addresses here (RELAY_ALLOW_PRIVATE_ENDPOINTS=true): for development only.',
        ]
      : []),
    '',
    ...tryIt(running),
    '',
    '  Ctrl-C drains and stops.',
    '',
  ].join('\n');
}

function metrics(url: string): string {
  return `${url}/metrics`;
}

function tryIt({ apiUrl, adminKey, receiverUrl }: Running): string[] {
  const auth = `-H 'authorization: Bearer ${adminKey}'`;
  const post = `curl -sS ${apiUrl}/v1/events ${auth} -d '{"type":"demo.hello","text":"Hello!"}'`;
  if (receiverUrl === null) {
    return [
      '  Register an endpoint, then post an event:',
      '',
      `curl -sS ${apiUrl}/v1/endpoints ${auth} -H 'content-type: application/json' -d '{"url":"http://127.0.0.1:9099/verify"}'`,
      post,
    ];
  }
  return [
    '  Post an event, then read the delivery that it made:',
    '',
    `id=$(${post} | sed 's/.*"delivery_ids":\\["\\([^"]*\\).*/\\1/'); echo $id`,
    `curl -sS ${apiUrl}/v1/deliveries/$id ${auth}`,
  ];
}

/** Drawn again every second on a terminal. */
export function statusBlock(status: Status): string[] {
  const { counted, demo } = status;
  return [
    `  up ${duration(status.now.getTime() - status.since.getTime())} since ${clock(status.since)}, ` +
      (counted ? `${counted.mode} mode` : 'a service does not answer at this moment'),
    '',
    row(['accepted', count(counted?.accepted)], ['delivered', count(counted?.delivered)], verifiedCell(demo)),
    row(['retries', count(counted?.retries)], ['dead', count(counted?.dead)], ['queue', queued(status)]),
    ...(demo ? demoLines(demo) : []),
  ];
}

type Demo = NonNullable<Status['demo']>;

function demoLines(demo: Demo): string[] {
  return [
    `  accept to delivered  p50 ${milliseconds(demo.p50Ms)}  p99 ${milliseconds(demo.p99Ms)}`,
    '',
    '  last deliveries',
    ...demo.recent.toReversed().map((delivery) => `    ${deliveryLine(delivery)}`),
  ];
}

function verifiedCell(demo: Demo | null): [string, string] {
  if (!demo) return ['', ''];
  const refused = demo.rejected > 0 ? ` (${count(demo.rejected)} rejected)` : '';
  return ['verified', count(demo.verified) + refused];
}

function deliveryLine({
  at,
  type,
  deliveryId,
  attempt,
  status,
  verified,
  latencyMs,
}: WatchedDelivery): string {
  const verdict = verified ? 'verified' : 'not verified';
  const latency = latencyMs === null ? '' : milliseconds(latencyMs);
  return `${clock(at)}  ${type.padEnd(20)} ${deliveryId}  attempt ${attempt}  ${status} ${verdict}  ${latency}`;
}

/** One line of the same, for a pipe. */
export function statusLine(status: Status): string {
  const { counted, demo } = status;
  const parts = [
    `accepted ${count(counted?.accepted)}`,
    `delivered ${count(counted?.delivered)}`,
    ...(demo ? [verifiedCell(demo).join(' ')] : []),
    `retries ${count(counted?.retries)}`,
    `dead ${count(counted?.dead)}`,
    `queue ${queued(status)}`,
    ...(demo ? [`p50 ${milliseconds(demo.p50Ms)}`, `p99 ${milliseconds(demo.p99Ms)}`] : []),
    counted ? `${counted.mode} mode` : 'a service does not answer',
  ];
  return `${clock(status.now)} ${parts.join(', ')}`;
}

function row(...cells: [string, string][]): string {
  return `  ${cells.map(([name, value]) => `${name.padEnd(9)} ${value.padStart(9)}`).join('    ')}`.trimEnd();
}

function count(value: number | undefined): string {
  return value === undefined ? '?' : value.toLocaleString('en');
}

function queued({ queue }: Status): string {
  return queue ? `${queue.capped ? 'over ' : ''}${count(queue.size)}` : '?';
}

function milliseconds(ms: number | null): string {
  return ms === null ? '-' : `${Math.round(ms)} ms`;
}

function clock(moment: Date): string {
  return moment.toTimeString().slice(0, 8);
}

function duration(ms: number): string {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  const pad = (value: number) => String(value).padStart(2, '0');
  return `${pad(Math.floor(seconds / 3600))}:${pad(Math.floor(seconds / 60) % 60)}:${pad(seconds % 60)}`;
}
